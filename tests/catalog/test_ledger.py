"""Whatever people do and undo in whatever order: the fold says one thing, and undoing all of it gives back all."""

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from talon_ocd.catalog import Catalog
from talon_ocd.catalog.aliases import Aliases
from talon_ocd.catalog.ledger import Ledger
from talon_ocd.durable.journal import Event, Journal
from talon_ocd.errors import CatalogError
from tests.catalog.journals import ANSWERS, open_journal

CATEGORIES = st.integers(0, 7)
IMAGES = st.lists(st.integers(0, len(ANSWERS) - 1), min_size=1, max_size=4)
Step = Callable[[Catalog], Event]
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(lambda c, n, m: lambda k: k.rename(c, n, merge=m), CATEGORIES, st.sampled_from("abc"), st.booleans()),
    st.builds(lambda c, i: lambda k: k.merge(c, i), st.lists(CATEGORIES, min_size=1, max_size=3), CATEGORIES),
    st.builds(lambda c, h: lambda k: k.hide(c, h), CATEGORIES, st.booleans()),
    st.builds(lambda a, b: lambda k: k.refuse(a, b), CATEGORIES, CATEGORIES),
    st.builds(lambda c, i: lambda k: k.split(c, i), CATEGORIES, IMAGES),
    st.builds(lambda i, c: lambda k: k.move(i, c), IMAGES, CATEGORIES),
    st.builds(lambda i: lambda k: k.confirm(i), IMAGES),
    st.builds(lambda i: lambda k: k.reject(i), IMAGES),
    st.builds(lambda s: lambda k: k.undo(s), st.none() | st.integers(1, 40)),
)


def state(journal: Journal, catalog: Catalog, categories: int = 6) -> dict[str, Any]:
    """All that anybody can see of the first categories and of every image."""
    return {
        "categories": [catalog.get(one) for one in range(categories)],
        "ends": [catalog.resolve(one) for one in range(categories)],
        "refused": catalog.refusals(),
        "homes": [row["home"] for row in journal.query("SELECT home FROM decisions ORDER BY idx")],
        "lists": {sort: [one.id for one in catalog.list("active", sort=sort).items] for sort in ("count", "name")},
    }


def counted(journal: Journal) -> dict[int, int]:
    rows = journal.query("SELECT home, count(*) AS number FROM decisions WHERE home >= 0 GROUP BY home")
    return {row["home"]: row["number"] for row in rows}


@settings(max_examples=40)
@given(steps=st.lists(STEPS, max_size=14))
def test_whatever_people_do(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = open_journal(Path(folder))
        try:
            catalog = Catalog(journal)
            before = state(journal, catalog)
            for step in steps:
                with suppress(CatalogError):
                    step(catalog)
            size = catalog.next_id()
            assert state(journal, catalog, size) == state(journal, Catalog(journal), size), (
                "folded at once, and in steps"
            )
            rows = journal.query("SELECT id, members FROM categories WHERE members > 0")
            assert {row["id"]: row["members"] for row in rows} == counted(journal)
            for one in range(size):
                assert catalog.resolve(catalog.resolve(one)) == catalog.resolve(one)
                assert catalog.list(catalog.get(one).state).total, "states agree one by one and all at once"
            while True:
                try:
                    catalog.undo()
                except CatalogError:
                    break
            assert state(journal, catalog) == before
            assert [catalog.get(one).state for one in range(6, size)] == ["retired"] * (size - 6)
        finally:
            journal.close()


@settings(max_examples=40)
@given(steps=st.lists(STEPS, max_size=12), order=st.randoms(use_true_random=False))
def test_undo_in_any_order_gives_back_what_was(steps: list[Step], order: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = open_journal(Path(folder))
        try:
            catalog = Catalog(journal)
            before = state(journal, catalog)
            done = []
            for step in steps:
                with suppress(CatalogError):
                    done.append(step(catalog))
            after = state(journal, catalog, size := catalog.next_id())
            facts = list({e.seq for e in done if e.kind != "undone" and not catalog.undone(e.seq)})
            order.shuffle(facts)
            undone = [catalog.undo(seq).seq for seq in facts]
            assert state(journal, catalog) == before
            order.shuffle(undone)
            for seq in undone:
                catalog.undo(seq)
            assert state(journal, catalog, size) == after, "undo of all undos"
        finally:
            journal.close()


MERGES = st.lists(st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=3), st.integers(0, 9)), max_size=10)


def folded(merges: dict[int, tuple[list[int], int]]) -> list[int]:
    """The slow way: from nothing, one merge after another."""
    ends = list(range(10))
    for _, (categories, into) in sorted(merges.items()):
        for category in categories:
            away, target = ends[category], ends[into]
            ends = [target if end == away else end for end in ends]
    return ends


@settings(max_examples=200)
@given(merges=MERGES, changes=st.lists(st.integers(0, 9), max_size=12))
def test_merges_that_come_and_go_are_folded_as_from_nothing(
    merges: list[tuple[list[int], int]], changes: list[int]
) -> None:
    aliases, active = Aliases(), dict[int, tuple[list[int], int]]()
    for seq in [*range(len(merges)), *(change for change in changes if change < len(merges))]:
        if seq in active:
            del active[seq]
            aliases.remove(seq)
        else:
            active[seq] = merges[seq]
            aliases.add(seq, *merges[seq])
        ends = folded(active)
        assert [aliases.resolve(category) for category in range(10)] == ends
        for category in range(10):
            merged = {other for other in range(10) if ends[other] == category != other}
            assert set(aliases.of(category)) == merged and len(aliases.of(category)) == len(merged)


def test_an_event_counts_unless_one_that_counts_undoes_it() -> None:
    ledger = Ledger()
    ledger.apply(Event(1, 0.0, 0, "named", 3, {"name": "a", "before": "x"}, "Ada"))
    for seq, undoes in ((2, 1), (3, 2), (4, 1), (5, 3)):
        ledger.apply(Event(seq, 0.0, 0, "undone", 3, {}, "Ada", undoes))
    # 5 undoes 3, so that 2 undoes 1 again, which 4 undoes as well
    assert [ledger.counts(seq) for seq in range(1, 6)] == [False, True, False, True, True]
    assert not ledger.counts_after_undoing(4), "2 still undoes it"
    ledger.apply(Event(6, 0.0, 0, "undone", 3, {}, "Ada", 4))
    assert ledger.counts_after_undoing(2)
    assert ledger.given_name(3) is None
    ledger.apply(Event(7, 0.0, 0, "undone", 3, {}, "Ada", 2))
    given_name = ledger.given_name(3)
    assert given_name is not None and given_name.seq == 1
