"""A restart comes to the very state: from snapshots, from the journal, with all that people said and went back to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from talon_ocd import Catalog
from talon_ocd.durable import Draft, Event, Journal
from talon_ocd.durable import stream as durable_stream
from talon_ocd.errors import StreamError
from tests import tiny
from tests.durable.worlds import Open, fitted, ids, same, state


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


def test_what_people_moved_is_in_the_snapshot_and_not_done_again(open_stream: Open) -> None:
    with open_stream() as stream:
        answers = ids(stream, tiny.incoming(20))
        moves = [[5, answers[5], (answers[5] + 1) % 4]]
        stream.apply(stream.journal.append(Draft("moved", None, {"moves": moves}), stream.answered))
        wanted = state(stream)
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


def test_a_state_that_can_not_be_taken_over_is_passed_over(open_stream: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_stream, "SNAPSHOT_EVERY", 16)
    stream = open_stream()
    ids(stream, tiny.incoming(40))
    wanted = state(stream)
    stream.snapshots.take({"nonsense": torch.zeros(1)}, 40, stream._disk.event)
    stream.journal.close()
    with pytest.warns(UserWarning, match="damaged"), open_stream() as again:
        assert same(state(again), wanted)


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
