"""Streams of exact descriptors: against a dictionary of tuples, under splits, and across saving."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from talon_ocd.methods.codes import CodeStream
from talon_ocd.methods.hashing import sign_codes

KNOWN = 5
rows = st.lists(st.lists(st.sampled_from([-1.0, 0.0, 0.5]), min_size=3, max_size=3), max_size=30)


def stream() -> CodeStream:
    return CodeStream(nn.Identity(), KNOWN, sign_codes)


def values(chosen: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor(chosen).reshape(len(chosen), 3)


def slow_ids(chosen: Sequence[Sequence[float]]) -> list[int]:
    seen: list[tuple[bool, ...]] = []
    ids = []
    for row in chosen:
        code = tuple(value > 0 for value in row)
        if code not in seen:
            seen.append(code)
        ids.append(KNOWN + seen.index(code))
    return ids


@given(rows, st.lists(st.integers(0, 30), max_size=4))
@settings(deadline=None)
def test_ids_are_those_of_the_slow_twin_however_the_stream_is_cut(chosen: list[list[float]], cuts: list[int]) -> None:
    cut, hidden = stream(), values(chosen)
    ends = [0, *sorted(min(at, len(chosen)) for at in cuts), len(chosen)]
    answers = [cut.observe(hidden[start:end]) for start, end in pairwise(ends)]
    ids = [number for answer in answers for number in answer.ids.tolist()]
    founded = [flag for answer in answers for flag in answer.founded.tolist()]
    similarities = [value for answer in answers for value in answer.similarities.tolist()]
    assert ids == slow_ids(chosen)
    assert founded == [number not in ids[:at] for at, number in enumerate(ids)]
    assert similarities == [0.0 if new else 1.0 for new in founded]
    assert cut.size == KNOWN + len(set(ids))


@given(rows)
@settings(deadline=None)
def test_the_same_descriptor_is_the_same_id(chosen: list[list[float]]) -> None:
    ids = stream().observe(values(chosen)).ids
    bits = values(chosen).numpy() > 0
    assert np.array_equal(ids[:, None] == ids[None], (bits[:, None] == bits[None]).all(axis=2))


def test_looking_changes_nothing_and_answers_as_if_next() -> None:
    here = stream()
    here.observe(values([[1, -1, -1], [-1, -1, -1]]))
    for _ in range(2):
        answer = here.decide(values([[-1, 0, 0], [-1, 1, 1], [1, 1, 1]]))
        assert answer.ids.tolist() == [6, 7, 7]
        assert answer.founded.tolist() == [False, True, True]
        assert answer.runner_ups.tolist() == [-1, -1, -1]
    assert here.size == 7
    assert len(here.decide(values([]))) == 0


@given(rows, rows)
@settings(deadline=None)
def test_a_saved_stream_goes_on(before: list[list[float]], after: list[list[float]]) -> None:
    first, second = stream(), stream()
    first.observe(values(before))
    second.load_state_dict(first.state_dict())
    assert second.size == first.size
    assert second.observe(values(after)).ids.tolist() == first.observe(values(after)).ids.tolist()
    assert torch.equal(first.state_dict()["codes"], second.state_dict()["codes"])


def test_memory_grows_with_descriptors_and_not_with_images() -> None:
    here = stream()
    for _ in range(3):
        here.observe(torch.randn(2000, 3, generator=torch.Generator().manual_seed(0)))
    assert here.state_dict()["codes"].shape == (8, 1)
