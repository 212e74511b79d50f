"""Lists of prototypes in 8 bits: each in the right list, none lost, the same lists for the same calls."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_ocd.errors import DataError
from talon_ocd.memory import lists
from talon_ocd.memory.codes import Codes, two_centres, whole_numbers
from talon_ocd.memory.lists import Lists
from talon_ocd.memory.search import Ints

SIZE = 16
Rows = npt.NDArray[np.float32]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "LONG", 20)


def unit_rows(count: int, seed: int, size: int = SIZE) -> Rows:
    wide = np.random.default_rng(seed).standard_normal((count, size))
    rows: Rows = (wide / np.linalg.norm(wide, axis=1, keepdims=True)).astype(np.float32)
    return rows


def filled(rows: Rows, step: int = 50) -> Lists:
    found = Lists(rows.shape[1])
    for start in range(0, len(rows), step):
        found.add(rows[start : start + step])
    return found


def whole(found: Lists, rows: Rows) -> None:
    """Check that every prototype is in one list, in its place, with its own numbers, and that no list is empty."""
    seen = sorted(slot for members in found._lists for slot in members.slots.tolist())
    assert len(found) == len(rows)
    assert seen == list(range(len(rows)))
    codes, scales = whole_numbers(rows)
    for number, members in enumerate(found._lists):
        assert len(members.slots)
        assert (np.diff(members.slots) > 0).all()
        assert (found._homes[members.slots] == number).all()
        assert np.array_equal(members.codes, codes[members.slots])
        assert np.array_equal(members.scales, scales[members.slots])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.data())
def test_nobody_is_lost_whatever_happens(seed: int, data: st.DataObject) -> None:
    found, rows = Lists(SIZE), unit_rows(0, 0)
    for turn in range(data.draw(st.integers(1, 8), "turns")):
        new = unit_rows(data.draw(st.integers(1, 80), "new"), seed + turn)
        found.add(new)
        rows = np.concatenate([rows, new])
        random = np.random.default_rng(seed + turn)
        moved = random.permutation(len(rows))[: data.draw(st.integers(0, 30), "moved")]
        rows[moved] = unit_rows(len(moved), seed - turn + 20_000)
        found.move(moved, rows[moved])
        kept = np.flatnonzero(random.random(len(rows)) < data.draw(st.sampled_from([0.0, 0.4, 0.95, 1.0]), "kept"))
        rows = rows[kept]
        found.keep(kept)
        found.move(kept[:0], rows[:0])
        whole(found, rows)


def test_only_what_is_too_long_by_now_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that was too long may have lost members to the one that was split before it."""
    lengths = []

    def noted(codes: Codes) -> Ints | None:
        lengths.append(len(codes))
        return two_centres(codes)

    monkeypatch.setattr(lists, "two_centres", noted)
    filled(unit_rows(3000, 1), step=400)
    assert len(lengths) > 100
    assert min(lengths) > lists.LONG


def test_nearly_all_are_in_the_list_of_the_nearest_centre() -> None:
    rows = unit_rows(3000, 1)
    found = filled(rows)
    nearest = found._nearest(whole_numbers(rows)[0])
    assert (nearest == found._homes[: len(rows)]).mean() > 0.9
    assert max(len(members.slots) for members in found._lists) <= lists.LONG
    assert len(found._lists) < 3000 / lists.LONG * 3


def test_all_lists_together_find_the_nearest() -> None:
    rows, features = unit_rows(500, 1), unit_rows(40, 2)
    found = filled(rows).nearest(features, 10_000, 8)
    assert ((features @ rows.T).argmax(axis=1)[:, None] == found).any(axis=1).all()


def test_fewer_members_than_candidates_occur_twice() -> None:
    found = filled(unit_rows(3, 0)).nearest(unit_rows(4, 1), 5, 8)
    assert found.shape == (4, 8)
    assert {frozenset(row) for row in found.tolist()} == {frozenset({0, 1, 2})}
    assert (Lists(SIZE).nearest(unit_rows(4, 1), 5, 8) == -1).all()


def test_little_room_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found, features = filled(unit_rows(500, 0)), unit_rows(30, 1)
    at_once = found.nearest(features, 4, 8)
    monkeypatch.setattr(lists, "AT_A_TIME", 1)
    assert np.array_equal(found.nearest(features, 4, 8), at_once)


def test_equal_prototypes_are_no_trouble() -> None:
    rows = np.repeat(unit_rows(2, 0), 60, axis=0)
    found = filled(rows)
    whole(found, rows)
    assert found.nearest(rows[-1:], 1, 1)[0, 0] >= 60


def test_a_list_that_can_not_be_parted_is_not_tried_at_every_insert(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def noted(codes: Codes) -> Ints | None:
        tried.append(len(codes))
        return two_centres(codes)

    monkeypatch.setattr(lists, "two_centres", noted)
    equal, others = np.repeat(unit_rows(1, 0), 1000, axis=0), unit_rows(1000, 1)
    found = filled(equal, step=5)
    assert tried == [25, 45, 85, 165, 325, 645], "beyond 20 of them, and whenever that has doubled"
    found.add(others)
    found.add(others)
    whole(found, np.concatenate([equal, others, others]))
    assert len(found._lists) > 2


def test_the_same_calls_give_the_same_lists_and_so_does_a_saved_one() -> None:
    rows = unit_rows(900, 0)
    one, other = filled(rows[:600]), filled(rows[:600])
    saved = Lists.from_state_dict(one.state_dict(), torch.from_numpy(rows[:700]))
    for found in (one, other, saved):
        found.add(rows[600:])
        found.move(np.arange(0, 600, 7), rows[np.arange(600, 0, -7) % 600][: len(range(0, 600, 7))])
    state = one.state_dict()
    for found in (other, saved):
        assert all(torch.equal(value, found.state_dict()[name]) for name, value in state.items())
        assert np.array_equal(found.nearest(rows[:50], 3, 8), one.nearest(rows[:50], 3, 8))


def test_a_saved_index_of_another_memory_is_refused() -> None:
    rows = unit_rows(60, 0)
    state = filled(rows).state_dict()
    for others in (rows[:59], rows[:, :8]):
        with pytest.raises(DataError, match=r"60 prototypes in .* lists does not belong to"):
            Lists.from_state_dict(state, torch.from_numpy(np.ascontiguousarray(others)))
    with pytest.raises(DataError, match="does not belong to"):
        Lists.from_state_dict({**state, "lists": state["lists"] + 100}, torch.from_numpy(rows))


def test_two_centres_part_what_lies_apart() -> None:
    first, second = (np.repeat(unit_rows(1, seed), 30, axis=0) + 0.05 * unit_rows(30, seed + 2) for seed in (0, 1))
    centres = two_centres(whole_numbers(np.concatenate([first, second]))[0])
    assert centres is not None
    sides = (np.concatenate([first, second]) @ whole_numbers(centres)[0].T).argmax(axis=1)
    assert len(set(sides[:30])) == len(set(sides[30:])) == 1
    assert sides[0] != sides[-1]
    assert two_centres(np.ones((30, SIZE), np.int8)) is None


@given(st.integers(1, 30), st.integers(0, 10_000))
def test_whole_numbers_keep_the_direction(size: int, seed: int) -> None:
    rows = unit_rows(20, seed, size)
    codes, scales = whole_numbers(rows)
    assert np.abs(codes).max() == 127
    cosines = np.einsum("nd,nd->n", rows.astype(np.float64), codes * scales[:, None].astype(np.float64))
    assert (cosines > 0.9999).all()
