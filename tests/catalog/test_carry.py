"""Names survive a new model: other ids, the same images."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from talon_ocd.catalog import Catalog
from talon_ocd.catalog.carry import carry
from tests.catalog.journals import entries, open_journal


def stream(folder: Path, answers: Sequence[int]) -> Catalog:
    return Catalog(open_journal(folder, answers))


@pytest.fixture
def old(catalog: Catalog) -> Catalog:
    """Images 3-5 are in 2, 6-7 in 3, 8 in 4, 9-10 in 5; see ``journals``."""
    return catalog


@pytest.fixture
def new(tmp_path: Path) -> Iterator[Catalog]:
    """The same images, discovered in another order: 3-5 in 4, 6-7 in 5, 8 in 3, 9 in 2, 10 in 6."""
    catalog = stream(tmp_path / "new", (0, 0, 1, 4, 4, 4, 5, 5, 3, 2, 6))
    yield catalog
    catalog.journal.close()


def test_names_merges_hiding_and_refusals_go_where_the_images_are(old: Catalog, new: Catalog) -> None:
    old.rename(2, "robin")
    old.rename(0, "Felis catus")
    old.merge([3], into=2)
    old.hide(4)
    old.refuse(2, 4)
    done = carry(old, new, "Ada")
    assert [event.kind for event in done.events] == ["named", "merged", "named", "hidden", "refused"]
    assert not done.left
    assert (new.name(4), new.name(0), new.resolve(5), new.get(3).state) == ("robin", "Felis catus", 4, "hidden")
    assert new.refusals() == {(3, 4)}
    assert {event.actor for event in done.events} == {"Ada"}
    assert done.events[2].data["carried_from"] == {"stream": old.journal.folder.name, "category": 2}


def test_carrying_twice_says_nothing_twice(old: Catalog, new: Catalog) -> None:
    old.rename(2, "robin")
    old.merge([3], into=2)
    old.hide(4)
    old.refuse(2, 4)
    carry(old, new)
    assert carry(old, new).events == ()


def test_what_is_torn_apart_is_reported_and_not_guessed(old: Catalog, new: Catalog) -> None:
    old.rename(5, "heron")
    done = carry(old, new)
    assert not done.events
    (left,) = done.left
    assert (left.category, left.name) == (5, "heron") and "at most 1 of 2" in left.reason


def test_a_majority_is_enough_and_images_that_people_moved_count_where_they_are(old: Catalog, new: Catalog) -> None:
    new.move([5], 6)
    old.rename(2, "robin")
    carry(old, new)
    assert new.name(4) == "robin"
    old.rename(5, "heron")
    new.move([10], 2)
    carry(old, new)
    assert new.name(2) == "heron"


def test_images_that_the_new_stream_has_not_seen_say_nothing(old: Catalog, tmp_path: Path) -> None:
    new = stream(tmp_path / "short", (0, 0, 1, 2))
    old.rename(2, "robin")
    old.rename(5, "heron")
    done = carry(old, new)
    assert new.name(2) == "robin", "its one image that is there"
    assert [left.reason for left in done.left] == ["none of its 2 images are in the new stream"]
    new.journal.close()


def test_two_names_for_one_are_reported(old: Catalog, tmp_path: Path) -> None:
    new = stream(tmp_path / "coarse", (0, 0, 1, 2, 2, 2, 2, 2, 3, 3, 3))
    old.rename(2, "robin")
    old.rename(3, "wren")
    done = carry(old, new)
    assert new.name(2) == "robin" and [left.name for left in done.left] == ["wren"]
    assert "the two are one there" in done.left[0].reason
    new.journal.close()


def test_a_name_that_is_taken_there_is_reported(old: Catalog, new: Catalog) -> None:
    new.rename(6, "robin")
    old.rename(2, "robin")
    done = carry(old, new)
    assert not done.events and "category 6 has the name there" in done.left[0].reason


def test_a_merge_over_the_border_of_a_lost_part_keeps_the_rest(old: Catalog, new: Catalog) -> None:
    old.rename(5, "heron")
    old.merge([5, 3], into=2)  # 5 is torn apart in the new stream
    done = carry(old, new)
    assert new.resolve(5) == 4 and new.name(4) == "heron"
    assert [left.category for left in done.left] == [5]


def test_a_class_that_is_discovered_there_takes_the_name_along(old: Catalog, tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "fewer", ())
    journal.set_meta(names=["cat", "horse"])
    journal.write(entries((0, 0, 2, 3, 3, 3)))
    old.rename(1, "hound")
    new = Catalog(journal)
    carry(old, new)
    assert new.name(2) == "hound"
    journal.close()
