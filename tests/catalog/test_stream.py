"""Corrections reach a real stream: at once while it runs, at the next opening otherwise; undo takes them back."""

from pathlib import Path

import pytest

from talon_ocd import Talon
from talon_ocd.catalog import Catalog, grid, what_if
from talon_ocd.durable import DurableStream, Journal
from talon_ocd.images import ImageItem
from talon_ocd.online import Decision
from tests import tiny

IMAGES = 60


def images() -> list[ImageItem]:
    return tiny.incoming(140)[20 : 20 + IMAGES]


@pytest.fixture
def folder(fitted: Talon, tmp_path: Path) -> Path:
    with fitted.stream(tmp_path / "stream") as stream:
        stream.observe_many([item.load() for item in images()])
    return tmp_path / "stream"


def decided(stream: DurableStream) -> list[Decision]:
    return [stream.decide(item.load()) for item in images()]


def answers(decisions: list[Decision]) -> list[int]:
    return [decision.category for decision in decisions]


def scores(decisions: list[Decision]) -> list[float]:
    return [decision.similarity for decision in decisions]


def test_a_name_survives_reopening(fitted: Talon, folder: Path) -> None:
    with fitted.stream(folder) as stream:
        catalog = Catalog(stream.journal, stream.apply)
        found = catalog.list("discovered").items[0].id
        catalog.rename(found, "a new digit")
        stream.observe_many([item.load() for item in images()[:5]])
    with fitted.stream(folder) as stream:
        assert Catalog(stream.journal).name(found) == "a new digit"


def test_a_split_changes_the_next_answer_and_undo_changes_it_back(fitted: Talon, folder: Path) -> None:
    with fitted.stream(folder) as stream:
        catalog = Catalog(stream.journal, stream.apply)
        before = decided(stream)
        large = catalog.list(sort="count", limit=1).items[0].id
        odd = catalog.members(large).items[0].index
        event = catalog.split(large, [odd])
        new = int(event.data["into"])
        assert stream.decide(images()[odd].load()).category == new
        catalog.undo(event.seq)
        after = decided(stream)
        assert answers(after) == answers(before)
        assert scores(after) == pytest.approx(scores(before), abs=1e-2)


def test_moved_images_change_the_next_answers_live_and_after_reopening(fitted: Talon, folder: Path) -> None:
    with fitted.stream(folder) as stream:
        catalog = Catalog(stream.journal, stream.apply)
        large = catalog.list(sort="count", limit=1).items[0].id
        odd, *moving = (image.index for image in catalog.members(large, 4).items)
        small = int(catalog.split(large, [odd]).data["into"])
        before = decided(stream)
        event = catalog.move(moving, small)
        live = decided(stream)
        assert any(live[image].category == small != before[image].category for image in moving)
    with fitted.stream(folder) as stream:
        assert decided(stream) == live, "the replay does what was done live"
        Catalog(stream.journal, stream.apply).undo(event.seq)
        after = decided(stream)
        assert answers(after) == answers(before)
        assert scores(after) == pytest.approx(scores(before), abs=1e-2)


def test_what_is_said_while_no_stream_is_open_is_learned_at_the_next_opening(fitted: Talon, folder: Path) -> None:
    with fitted.stream(folder) as stream:
        catalog = Catalog(stream.journal, stream.apply)
        large = catalog.list(sort="count", limit=1).items[0].id
        odd = catalog.members(large).items[0].index
    journal = Journal(folder, write=True, purpose="a test")
    split = Catalog(journal).split(large, [odd], name="odd one")
    journal.close()
    with fitted.stream(folder) as stream:
        answer = stream.decide(images()[odd].load())
        assert (answer.category, Catalog(stream.journal).name(answer.category)) == (split.data["into"], "odd one")
        decision = stream.observe(images()[odd].load())
        assert decision.category == split.data["into"]
        catalog = Catalog(stream.journal, stream.apply)
        assert catalog.get(decision.category).verdicts == {"known": 0, "discovered": 1, "new": 0}
        catalog.undo(split.seq)
        assert catalog.get(decision.category).count == 1, "what was answered with it since stays there"


def test_new_ids_of_the_stream_follow_those_of_people(fitted: Talon, tmp_path: Path) -> None:
    pictures = [item.load() for item in images()]
    with fitted.stream(tmp_path / "fine", threshold=0.9999) as stream:  # everything but a copy is new
        first, copy = stream.observe_many([pictures[0], pictures[0]])
        assert first.category == copy.category
        catalog = Catalog(stream.journal, stream.apply)
        new = int(catalog.split(first.category, [copy.index]).data["into"])
        founded = [answer.category for answer in stream.observe_many(pictures[1:]) if answer.verdict == "new"]
        assert founded and min(founded) == new + 1


def test_what_if_runs_on_the_features_of_a_stream(fitted: Talon, folder: Path) -> None:
    journal = Journal(folder)
    unit, current, values = grid(journal.meta("rule"))
    found = what_if(journal, lambda value: fitted.stream(finer=value).discovery, values, unit, current)
    journal.close()
    assert (found.unit, found.images) == ("nats", IMAGES)
    discovered = [point.discovered for point in found.points]
    assert discovered[0] < discovered[-1]
