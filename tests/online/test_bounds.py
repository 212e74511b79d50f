"""Retired categories, corrections by people, and going back: ids outlive all of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from talon_ocd import PrototypeMemory
from talon_ocd.config import OnlineConfig
from talon_ocd.embeddings import feature_stream
from talon_ocd.errors import ConfigError
from talon_ocd.online import Bounds, EvidenceRule, FeatureStream, unit

D = 16


def clusters(number: int, members: int, seed: int, spread: float = 0.15) -> tuple[Tensor, np.ndarray]:
    random = np.random.default_rng(seed)
    centres = np.linalg.qr(random.normal(size=(D, D)))[0][:number]
    labels = np.repeat(np.arange(number), members)
    raw = centres[labels] + spread * random.normal(size=(len(labels), D))
    return unit(torch.from_numpy(raw.astype(np.float32))), labels


def open_stream(kind: str, bounds: Bounds | None = None) -> FeatureStream:
    """A stream that knows four of sixteen clusters."""
    features, labels = clusters(4, 12, seed=1)
    if kind == "cosine":
        means = torch.stack([features[labels == label].mean(dim=0) for label in range(4)])
        return FeatureStream(PrototypeMemory(means), OnlineConfig(threshold=0.6, adapt_every=8), bounds=bounds)
    stream = feature_stream(features, labels)
    assert isinstance(stream.rule, EvidenceRule)
    stream.config = OnlineConfig(adapt_every=8)
    stream.bounds = bounds or Bounds()
    return stream


def incoming(number: int, seed: int = 2) -> Tensor:
    features, _ = clusters(16, number, seed=1)
    return features[torch.from_numpy(np.random.default_rng(seed).permutation(len(features)))][:number]


KINDS = pytest.mark.parametrize("kind", ["cosine", "evidence"])


@KINDS
@given(most=st.integers(1, 12), retire_after=st.sampled_from([0, 10, 40]), seed=st.integers(0, 50))
@settings(deadline=None, max_examples=8)
def test_ids_are_never_given_twice(kind: str, most: int, retire_after: int, seed: int) -> None:
    stream = open_stream(kind, Bounds(most, tentative_below=3, retire_after=retire_after))
    answers = stream.observe_many(incoming(120, seed))
    founded = [answer.category for answer in answers if answer.verdict == "new"]
    assert founded == list(range(4, 4 + len(founded)))
    assert stream.memory.next_id == 4 + len(founded)
    assert stream.memory.size <= 4 + most + 8  # more come until the next adaptation
    assert stream.memory.ids[:4].tolist() == [0, 1, 2, 3]
    last = {answer.category: answer.index for answer in answers}
    assert stream.memory.last.tolist() == [last.get(category, -1) for category in stream.memory.ids.tolist()]


@KINDS
def test_nothing_is_retired_that_is_within_bounds(kind: str) -> None:
    plain, bounded = open_stream(kind), open_stream(kind, Bounds(most_categories=50, retire_after=10_000))
    features = incoming(150)
    assert plain.observe_many(features) == bounded.observe_many(features)


@KINDS
def test_a_retired_category_is_not_answered_again(kind: str) -> None:
    stream = open_stream(kind, Bounds(most_categories=1))
    seen: set[int] = set()
    for feature in incoming(200):
        answer = stream.observe(feature)
        assert answer.category not in seen
        alive = set(stream.memory.ids.tolist())
        seen |= {category for category in range(stream.memory.next_id) if category not in alive}
    assert len(seen) > 1


@KINDS
def test_a_stream_goes_on_from_its_state_after_retirement(kind: str) -> None:
    bounds = Bounds(most_categories=4, retire_after=30)
    whole, first, second = (open_stream(kind, bounds) for _ in range(3))
    features = incoming(160)
    wanted = whole.observe_many(features)
    begun = first.observe_many(features[:77])
    second.load_state_dict(first.state_dict())
    answers = begun + second.observe_many(features[77:])
    assert [answer.category for answer in answers] == [answer.category for answer in wanted]
    similarities = [answer.similarity for answer in wanted]  # sums over other batches may round otherwise
    assert [answer.similarity for answer in answers] == pytest.approx(similarities, rel=1e-9)


def test_the_weakest_and_least_recent_go_first() -> None:
    memory = PrototypeMemory(torch.eye(8), known=2)
    memory.count(torch.tensor([3, 3, 4, 5, 6, 6, 7, 2]))  # 2 has one and is the newest; 4, 5, 7 have one
    kept = Bounds(most_categories=4).kept(memory, 8)
    assert kept.tolist() == [0, 1, 2, 3, 6]
    assert Bounds(tentative_below=2, retire_after=3).kept(memory, 8).tolist() == [0, 1, 2, 3, 6, 7]


@pytest.mark.parametrize("wrong", [{"most_categories": 0}, {"tentative_below": 0}, {"retire_after": -1}])
def test_senseless_bounds_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Bounds(**wrong)


def test_a_moved_image_leaves_one_category_and_joins_another() -> None:
    stream = open_stream("evidence")
    features = incoming(40)
    answers = stream.observe_many(features)
    assert isinstance(stream.rule, EvidenceRule)
    beliefs = stream.rule.beliefs
    before, counts = beliefs.sums.copy(), beliefs.counts.copy()
    category = answers[30].category
    other = (category + 1) % 4
    home = stream.rule.recent.thoughts()[2][30]  # second thoughts may have moved it
    stream.correct(30, features[30], category, other)
    left, joined = beliefs.weights(np.array([home, other])).tolist()
    assert {left, joined} <= {0.25, 1.0}  # in a known class an answer counts less than a labelled image
    assert beliefs.counts[home] == counts[home] - left
    assert beliefs.counts[other] == counts[other] + joined
    stream.correct(30, features[30], other, int(stream.memory.ids[home]))
    np.testing.assert_allclose(beliefs.sums, before, atol=1e-9)
    assert np.array_equal(beliefs.counts, counts)
    stream.second_thoughts()
    assert stream.rule.recent.thoughts()[2][30] == -1  # a person has spoken


@KINDS
def test_corrections_teach(kind: str) -> None:
    """Images of one cluster that a person brings together make a category that the next ones join."""
    stream = open_stream(kind)
    features, labels = clusters(16, 12, seed=1)
    stream.observe_many(features[labels < 9])
    own = features[labels == 9]
    first = [stream.observe(feature) for feature in own[:9]]
    new = stream.memory.next_id
    for answer, feature in zip(first, own[:9], strict=True):
        stream.correct(answer.index, feature, answer.category, new)
    assert [stream.decide(feature).category for feature in own[9:]] == [new] * 3
    assert stream.memory.next_id == new + 1


@KINDS
def test_a_rejected_image_counts_nowhere(kind: str) -> None:
    stream = open_stream(kind)
    features = incoming(20)
    answers = stream.observe_many(features)
    stream.correct(3, features[3], answers[3].category, None)
    assert stream.memory.counts.sum() == 19
    stream.correct(3, features[3], None, 2)
    assert stream.memory.counts.sum() == 20


@KINDS
def test_a_retired_category_can_live_again(kind: str) -> None:
    stream = open_stream(kind, Bounds(most_categories=1))
    features = incoming(80)
    answers = stream.observe_many(features)
    alive = set(stream.memory.ids.tolist())
    gone = next(answer for answer in answers if answer.category not in alive)
    next_id = stream.memory.next_id
    stream.correct(gone.index, features[gone.index], None, gone.category)
    assert stream.memory.slot(gone.category) == stream.memory.size - 1
    assert stream.memory.next_id == next_id
    assert stream.decide(features[gone.index]).category == gone.category


@KINDS
def test_going_back_keeps_answers_and_ids(kind: str) -> None:
    stream, alone = open_stream(kind), open_stream(kind)
    features = incoming(120)
    stream.observe_many(features[:40])
    state = {name: value.clone() for name, value in stream.state_dict().items()}
    stream.observe_many(features[40:])
    next_id = stream.memory.next_id
    gone = stream.go_back(state)
    assert stream.answered == 120
    assert stream.memory.next_id == next_id
    assert gone == list(range(int(state["memory.next_id"]), next_id))
    alone.load_state_dict(state)
    assert torch.equal(stream.memory.prototypes, alone.memory.prototypes)
    thoughts = stream.second_thoughts()
    assert thoughts is None or not thoughts.moves


def test_one_rejected_image_does_not_undo_a_known_class() -> None:
    stream = open_stream("cosine")
    feature = clusters(4, 12, seed=5)[0][0]
    stream.memory.count(torch.tensor([0]))
    before = stream.memory.prototypes[0].clone()
    stream.correct(0, feature, 0, None)
    assert float(before @ stream.memory.prototypes[0]) > 0.99


def test_a_category_that_lost_its_only_image_stays_where_it_was() -> None:
    stream = open_stream("cosine")
    feature = unit(torch.ones(1, D))[0]
    founded = stream.observe(feature).category
    before = stream.memory.prototypes[stream.memory.size - 1].clone()
    stream.correct(0, feature.half().float(), founded, 0)
    assert torch.equal(stream.memory.prototypes[stream.memory.size - 1], before)
    stream.correct(0, feature, 0, founded)
    assert torch.allclose(stream.memory.prototypes[stream.memory.size - 1], feature)
