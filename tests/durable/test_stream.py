"""A stream with a folder: answers each image once, refuses what doesn't belong, loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from talon_ocd import Catalog
from talon_ocd.durable import Draft, Journal, Keep, Pictures, Request
from talon_ocd.errors import CatalogError, ImageError, StorageError, StreamError, StreamInUseError
from talon_ocd.images import memory_item
from talon_ocd.online import Bounds
from tests import tiny
from tests.durable.worlds import BOTH, Open, fitted, ids, same, state


def test_it_answers_as_a_stream_in_memory(open_stream: Open) -> None:
    items = tiny.incoming(60)
    with open_stream() as stream:
        durable = list(stream.run(items))
        by_cosine = stream.discovery.rule.name == "cosine"
        memory = fitted().stream(threshold=0.7, adapt=BOTH) if by_cosine else fitted().stream()
        assert durable == list(memory.run(items))
        assert same(state(stream), memory.state_dict())
        assert [stream.journal.decision(index) for index in range(60)] == durable


def test_two_processes_can_not_have_one_folder(open_stream: Open) -> None:
    with open_stream() as stream:
        ids(stream, tiny.incoming(3))
        with pytest.raises(StreamInUseError, match="in use"):
            open_stream()
        reader = Journal(stream.folder)
        assert reader.answered == 3
        reader.close()
    with open_stream() as again:
        assert again.answered == 3


def test_a_folder_that_can_not_be_opened_is_let_go(open_stream: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Pictures] = []

    def fail(pictures: Pictures) -> None:
        seen.append(pictures)
        raise StorageError("no originals can be read")

    with monkeypatch.context() as broken:
        broken.setattr(Pictures, "sweep", fail)
        with pytest.raises(StorageError, match="no originals"):
            open_stream()
    with pytest.raises(StorageError):
        seen[0].add(0, [torch.zeros(3, 8, 8, dtype=torch.uint8)])
    with open_stream() as again:
        assert again.answered == 0


def test_an_endless_source_is_answered_once_an_image_before_and_after_its_answer(open_stream: Open) -> None:
    first, second = tiny.incoming(2)
    with open_stream() as stream:
        source = iter([first, first, second, first, second, second])
        answered = [item.key for _, item in stream.run_items(source, batch_size=4)]
        assert answered == [first.key, second.key]
        assert [item.key for _, item in stream.run_items(iter([second, first]), batch_size=1)] == []


def test_corrections_of_images_that_a_replay_may_not_find_are_written_but_not_learned(open_stream: Open) -> None:
    with open_stream() as stream:
        stream.keep = Keep(features=4)
        answered = ids(stream, tiny.incoming(30))
        old = next(index for index in range(1, 26) if answered[index] in answered[:index])
        founder = answered.index(max(answered[:26]))  # as old, but the first of a discovered category
        catalog, before = Catalog(stream.journal, stream.apply), state(stream)
        catalog.reject([old])
        assert same(state(stream), before)
        assert old not in [image.index for image in catalog.members(answered[old]).items]
        for index in (founder, 29):
            before = state(stream)
            catalog.confirm([index])
            assert not same(state(stream), before)


def test_everybody_hears_of_an_event_once_it_is_written(open_stream: Open) -> None:
    with open_stream() as stream:
        heard: list[tuple[str, int]] = []
        stream.on_event.append(lambda event: heard.append((event.kind, len(stream.journal.events()))))
        ids(stream, tiny.incoming(3))
        stream.flush()
        stream.second_thoughts()
        assert [kind for kind, _ in heard if kind in ("flushed", "rethought")] == ["flushed", "rethought"]
        assert all(written for _, written in heard)


def test_another_model_or_other_settings_are_refused(open_stream: Open, tmp_path: Path) -> None:
    with open_stream() as stream:
        ids(stream, tiny.incoming(3))
    with pytest.raises(StreamError, match=r"begun with finer=|begun with threshold"):
        options = {"finer": 2.0} if stream.discovery.rule.name == "evidence" else {"threshold": 0.6}
        open_stream(**options)
    other = tiny.tiny_talon(adapt_every=8, seed=4)
    other.fit(tiny.labelled())
    with pytest.raises(StreamError, match="another model"):
        other.stream(tmp_path / "stream")
    with open_stream() as again:
        assert again.answered == 3


def test_options_that_are_left_out_are_those_that_the_stream_began_with(tmp_path: Path) -> None:
    bounds = Bounds(most_categories=7)
    with fitted().stream(tmp_path, threshold=0.61, adapt="none", bounds=bounds) as stream:
        ids(stream, tiny.incoming(3))
    with fitted().stream(tmp_path) as again:
        assert again.discovery.rule.threshold == 0.61
        assert again.config.adapt == ()
        assert again.discovery.bounds == bounds


def test_a_full_disk_stops_the_stream_and_loses_nothing(open_stream: Open, tmp_path: Path) -> None:
    items = tiny.incoming(48)
    with open_stream("whole") as whole:
        wanted = ids(whole, items)
    stream = open_stream()
    answered = ids(stream, items[:16])
    pages = stream.journal.query("PRAGMA page_count")[0][0]
    connection = stream.journal._connection
    assert connection is not None
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageError, match="What was answered before is safe"):
        while True:
            answered += [
                decision.category for decision in stream.observe_many(items[len(answered) : len(answered) + 1])
            ]
    assert stream.broken
    with pytest.raises(StorageError, match="opened again"):
        stream.observe(items[-1])
    stream.close()
    with open_stream() as again:
        assert again.answered == len(answered)
        assert answered + ids(again, items) == wanted


def test_what_people_say_to_a_broken_stream_is_learned_when_it_opens(
    open_stream: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise StorageError("no space left on device")

    items = tiny.incoming(20)
    with open_stream("whole") as whole:
        ids(whole, items[:16])
        Catalog(whole.journal, whole.apply).reject([3])
        wanted = state(whole)
    stream = open_stream()
    ids(stream, items[:16])
    with monkeypatch.context() as patch, pytest.raises(StorageError):
        patch.setattr(stream.journal, "write", full)
        stream.observe(items[16])
    assert stream.broken
    Catalog(stream.journal, stream.apply).reject([3])
    stream.close()
    with open_stream() as again:
        assert same(state(again), wanted)


def test_skipped_images_are_written_down_and_cost_nothing(open_stream: Open) -> None:
    good, bad = tiny.incoming(9), memory_item(b"no image", "bad.jpg")
    with open_stream() as stream:
        skipped: list[str] = []
        answers = list(stream.run([*good[:4], bad, *good[4:]], lambda skip: skipped.append(skip.source)))
        assert len(answers) == 9
        assert skipped == ["bad.jpg"]
        assert [row["source"] for row in stream.journal.query("SELECT * FROM skipped")] == ["bad.jpg"]
        with pytest.raises(ImageError):
            stream.observe(bad)
        assert stream.answered == 9


def test_an_image_is_answered_once(open_stream: Open) -> None:
    items = tiny.incoming(6)
    with open_stream() as stream:
        assert len(list(stream.run([*items, *items[:3]]))) == 6
        assert len(list(stream.run(item for item in [*items, *items]))) == 0


def test_requests_are_written_with_their_answers(open_stream: Open) -> None:
    items = tiny.incoming(10)
    with open_stream() as stream:
        canvases = [stream.backbone.preprocessing.canvas(item.load()) for item in items]
        asked = [Request(f"key/{number}", "abc") if number % 2 else None for number in range(10)]
        answers = stream.observe_loaded(items, canvases, asked)
    journal = Journal(stream.folder)
    assert journal.request("key/3") == ("abc", answers[3])
    assert journal.request("key/2") is None
    journal.close()


def test_a_moved_image_changes_what_comes_next(open_stream: Open) -> None:
    items = tiny.incoming(30)
    with open_stream() as stream:
        answers = ids(stream, items)
        for index in (7, 6, 5):
            wrong = (answers[index] + 1) % 4
            moves = [[index, answers[index], wrong]]
            before = stream.memory.prototypes[wrong].clone()
            stream.apply(stream.journal.append(Draft("moved", None, {"moves": moves}), stream.answered))
            assert not torch.equal(before, stream.memory.prototypes[wrong])
        assert stream.memory.counts.sum() == 30


def test_what_is_broken_off_is_done_anew(open_stream: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = open_stream()
    ids(stream, tiny.incoming(20))
    event = stream.journal.append(Draft("moved", 1, {"moves": [[3, 0, 1], [4, 0, 1]]}), stream.answered)
    with monkeypatch.context() as patch:
        calls: list[int] = []

        def interrupted(*words: object) -> None:
            calls.append(1)
            if len(calls) > 1:
                raise KeyboardInterrupt

        patch.setattr(stream.discovery, "correct", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.apply(event)
    assert stream.broken
    stream.close()
    with open_stream() as again:
        assert int(again.memory.counts.sum()) == 20
        assert again.answered == 20


def test_a_catalog_beside_an_open_stream_must_teach_it(open_stream: Open) -> None:
    with open_stream() as stream:
        ids(stream, tiny.incoming(4))
        with pytest.raises(CatalogError, match="would not hear"):
            Catalog(stream.journal).reject([1])
        Catalog(stream.journal).rename(0, "a name is no lesson")
        with pytest.raises(StreamError, match="observe_hidden"):
            stream.place(torch.zeros(1))
