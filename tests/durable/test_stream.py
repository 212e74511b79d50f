"""A stream with a folder: resumes exactly, refuses what doesn't belong, loses nothing."""

from __future__ import annotations

import gc
import shutil
import sqlite3
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from talon_ocd import Catalog, Talon
from talon_ocd.durable import Draft, DurableStream, Event, Journal, Keep, Pictures, Request
from talon_ocd.durable import stream as durable_stream
from talon_ocd.durable.tidy import tidy
from talon_ocd.errors import CatalogError, ImageError, StorageError, StreamError, StreamInUseError
from talon_ocd.images import ImageItem, memory_item
from talon_ocd.online import Bounds
from tests import tiny

BOTH = "prototypes,encoder"


@lru_cache
def fitted() -> Talon:
    talon = tiny.tiny_talon(adapt_every=8, images=16)  # so few that a guard judges a step at the next adaptation
    talon.fit(tiny.labelled())
    return talon


Open = Callable[..., DurableStream]


@pytest.fixture(params=["evidence", "cosine, encoder"])
def open_stream(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Open the same folder again and again: by evidence, or by a threshold with both updates."""
    options = {"threshold": 0.7, "adapt": BOTH} if "encoder" in request.param else {}
    return lambda folder="stream", **more: fitted().stream(tmp_path / folder, **{**options, **more})


def ids(stream: DurableStream, items: list[ImageItem]) -> list[int]:
    """Answer images and wait for every snapshot: one that is due while another is written would be taken later."""
    answers = []
    for decision in stream.run(items):
        answers.append(decision.category)
        stream.wait_until_saved()
    return answers


def state(stream: DurableStream) -> dict[str, torch.Tensor]:
    return {name: value for name, value in stream.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_it_answers_as_a_stream_in_memory(open_stream: Open) -> None:
    items = tiny.incoming(60)
    with open_stream() as stream:
        durable = list(stream.run(items))
        by_cosine = stream.discovery.rule.name == "cosine"
        memory = fitted().stream(threshold=0.7, adapt=BOTH) if by_cosine else fitted().stream()
        assert durable == list(memory.run(items))
        assert same(state(stream), memory.state_dict())
        assert [stream.journal.decision(index) for index in range(60)] == durable


@pytest.mark.parametrize("cut", [1, 8, 13, 32])
def test_a_stream_that_is_closed_goes_on_as_if_it_had_not_been(open_stream: Open, cut: int) -> None:
    items = tiny.incoming(48)
    with open_stream("whole") as whole:
        wanted = ids(whole, items)
    with open_stream() as stream:
        first = ids(stream, items[:cut])
    with open_stream() as stream:
        assert first + ids(stream, items) == wanted
    with open_stream() as stream:
        assert ids(stream, items) == []
        assert stream.answered == 48


@pytest.mark.parametrize("after", [3, 8, 20, 47])
def test_a_journal_without_a_snapshot_leads_to_the_very_state(open_stream: Open, after: int) -> None:
    stream = open_stream()
    ids(stream, tiny.incoming(48)[:after])
    wanted = state(stream)
    stream.journal.close()  # as a killed process leaves it: no snapshot, no goodbye
    with open_stream() as again:
        assert same(state(again), wanted)


def test_snapshots_and_replay_lead_to_the_very_state(open_stream: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_stream, "SNAPSHOT_EVERY", 16)
    stream = open_stream()
    ids(stream, tiny.incoming(45))
    wanted, taken = state(stream), stream.snapshots.all()
    assert [snapshot.answered for snapshot in taken] == [32, 16]
    stream.journal.close()
    with open_stream() as again:
        assert same(state(again), wanted)


def test_a_replay_that_answers_otherwise_says_what_may_be_the_reason(open_stream: Open) -> None:
    stream = open_stream()
    ids(stream, tiny.incoming(8))
    connection = stream.journal._connection
    assert connection is not None
    connection.execute("UPDATE decisions SET category = category + 1 WHERE idx = 5")
    stream.journal.close()
    with pytest.raises(StreamError, match=r"Another version of talon-ocd wrote it.*rounds otherwise.*was changed"):
        open_stream()


@pytest.mark.parametrize("damage", ["torn", "changed", "gone", "empty"])
def test_a_damaged_snapshot_is_passed_over(open_stream: Open, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr(durable_stream, "SNAPSHOT_EVERY", 16)
    stream = open_stream()
    ids(stream, tiny.incoming(45))
    wanted, newest = state(stream), stream.snapshots.all()[0]
    stream.journal.close()
    file = stream.folder / "snapshots" / newest.file
    data = file.read_bytes()
    broken = {"torn": data[: len(data) // 2], "changed": data[:-4] + b"\x00\x01\x02\x03", "empty": b""}
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(broken[damage])
    with pytest.warns(UserWarning, match="damaged"), open_stream() as again:
        assert same(state(again), wanted)


def test_what_people_say_is_replayed_in_its_place(open_stream: Open) -> None:
    items = tiny.incoming(40)
    stream = open_stream()
    ids(stream, items[:20])
    first = stream.journal.decision(3)
    assert first is not None
    new = stream.memory.next_id
    said: list[Event] = []
    for moves in ([[3, first.category, new]], [[5, 0, 0]], [[3, new, -1]]):
        event = stream.journal.append(Draft("moved", None, {"moves": moves}, "ada"), stream.answered)
        stream.apply(event)
        said.append(event)
    ids(stream, items)
    stream.flush()
    stream.second_thoughts()
    wanted = state(stream)
    stream.journal.close()
    with open_stream() as again:
        assert same(state(again), wanted)
        assert again.memory.next_id > new


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


def test_corrections_while_the_stream_is_closed_are_learned_when_it_opens(open_stream: Open) -> None:
    with open_stream() as stream:
        ids(stream, tiny.incoming(20))
        before = state(stream)
    journal = Journal(stream.folder, write=True)
    journal.append(Draft("split", 0, {"into": 99, "moves": [[1, 0, 99], [2, 0, 99]]}), journal.answered)
    journal.close()
    with open_stream() as again:
        assert again.memory.slot(99) == again.memory.size - 1
        assert not same(state(again), before)


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


def test_a_roll_back_takes_learning_back_but_no_answer(open_stream: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_stream, "SNAPSHOT_EVERY", 16)
    items = tiny.incoming(60)
    with open_stream() as stream:
        answered = ids(stream, items[:40])
        target = stream.snapshots.all()[-1]
        assert target.answered == 16
        next_id, prototypes = stream.memory.next_id, stream.snapshots.read(target)
        retired = stream.roll_back(target.file)
        assert prototypes is not None
        assert torch.equal(stream.memory.prototypes, prototypes["discovery.memory.prototypes"])
        assert stream.answered == 40
        assert stream.memory.next_id == next_id
        later = ids(stream, items)
        assert not set(later) & set(retired)
        wanted = state(stream)
        assert [decision.category for index in range(40) if (decision := stream.journal.decision(index))] == answered
        stream.journal.close()
    with open_stream() as again:
        assert same(state(again), wanted)


def test_going_forward_again_revives_what_going_back_retired(
    open_stream: Open, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(durable_stream, "SNAPSHOT_EVERY", 16)
    finer = {"finer": 8.0} if request.node.callspec.params["open_stream"] == "evidence" else {}  # finds much, and late
    stream = open_stream(**finer)
    ids(stream, tiny.incoming(60))
    newest, *_, oldest = stream.snapshots.all()
    catalog = Catalog(stream.journal)
    retired = stream.roll_back(oldest.file)
    assert retired and all(catalog.get(category).state == "retired" for category in retired)
    stream.roll_back(newest.file)
    back = [category for category in retired if stream.memory.slot(category) is not None]
    assert back and all(catalog.get(category).state != "retired" for category in back)
    assert {event.category for event in stream.journal.events(kinds=("revived",))} == set(back)
    wanted, told = state(stream), len(stream.journal.events())
    stream.journal.close()
    with open_stream() as again:
        assert same(state(again), wanted)
        assert len(again.journal.events()) == told


def test_pictures_are_kept_for_people(open_stream: Open, tmp_path: Path) -> None:
    file = tiny.write_folder(tmp_path / "files", tiny.incoming(1)).rglob("*.png").__next__()
    data = file.read_bytes()
    with open_stream() as stream:
        stream.observe(file)
        stream.observe(data)
        assert stream.pictures.original(0) == (data, "image/png") == stream.pictures.original(1)
        assert (stream.pictures.thumbnail(1) or b"")[:2] == b"\xff\xd8"
        file.unlink()
        assert stream.pictures.original(0) is None
        assert stream.pictures.original(7) is None
        assert stream.pictures.thumbnail(7) is None


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stream.sqlite").write_bytes(b"something else " * 100)
    with pytest.raises(StreamError, match=r"no journal|can't be read"):
        fitted().stream(tmp_path)
    with pytest.raises(StreamError, match="no stream here"):
        Journal(tmp_path / "nowhere")


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    with fitted().stream(tmp_path):
        pass
    connection = sqlite3.connect(tmp_path / "stream.sqlite")
    connection.execute("PRAGMA user_version = 77")
    connection.close()
    with pytest.raises(StreamError, match="format version 77"):
        fitted().stream(tmp_path)


def test_old_snapshots_are_kept_the_sparser_the_older(tmp_path: Path) -> None:
    with fitted().stream(tmp_path) as stream:
        for answered in range(0, 6400, 64):
            stream.snapshots.take({"x": torch.zeros(1)}, answered, 0)
            stream.snapshots.thin()
        ages = [(6336 - snapshot.answered) // 64 for snapshot in stream.snapshots.all()]
        assert ages[:4] == [0, 1, 2, 3]
        assert 50 < max(ages) <= 99
        assert len(ages) < 12
        stream.snapshots.thin()


def test_readers_end_with_their_threads(open_stream: Open) -> None:
    with open_stream() as stream:
        ids(stream, tiny.incoming(2))
        for _ in range(5):
            thread = threading.Thread(target=lambda: stream.journal.query("SELECT 1"))
            thread.start()
            thread.join()
        gc.collect()
        assert len(stream.journal._readers) == 1


def test_an_upload_is_kept_as_long_as_any_answer_needs_it(tmp_path: Path) -> None:
    data = [item.load() for item in tiny.incoming(8)]
    files = []
    for number, picture in enumerate(data):
        picture.save(tmp_path / f"{number}.png")
        files.append((tmp_path / f"{number}.png").read_bytes())
    with fitted().stream(tmp_path / "s") as stream:
        stream.keep = Keep(features=3, thumbnails=3, originals=3, requests=3)
        for file in (*files, files[1], files[2]):
            stream.observe(file)
        founders = {row["first_idx"] for row in stream.journal.query("SELECT first_idx FROM categories")}
        tidy(stream.journal, stream.pictures, stream.answered, stream.keep)
        kept = {index for index in range(10) if stream.pictures.original(index) is not None}
        assert kept == {1, 2, 7, 8, 9} | (founders & set(range(10)))
        assert {index for index in range(10) if stream.pictures.thumbnail(index)} == {7, 8, 9} | (founders - {None})
        assert {index for index in range(10) if stream.journal.feature(index) is not None} >= {7, 8, 9}
        orphan = tmp_path / "s" / "images" / "ab" / ("ab" * 32)
        orphan.parent.mkdir(exist_ok=True)
        orphan.write_bytes(b"nobody waited for it")
    with fitted().stream(tmp_path / "s") as again:
        assert not orphan.exists()
        assert again.pictures.original(9) is not None


def test_a_state_that_can_not_be_taken_over_is_passed_over(open_stream: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_stream, "SNAPSHOT_EVERY", 16)
    stream = open_stream()
    ids(stream, tiny.incoming(40))
    wanted = state(stream)
    stream.snapshots.take({"nonsense": torch.zeros(1)}, 40, stream._disk.event)
    stream.journal.close()
    with pytest.warns(UserWarning, match="damaged"), open_stream() as again:
        assert same(state(again), wanted)


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


def test_corrections_survive_a_roll_back_and_undo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that a state never had can't be taken out of it."""
    monkeypatch.setattr(durable_stream, "SNAPSHOT_EVERY", 16)
    items = tiny.incoming(80)
    stream = fitted().stream(tmp_path)
    ids(stream, items[:24])
    catalog = Catalog(stream.journal, stream.apply)
    early = stream.snapshots.all()[0].file
    target = next(category for category in range(4) if catalog.get(category).count)
    others = [index for index in range(24) if (told := stream.journal.decision(index)) and told.category != target]
    moved = catalog.move(others, target)
    stream.roll_back(early)
    ids(stream, items[24:50])
    catalog.undo(moved.seq)
    ids(stream, items)
    stream.second_thoughts()
    wanted = state(stream)
    stream.close()
    with fitted().stream(tmp_path) as again:
        assert same(state(again), wanted)


def test_a_catalog_beside_an_open_stream_must_teach_it(open_stream: Open) -> None:
    with open_stream() as stream:
        ids(stream, tiny.incoming(4))
        with pytest.raises(CatalogError, match="would not hear"):
            Catalog(stream.journal).reject([1])
        Catalog(stream.journal).rename(0, "a name is no lesson")
        with pytest.raises(StreamError, match="observe_hidden"):
            stream.place(torch.zeros(1))


def test_damaged_pictures_are_put_aside(open_stream: Open) -> None:
    with open_stream() as stream:
        ids(stream, tiny.incoming(3))
    (stream.folder / "pictures.sqlite").write_bytes(b"no database" * 500)
    with pytest.warns(UserWarning, match="put aside"), open_stream() as again:
        assert again.answered == 3
        ids(again, tiny.incoming(5))
        assert again.pictures.thumbnail(4) is not None


def test_where_nobody_can_write_a_journal_is_read_whole_or_not_at_all(open_stream: Open, tmp_path: Path) -> None:
    """What a process that died has left beside the journal can't be read there, and was answered nevertheless."""
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "stream.sqlite-shm").symlink_to(tmp_path / "read-only" / "media")
    with open_stream() as begun:
        ids(begun, tiny.incoming(3))
    with open_stream() as stream:
        ids(stream, tiny.incoming(5))
        for name in ("stream.sqlite", "stream.sqlite-wal"):
            shutil.copyfile(stream.folder / name, copy / name)
        with pytest.raises(StreamError, match="newest answers are in this file"):
            Journal(copy)
    shutil.copyfile(stream.folder / "stream.sqlite", copy / "stream.sqlite")
    (copy / "stream.sqlite-wal").unlink()
    journal = Journal(copy)
    assert journal.answered == 5
    journal.close()


def test_pictures_that_can_not_be_opened_are_left_where_they_are(open_stream: Open) -> None:
    """A full disk, and media that nobody can write to: sqlite has no place for the file beside its own."""
    with open_stream() as stream:
        ids(stream, tiny.incoming(3))
    beside = stream.folder / "pictures.sqlite-wal"
    beside.mkdir()
    with pytest.raises(StorageError, match="look at permissions and space"):
        open_stream()
    journal = Journal(stream.folder)
    pictures = Pictures(journal)
    assert pictures.thumbnail(2) is not None and pictures.thumbnail(3) is None
    pictures.close()
    journal.close()
    beside.rmdir()
    with open_stream() as again:
        assert again.pictures.thumbnail(2) is not None


def test_who_only_reads_puts_no_pictures_aside(open_stream: Open) -> None:
    with open_stream() as stream:
        ids(stream, tiny.incoming(3))
    damaged = stream.folder / "pictures.sqlite"
    damaged.write_bytes(b"no database" * 500)
    journal = Journal(stream.folder)
    pictures = Pictures(journal)
    assert pictures.thumbnail(0) is None
    pictures.close()
    journal.close()
    assert damaged.read_bytes() == b"no database" * 500


def test_a_journal_that_is_closed_waits_for_a_query_of_another_thread(tmp_path: Path) -> None:
    """A snapshot's thread may still read: sqlite takes the whole process with it if it is closed under a query."""
    fitted().stream(tmp_path / "stream").close()
    journal = Journal(tmp_path / "stream", write=True)
    slow = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 300000) SELECT count(*) FROM c"
    found, begun = list[Any](), threading.Event()

    def read() -> None:
        journal.query("SELECT 1")
        begun.set()
        try:
            while True:
                found.append(journal.query(slow)[0][0])
        except StreamError as error:
            found.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    begun.wait(60)
    journal.close()
    thread.join(60)
    *counts, error = found
    assert not thread.is_alive() and set(counts) <= {300000} and "can't be read" in str(error)
