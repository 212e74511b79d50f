"""Answers in sequence: a batch, a stream cut into calls and one image after another come to the same."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_ocd.online import EvidenceRule, FeatureStream
from tests.memory.test_prototypes import unit_rows
from tests.memory.worlds import TAILS
from tests.online.worlds import NOTHING, assert_same_answers, rows_of, world


@given(
    st.integers(0, 40),
    st.integers(1, 3),
    st.integers(0, 4),
    st.sampled_from(TAILS),
    st.sampled_from([-12.0, -3.0, -1.0, 0.0, 1.0, 30.0]),
    st.booleans(),
    st.sampled_from([0.25, 0.3, 1.0]),
    st.integers(0, 9999),
)
@settings(max_examples=200)
def test_a_batch_is_answered_as_if_one_by_one_and_as_by_the_slow_twin(
    images: int, known: int, new: int, tail: float, offset: float, learns: bool, weight: float, seed: int
) -> None:
    drawn = world(images, seed, known, new, tail, offset)
    together, alone = (drawn.rule(learns, answer_weight=weight) for _ in range(2))
    slow = replace(drawn.slow(learns), answer_weight=weight)
    batch = rows_of(together.assign(drawn.features, NOTHING))
    singles = [row for feature in drawn.features for row in rows_of(alone.assign(feature[None], NOTHING))]
    assert_same_answers(batch, [slow.observe(x) for x in drawn.coordinates()])
    assert_same_answers(batch, singles)
    for name, value in together.state_dict().items():
        np.testing.assert_allclose(value.numpy(), alone.state_dict()[name].numpy(), atol=1e-9, err_msg=name)
    members = [slow.members(category) for category in range(slow.size)]
    np.testing.assert_allclose(together.beliefs.counts, [sum(w for w, _ in rows) for rows in members], atol=1e-9)
    sums = [np.sum([w * np.array(x) for w, x in rows], axis=0) for rows in members]
    np.testing.assert_allclose(together.beliefs.sums, sums, atol=1e-9)


def test_long_batches_are_answered_in_sequence_too() -> None:
    drawn = world(400, 3, known=3, new=40, noise=0.15, offset=4.0)
    together, parts = drawn.rule(), drawn.rule()
    wanted = [row for part in drawn.features.split(7) for row in rows_of(parts.assign(part, NOTHING))]
    assert_same_answers(rows_of(together.assign(drawn.features, NOTHING)), wanted)
    assert sum(row[1] for row in wanted) > 10


def test_images_sorted_by_class_are_answered_in_sequence_too() -> None:
    """One class after another, all of them new: the answers to a batch hang together as closely as they can."""
    drawn = world(0, 5, known=2, new=6, noise=0.2)
    centres = unit_rows(8, 5, 5)[2:].repeat_interleave(20, dim=0)
    features = torch.nn.functional.normalize(centres + 0.2 * unit_rows(120, 5, 6), dim=1)
    together, alone = drawn.rule(), drawn.rule()
    wanted = [row for feature in features for row in rows_of(alone.assign(feature[None], NOTHING))]
    assert_same_answers(rows_of(together.assign(features, NOTHING)), wanted)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(0, 99))
@settings(max_examples=40)
def test_how_a_stream_is_cut_into_calls_does_not_matter(parts: list[int], seed: int) -> None:
    drawn = world(sum(parts), seed, new=4, noise=0.2)
    whole, cut = drawn.stream(every=2), drawn.stream(every=2)
    wanted = whole.observe_many(drawn.features)
    found = [decision for part in drawn.features.split(parts) for decision in cut.observe_many(part)]
    assert [decision.category for decision in found] == [decision.category for decision in wanted]
    assert isinstance(whole.rule, EvidenceRule) and isinstance(cut.rule, EvidenceRule)
    assert cut.rule.adaptations == whole.rule.adaptations == sum(parts) // 16
    assert cut.rule.answered == sum(parts)
    for mine, other in zip(cut.rule.recent.thoughts(), whole.rule.recent.thoughts(), strict=True):
        np.testing.assert_array_equal(mine, other)
    np.testing.assert_allclose(cut.rule.beliefs.sums, whole.rule.beliefs.sums, atol=1e-9)


@pytest.mark.parametrize("learns", [True, False])
def test_looking_changes_nothing_and_says_what_would_be_answered_next(learns: bool) -> None:
    drawn = world(60, 1)
    rule = drawn.rule(learns)
    rule.assign(drawn.features[:40], NOTHING)
    before = rule.state_dict()
    looks = rows_of(rule.look(drawn.features[40:], NOTHING))
    assert looks == rows_of(rule.look(drawn.features[40:], NOTHING))
    assert all(torch.equal(value, before[name]) for name, value in rule.state_dict().items())
    assert_same_answers(looks[:1], rows_of(rule.assign(drawn.features[40:41], NOTHING)))


def test_no_images_get_no_answers() -> None:
    rule = world(0).rule()
    before = rule.state_dict()
    assert len(rule.assign(torch.empty(0, 5), NOTHING)) == len(rule.look(torch.empty(0, 5), NOTHING)) == 0
    assert all(torch.equal(value, before[name]) for name, value in rule.state_dict().items())


def test_streams_of_one_model_never_meet() -> None:
    drawn = world(30, 0)
    first = rows_of(drawn.rule().assign(drawn.features, NOTHING))
    assert rows_of(drawn.rule().assign(drawn.features, NOTHING)) == first
    moved = drawn.evidence.with_offset(7.0)
    assert (moved.offset, drawn.evidence.offset) == (7.0, 0.0)


def test_prototypes_move_only_if_the_encoder_learns_which_follows_them() -> None:
    drawn = world(64, 5, known=3, new=2)
    alone, followed = drawn.stream(), drawn.stream()
    followed = FeatureStream(
        followed.memory, replace(followed.config, adapt=("prototypes", "encoder")), rule=drawn.rule()
    )
    for stream in (alone, followed):
        before = stream.memory.prototypes.clone()
        stream.observe_many(drawn.features)
        assert torch.equal(stream.memory.prototypes[:3], before) == (stream is alone)
        assert stream.memory.counts.sum() == 64
    assert not any(name.startswith("groups.") for name in alone.state_dict())
    begun = drawn.stream()  # earlier versions had groups by evidence, too
    begun.load_state_dict(
        {**alone.state_dict(), "groups.pending_ids": torch.zeros(1), "groups.pending_features": torch.zeros(1, 5)}
    )
    assert not any(name.startswith("groups.") for name in begun.state_dict())
