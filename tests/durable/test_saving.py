"""Snapshots are written while answers go on."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from talon_ocd.durable import DurableStream
from talon_ocd.durable import stream as durable_stream
from talon_ocd.durable.snapshots import Snapshot, Snapshots
from talon_ocd.errors import StorageError
from tests import tiny
from tests.durable.worlds import fitted, ids


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_stream, "SNAPSHOT_EVERY", 16)


def copied(stream: DurableStream) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in stream.state_dict().items()}


def test_answers_do_not_wait_for_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = fitted().stream(tmp_path)
    begun, go_on, take = threading.Event(), threading.Event(), stream.snapshots.take

    def slow(state: dict[str, Tensor], answered: int, event: int) -> Snapshot:
        begun.set()
        assert go_on.wait(30)
        return take(state, answered, event)

    monkeypatch.setattr(stream.snapshots, "take", slow)
    items = tiny.incoming(64)
    stream.observe_many(items[:16])
    wanted = copied(stream)
    assert begun.wait(30)
    stream.observe_many(items[16:52])  # the disk is still busy with the first sixteen, and two more are due
    assert stream.answered == 52
    assert stream.snapshots.all() == []
    go_on.set()
    stream.wait_until_saved()
    (taken,) = stream.snapshots.all()
    written = stream.snapshots.read(taken)
    assert taken.answered == 16
    assert written is not None and all(torch.equal(written[name], wanted[name]) for name in wanted)
    stream.observe_many(items[52:])  # what was due is written at the next adaptation
    stream.wait_until_saved()
    assert [snapshot.answered for snapshot in stream.snapshots.all()] == [56, 16]
    stream.close()
    with fitted().stream(tmp_path) as again:
        assert [snapshot.answered for snapshot in again.snapshots.all()] == [64, 56, 16]


def test_a_stream_that_is_killed_while_the_disk_is_behind_replays_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = fitted().stream(tmp_path)
    stream.observe_many(tiny.incoming(64)[:16])
    stream.wait_until_saved()
    begun, go_on = threading.Event(), threading.Event()

    def never(state: dict[str, Tensor], answered: int, event: int) -> Snapshot:
        begun.set()
        assert go_on.wait(30)
        raise StorageError("the process is dead.")

    monkeypatch.setattr(stream.snapshots, "take", never)
    stream.observe_many(tiny.incoming(64)[16:])
    assert begun.wait(30) and [snapshot.answered for snapshot in stream.snapshots.all()] == [16]
    wanted = copied(stream)
    stream.journal.close()
    go_on.set()
    with fitted().stream(tmp_path) as again:
        found = again.state_dict()
        assert again.answered == 64 and all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_snapshot_that_can_not_be_written_is_tried_again(tmp_path: Path) -> None:
    stream = fitted().stream(tmp_path)
    shutil.rmtree(tmp_path / "snapshots")
    with pytest.warns(UserWarning, match="Nothing is lost"):
        wanted = ids(stream, tiny.incoming(20))
    (tmp_path / "snapshots").mkdir()
    stream.close()
    with fitted().stream(tmp_path) as again:
        assert [snapshot.answered for snapshot in again.snapshots.all()] == [20]
        assert again.answered == len(wanted) == 20


def test_another_number_of_threads_counts_from_a_snapshot_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    with fitted().stream(tmp_path) as stream:
        ids(stream, tiny.incoming(20))

    def full(*words: object) -> Snapshot:
        raise StorageError("no space left.")

    try:
        torch.set_num_threads(before + 1)
        with monkeypatch.context() as patch, pytest.warns(UserWarning, match="Nothing is lost"):
            patch.setattr(Snapshots, "take", full)
            with fitted().stream(tmp_path) as stream:
                assert torch.get_num_threads() == before == stream.journal.meta("threads")
        torch.set_num_threads(before + 1)
        with fitted().stream(tmp_path) as stream:
            assert torch.get_num_threads() == before + 1 == stream.journal.meta("threads")
    finally:
        torch.set_num_threads(before)
