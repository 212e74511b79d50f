"""Hamming balls against a twin that compares bit by bit, in order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from talon_ocd.methods.phe_stream import Alphabet, CodeList, HammingStream

Code = tuple[int, ...]


def differing(code: Code, listed: Code) -> int:
    return sum(bit != other for bit, other in zip(code, listed, strict=True))


def twin(centres: list[Code], queries: list[Code], radius: int, alphabet: Alphabet) -> list[int]:
    """Exact match first, then the nearest within the radius, the first of equals; else a new category."""
    signs = {0: -1, 1: 1} if alphabet == "legacy" else {0: 0, 1: 1}
    listed = [tuple(signs[bit] for bit in centre) for centre in centres]
    ids = []
    for query in queries:
        if query in listed:
            ids.append(listed.index(query))
            continue
        away = [differing(query, code) for code in listed]
        if away and min(away) <= radius:
            ids.append(away.index(min(away)))
        else:
            ids.append(len(listed))
            listed.append(query)
    return ids


def raw(codes: list[Code], bits: int) -> torch.Tensor:
    """Raw codes with these bits; a zero counts as not positive."""
    return torch.tensor(codes, dtype=torch.float32).reshape(len(codes), bits) * 3.0


@st.composite
def scenes(draw: st.DrawFn) -> tuple[int, list[Code], list[Code], int]:
    bits = draw(st.integers(2, 7))
    code = st.tuples(*[st.integers(0, 1)] * bits)
    return (
        bits,
        draw(st.lists(code, min_size=1, max_size=5)),
        draw(st.lists(code, max_size=25)),
        draw(st.integers(1, bits // 2 + 1)),
    )


@given(scenes(), st.sampled_from(["same", "legacy"]))
def test_every_answer_is_the_twins(scene: tuple[int, list[Code], list[Code], int], alphabet: Alphabet) -> None:
    bits, centres, queries, radius = scene
    stream = HammingStream(nn.Identity(), raw(centres, bits), radius, alphabet)
    answers = stream.observe(raw(queries, bits))
    assert answers.ids.tolist() == twin(centres, queries, radius, alphabet)
    assert stream.size == len(centres) + int(answers.founded.sum())


@given(scenes(), st.integers(0, 25))
def test_a_stream_goes_on_from_its_state(scene: tuple[int, list[Code], list[Code], int], cut: int) -> None:
    bits, centres, queries, radius = scene
    whole, first, rest = (HammingStream(nn.Identity(), raw(centres, bits), radius) for _ in range(3))
    before = first.observe(raw(queries[:cut], bits)).ids.tolist()
    rest.load_state_dict(first.state_dict())
    after = rest.observe(raw(queries[cut:], bits)).ids.tolist()
    assert before + after == whole.observe(raw(queries, bits)).ids.tolist()


def test_the_reference_distance_of_the_legacy_alphabet() -> None:
    centre, query = np.array([[0, 1, 1, 0]], np.float32), np.array([0, 1, 1, 0], np.float32)
    assert CodeList(centre, "legacy").distances(query).tolist() == [2.0]
    assert CodeList(centre, "same").distances(query).tolist() == [0.0]


def test_new_categories_attract_later_images_and_looking_changes_nothing() -> None:
    stream = HammingStream(nn.Identity(), raw([(0,) * 8], 8), radius=2)
    new, near_new = raw([(1,) * 8], 8), raw([(1,) * 6 + (0,) * 2], 8)
    assert stream.decide(new).ids.tolist() == stream.decide(near_new).ids.tolist() == [1]
    assert stream.size == 1
    answers = stream.observe(torch.cat([new, near_new]))
    assert answers.ids.tolist() == [1, 1] and answers.founded.tolist() == [True, False]
    assert answers.similarities.tolist() == [0.0, 0.75] and stream.threshold == 0.75
    assert answers.runner_ups.tolist() == [0, 0] and answers.runner_up_similarities.tolist() == [0.0, 0.25]


def test_known_classes_with_one_code_keep_their_ids() -> None:
    stream = HammingStream(nn.Identity(), raw([(1, 0, 0, 0)] * 3, 4), radius=1)
    assert stream.observe(raw([(1, 0, 0, 0), (0, 1, 1, 1)], 4)).ids.tolist() == [0, 3]


@pytest.mark.parametrize("bits", [12, 64])
def test_thousands_of_codes_take_seconds_at_most(bits: int) -> None:
    draws = torch.Generator().manual_seed(0)
    codes = torch.randn(5000, bits, generator=draws)
    stream = HammingStream(nn.Identity(), codes[:100], radius=1)
    stream.observe(codes)
    assert stream.size > (4000 if bits == 64 else 300)
    assert stream.clock.seconds["decide"] < 5.0
