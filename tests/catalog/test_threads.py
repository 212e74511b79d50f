"""Many read while one edits and the stream answers."""

import threading
from collections.abc import Callable
from pathlib import Path

from talon_ocd.catalog import Catalog
from tests.catalog.journals import entries, open_journal


def test_readers_never_see_half_of_an_edit(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, [2 + at % 12 for at in range(60)])
    catalog = Catalog(journal)
    failures: list[BaseException] = []
    over = threading.Event()

    def whole() -> None:
        """Category 3 is merged into 2 together with its name, or neither."""
        page = catalog.list("all", exemplars=0)
        by_id = {one.id: one for one in page.items}
        assert (3 in by_id[2].aliases) == (by_id[3].state == "merged") == (by_id[2].count > by_id[4].count + 3)

    def reading(look: Callable[[], object]) -> None:
        try:
            while not over.is_set():
                look()
        except BaseException as error:
            failures.append(error)

    looks: list[Callable[[], object]] = [
        whole,
        lambda: catalog.suggestions(5),
        lambda: [catalog.name(one) for one in range(2, 14)],
        lambda: (catalog.members(2), catalog.history(), catalog.list(query="discovered", sort="name")),
    ]
    threads = [threading.Thread(target=reading, args=(look,)) for look in looks]
    for thread in threads:
        thread.start()
    try:
        for turn in range(25):
            catalog.merge([3], into=2)
            journal.write(entries([5, 20 + turn], first=60 + 2 * turn, seen={5}))
            catalog.undo()
            catalog.rename(5, f"name {turn}")
    finally:
        over.set()
        for thread in threads:
            thread.join()
        journal.close()
    assert not failures, failures
