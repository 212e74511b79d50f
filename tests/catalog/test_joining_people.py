"""What people said at different sites meets: names, hiding, refusals; and they are asked where it is unsure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from talon_ocd import Talon
from talon_ocd.catalog import Catalog
from talon_ocd.catalog.joining import ACTOR, Answer, Joined, join
from talon_ocd.catalog.matching import Match
from talon_ocd.durable import DurableStream, Journal, Pictures
from talon_ocd.errors import StreamError
from talon_ocd.images import memory_item
from tests import tiny
from tests.catalog.worlds import KNOWN, observe, open_world
from tests.images.pictures import encoded, photo

FIRST, OTHER = KNOWN, KNOWN + 1
"""Ids of the two categories that both sites discover, in the same order."""


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """Two sites that have seen the same two new classes."""
    for name, seed in (("a", 1), ("b", 2)):
        with open_world(tmp_path / name) as stream:
            observe(stream, [12, 13] * 8, seed)
    return tmp_path


def edit(folder: Path, change: Callable[[Catalog], object]) -> None:
    journal = Journal(folder, write=True)
    change(Catalog(journal))
    journal.close()


def joined(sites: Path, answer: Answer | None = None) -> tuple[Joined, list[Match], Catalog]:
    """Join, with one answer to all questions; returns them, too."""
    asked: list[Match] = []

    def ask(match: Match, catalog: Catalog, pictures: Pictures) -> Answer:
        asked.append(match)
        return answer or "later"

    done = join([sites / "a", sites / "b"], sites / "c", open_world, ask if answer else None, by="Ada")
    return done, asked, Catalog(Journal(sites / "c"))


def test_nothing_is_asked_where_all_is_clear(sites: Path) -> None:
    done, asked, catalog = joined(sites, "no")
    assert not asked and [one.answer for one in done.settled] == ["yes", "yes"]
    assert catalog.resolve(FIRST + 2) == FIRST and catalog.resolve(OTHER + 2) == OTHER


def test_a_name_goes_with_a_match(sites: Path) -> None:
    edit(sites / "b", lambda catalog: catalog.rename(FIRST, "heron"))
    _, _, catalog = joined(sites)
    assert catalog.name(FIRST) == catalog.name(FIRST + 2) == "heron"


def test_different_names_are_never_merged_silently(sites: Path) -> None:
    edit(sites / "a", lambda catalog: catalog.rename(FIRST, "heron"))
    edit(sites / "b", lambda catalog: catalog.rename(FIRST, "egret"))
    done, _, catalog = joined(sites)
    (unsure,) = [one for one in done.settled if one.answer == "later"]
    assert unsure.match.why == "people call them 'heron' and 'egret'"
    assert (catalog.name(FIRST), catalog.name(FIRST + 2)) == ("heron", "egret")
    first = catalog.suggestions()[0]
    assert {first.first.id, first.second.id} == {FIRST, FIRST + 2}, "people are asked on the page"


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_an_answer_is_remembered_as_the_person_s(sites: Path, answer: Answer) -> None:
    edit(sites / "a", lambda catalog: catalog.rename(FIRST, "heron"))
    edit(sites / "b", lambda catalog: catalog.rename(FIRST, "egret"))
    done, asked, catalog = joined(sites, answer)
    assert [match.second for match in asked] == [FIRST + 2]
    event = next(event for event in catalog.history() if event.seq == done.settled[-1].event)
    assert (event.kind, event.actor) == ("merged" if answer == "yes" else "refused", "Ada")
    assert done.settled[0].asked is False and catalog.history()[1].actor == ACTOR
    assert (catalog.resolve(FIRST + 2) == FIRST) == (answer == "yes")
    pairs = [{pair.first.id, pair.second.id} for pair in catalog.suggestions()]
    assert {FIRST, FIRST + 2} not in pairs, "answered once is enough"
    if answer == "no":
        assert catalog.refusals() == {(FIRST, FIRST + 2)}


def test_who_leaves_in_the_middle_leaves_nothing_behind(sites: Path) -> None:
    def leave(match: Match, catalog: Catalog, pictures: Pictures) -> Answer:
        raise KeyboardInterrupt

    edit(sites / "b", lambda catalog: catalog.hide(OTHER))
    with pytest.raises(KeyboardInterrupt):
        join([sites / "a", sites / "b"], sites / "c", open_world, leave)
    assert sorted(path.name for path in sites.iterdir()) == ["a", "b"]


def test_one_name_for_what_does_not_look_alike_is_asked_about(sites: Path) -> None:
    edit(sites / "a", lambda catalog: catalog.rename(FIRST, "heron"))
    edit(sites / "b", lambda catalog: catalog.rename(OTHER, "heron"))
    done, _, catalog = joined(sites)
    why = {(one.match.first, one.match.second): one.match.why for one in done.settled if one.answer == "later"}
    assert why[FIRST, OTHER + 2] == "people gave them one name, but they do not look alike"
    assert catalog.resolve(FIRST) != catalog.resolve(OTHER + 2)


def test_what_a_site_has_told_apart_is_not_made_one_by_a_third(sites: Path) -> None:
    with open_world(sites / "b") as stream:
        catalog = Catalog(stream.journal, stream.apply)
        half = [index for index in range(16) if index % 2 == 0][:4]
        catalog.split(FIRST, half)  # the new one fits better
        catalog.rename(FIRST, "heron")
    edit(sites / "a", lambda catalog: catalog.rename(FIRST, "heron"))
    done, _, catalog = joined(sites)
    pairs = {(one.match.first, one.match.second): one for one in done.settled}
    both = [pairs[FIRST, FIRST + 2], pairs[FIRST, FIRST + 4]]
    assert sorted(one.answer for one in both) == ["later", "yes"]
    assert [one.match.why for one in both if one.answer == "later"] == ["one of them has a match already"]
    assert catalog.resolve(FIRST + 2) != catalog.resolve(FIRST + 4)


def test_hidden_at_one_site_only_is_asked_about(sites: Path) -> None:
    edit(sites / "b", lambda catalog: catalog.hide(OTHER))
    done, _, catalog = joined(sites)
    assert [(one.match.second, one.match.why) for one in done.settled if one.answer == "later"] == [
        (OTHER + 2, "one of them is hidden")
    ]
    assert catalog.get(OTHER + 2).state == "hidden"
    for odds in (None, lambda most: [(OTHER, OTHER + 2, 3.0)]):
        ((first, second),) = {(one.first.id, one.second.id) for one in catalog.suggestions(5, odds)}
        assert {first, second} == {OTHER, OTHER + 2}


def test_what_people_put_into_a_class_takes_its_match_along(sites: Path) -> None:
    edit(sites / "a", lambda catalog: catalog.merge([FIRST], into=3))
    _, _, catalog = joined(sites)
    assert catalog.resolve(FIRST) == catalog.resolve(FIRST + 2) == 3


def test_encoders_that_went_different_ways_are_refused(fitted: Talon, tmp_path: Path) -> None:
    def opened(folder: Path) -> DurableStream:
        return fitted.stream(folder, threshold=0.7, adapt="prototypes,encoder")

    for name, first in (("a", 20), ("b", 30), ("quiet", 40)):
        with opened(tmp_path / name) as stream:
            number = 3 if name == "quiet" else 2 * stream.config.adapt_every  # a step, and its verdict
            list(stream.run(list(tiny.part(first, 99, ("0", "1", "4", "5")))[:number]))
    with pytest.raises(StreamError, match="encoders of 'a' and 'b' have adapted in different directions"):
        join([tmp_path / "a", tmp_path / "b"], tmp_path / "c", opened)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "quiet"]
    opened(tmp_path / "empty").close()
    join([tmp_path / "empty", tmp_path / "quiet"], tmp_path / "c", opened)
    with opened(tmp_path / "c") as stream:
        assert stream.answered == 3 and stream.adapter.steps == 0


def test_pictures_come_along(fitted: Talon, tmp_path: Path) -> None:
    items = [memory_item(encoded(photo(seed=number)), f"upload {number}") for number in range(4)]
    for name, part in (("a", items[:3]), ("b", items[2:])):
        with fitted.stream(tmp_path / name) as stream:
            list(stream.run(part))
    done = join([tmp_path / "a", tmp_path / "b"], tmp_path / "c", fitted.stream)
    assert done.keys["b"].same == 1 and not done.keys["b"].renamed
    with fitted.stream(tmp_path / "c") as stream:
        for index, item in enumerate([*items[:3], *items[2:]]):
            kept = stream.pictures.item(index)
            assert kept is not None and kept.payload == item.payload
            assert stream.pictures.thumbnail(index) is not None
        assert not stream.unseen(items)
