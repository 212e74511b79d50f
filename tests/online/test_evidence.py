import sys
from dataclasses import dataclass, replace
from itertools import combinations
from math import log
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from talon_ocd.config import EvidenceConfig, OnlineConfig
from talon_ocd.errors import DataError
from talon_ocd.memory import PrototypeMemory, TwoCovariance
from talon_ocd.online import Assignment, Evidence, EvidenceRule, FeatureStream
from tests.memory.test_prototypes import unit_rows
from tests.memory.worlds import TAILS, counts_and_sums
from tests.twins.evidence import SlowEvidence
from tests.twins.two_covariance import log_odds, same

NOTHING = PrototypeMemory(torch.empty(0, 5))
"""The rule has its own memory of categories."""
Row = tuple[int, bool, float, int, float]


@dataclass(frozen=True)
class World:
    """Unit features of known and of other classes, and what the labelled ones say."""

    evidence: Evidence
    labelled: list[list[list[float]]]
    means: Tensor
    features: Tensor

    def rule(self, learns: bool = True, **settings: Any) -> EvidenceRule:
        return EvidenceRule(self.evidence, EvidenceConfig(**settings), learns)

    def slow(self, learns: bool = True, keep: int = 8192) -> SlowEvidence:
        model = self.evidence.model
        offset = self.evidence.offset
        return SlowEvidence(self.labelled, model.psi.tolist(), model.tail, offset, learns=learns, keep=keep)

    def coordinates(self) -> list[list[float]]:
        return [self.evidence.model.coordinates(feature[None])[0].tolist() for feature in self.features]

    def stream(self, learns: bool = True, adapt_every: int = 16, **settings: Any) -> FeatureStream:
        config = OnlineConfig(adapt=("prototypes",) if learns else (), adapt_every=adapt_every)
        return FeatureStream(PrototypeMemory(self.means), config, rule=self.rule(learns, **settings))


def world(
    images: int, seed: int = 0, known: int = 2, new: int = 2, tail: float = 9.0, offset: float = 0.0, noise: float = 0.3
) -> World:
    """Classes of 5-dimensional features around random directions; three labelled images of each known one."""
    random = torch.Generator().manual_seed(seed)
    centres = unit_rows(known + new, 5, seed)

    def members(classes: Tensor) -> Tensor:
        rows = centres[classes] + noise * torch.randn(len(classes), 5, generator=random)
        return torch.nn.functional.normalize(rows, dim=1)

    labelled = members(torch.arange(known).repeat_interleave(3))
    features = members(torch.randint(known + new, (images,), generator=random))
    directions = np.linalg.qr(np.random.default_rng(seed).normal(size=(5, 3)))[0]
    model = TwoCovariance(np.full(5, 0.02), directions / noise, np.array([2.0, 1.0, 0.5]) * 0.2 / noise**2, tail)
    parts = np.split(model.coordinates(labelled), known)
    evidence = Evidence(model, *counts_and_sums(parts), offset)
    return World(evidence, [part.tolist() for part in parts], labelled.view(known, 3, 5).mean(dim=1), features)


def rows_of(answers: Assignment) -> list[Row]:
    columns = (
        answers.ids, answers.founded, answers.similarities, answers.runner_ups, answers.runner_up_similarities,
    )  # fmt: skip
    return list(zip(*(column.tolist() for column in columns), strict=True))


def assert_same_answers(found: list[Row], wanted: list[Row]) -> None:
    assert [(row[0], row[1], row[3]) for row in found] == [(row[0], row[1], row[3]) for row in wanted]
    for place in (2, 4):
        np.testing.assert_allclose([row[place] for row in found], [row[place] for row in wanted], atol=1e-8)


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


@given(st.integers(0, 40), st.booleans(), st.integers(3, 40), st.sampled_from([0, 5, 1024]), st.integers(0, 9999))
@settings(max_examples=40)
def test_a_stream_with_second_thoughts_is_that_of_the_slow_twin(
    images: int, learns: bool, keep: int, newest: int, seed: int
) -> None:
    drawn = world(images, seed, new=4, noise=0.2)
    stream = drawn.stream(learns, adapt_every=4, keep=keep, every=3, newest=newest, regroup=0)
    slow = drawn.slow(learns, keep)
    wanted = []
    for number, x in enumerate(drawn.coordinates(), 1):
        wanted.append(slow.observe(x))
        if learns and number % 4 == 0 and (newest or number % 12 == 0):
            slow.think_again(2, slow.hurdle, newest if number % 12 else 8192)
    found = stream.observe_many(drawn.features)
    assert [decision.category for decision in found] == [row[0] for row in wanted]
    np.testing.assert_allclose([decision.similarity for decision in found], [row[2] for row in wanted], atol=1e-5)
    assert isinstance(stream.rule, EvidenceRule)
    if learns:
        first = max(images - keep, 0)
        positions, answers, homes = (part.tolist() for part in stream.rule.recent.thoughts())
        assert positions == list(range(first, images))
        assert (answers, homes) == (slow.answers[first:], slow.homes[first:])


def test_second_thoughts_of_such_streams_move_images() -> None:
    moved = 0
    for seed in range(5):
        drawn = world(40, seed, new=4, noise=0.2)
        stream = drawn.stream(adapt_every=4, every=3)
        stream.observe_many(drawn.features)
        thoughts = stream.second_thoughts()
        assert thoughts is not None and thoughts.remembered == 40
        moved += len(thoughts.moves)
    assert moved > 5


def test_images_are_grouped_anew_when_second_thoughts_have_doubled_in_number() -> None:
    class Counting(EvidenceRule):
        at: ClassVar[list[int]] = []

        def regroup(self) -> int:
            self.at.append(self.adaptations + 1)
            return super().regroup()

    drawn = world(4, 0)
    rule = Counting(drawn.evidence, EvidenceConfig(every=3))
    for _ in range(60):
        rule.adapt()
    assert Counting.at == [3, 6, 12, 24, 48]


def test_streams_with_regrouping_go_on_from_their_state() -> None:
    drawn = world(120, 1, new=8, noise=0.5, offset=3.0)
    settings: dict[str, Any] = {"adapt_every": 4, "every": 2}
    whole, never = drawn.stream(**settings), drawn.stream(regroup=0, **settings)
    answers = [decision.category for decision in whole.observe_many(drawn.features)]
    assert isinstance(whole.rule, EvidenceRule) and isinstance(never.rule, EvidenceRule)
    never.observe_many(drawn.features)
    assert whole.rule.recent.thoughts()[2].tolist() != never.rule.recent.thoughts()[2].tolist()
    first, second = drawn.stream(**settings), drawn.stream(**settings)
    found = [decision.category for decision in first.observe_many(drawn.features[:30])]
    second.load_state_dict(first.state_dict())
    found += [decision.category for decision in second.observe_many(drawn.features[30:])]
    assert found == answers


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


@pytest.mark.parametrize("learns", [True, False])
def test_saved_in_the_middle_the_rule_goes_on(learns: bool) -> None:
    drawn = world(90, 2, new=4, noise=0.2)
    whole, first, second = drawn.rule(learns, keep=20), drawn.rule(learns, keep=20), drawn.rule(learns, keep=20)
    for rule in (whole, first):
        rule.assign(drawn.features[:50], NOTHING)
        rule.think_again()
    second.load_state_dict(load(save(first.state_dict())))
    for rule in (whole, second):
        rule.think_again()
    rest = [rows_of(rule.assign(drawn.features[50:], NOTHING)) for rule in (whole, second)]
    assert rest[0] == rest[1]
    assert all(torch.equal(value, second.state_dict()[name]) for name, value in whole.state_dict().items())


@pytest.mark.parametrize("cut", [0, 1, 16, 37, 64, 89])
def test_a_stream_saved_in_the_middle_goes_on(cut: int) -> None:
    drawn = world(90, 2, new=4, noise=0.2)
    whole, first, second = (drawn.stream(every=2, keep=30) for _ in range(3))
    wanted = whole.observe_many(drawn.features)
    found = first.observe_many(drawn.features[:cut])
    second.load_state_dict(load(save(first.state_dict())))
    found += second.observe_many(drawn.features[cut:])
    assert [decision.category for decision in found] == [decision.category for decision in wanted]
    np.testing.assert_allclose([d.similarity for d in found], [d.similarity for d in wanted], atol=1e-9)
    assert second.second_thoughts() == whole.second_thoughts()


def test_a_state_of_the_other_rule_is_refused_and_changes_nothing() -> None:
    drawn = world(40, 0, new=2, noise=0.2)
    mine, other = drawn.stream(), FeatureStream(PrototypeMemory(drawn.means), OnlineConfig(threshold=0.5))
    mine.observe_many(drawn.features)
    before = mine.memory.size
    with pytest.raises(DataError, match=r"decided by a threshold, this one decides by evidence; open it"):
        mine.load_state_dict(other.state_dict())
    with pytest.raises(DataError, match=r"decided by evidence, this one decides by a threshold; open it"):
        other.load_state_dict(mine.state_dict())
    assert mine.memory.size == before > other.memory.size == len(drawn.means)


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


# Evidence of one image ------------------------------------------------------------------------------------------------

PLAIN = TwoCovariance(np.zeros(2), 10.0 * np.eye(2), np.full(2, 40.0), np.inf)
"""Unit features come out on a circle with radius 10; inside a class they vary by 1."""


def plain_rule(
    counts: list[float], directions: list[list[float]], learns: bool = True, offset: float = 0.0, **settings: Any
) -> EvidenceRule:
    sums = 10.0 * np.array(counts)[:, None] * np.array(directions)
    config = EvidenceConfig(concentration=5.0, **settings)
    return EvidenceRule(Evidence(PLAIN, np.array(counts), sums, offset), config, learns)


EAST, NORTH, WEST = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]


@pytest.mark.parametrize("offset", [0.0, -4.0, 2.5])
def test_similarities_are_evidence_minus_the_prior(offset: float) -> None:
    rule = plain_rule([4.0, 4.0, 4.0], [EAST, NORTH, WEST], offset=offset, answer_weight=1.0)
    x = torch.tensor([EAST])
    for answered in range(3):
        counts, sums = rule.beliefs.counts[:1].copy(), rule.beliefs.sums[:1].copy()
        evidence = float(log_odds(PLAIN, PLAIN.coordinates(x), counts, sums)[0])
        prior = offset + log(3) + 3.5 * log(5.0 / (5.0 + answered)) + 4.5 * log(10 / (10 + answered))
        answer = rule.assign(x, NOTHING)
        assert answer.ids.tolist() == [0]
        assert abs(answer.similarities[0] - (evidence - prior)) < 1e-9


def test_a_stream_learns_how_common_known_classes_are() -> None:
    """What joins a known class in a stream of known classes founds a category in a stream that brings new ones."""
    doubtful = torch.nn.functional.normalize(torch.tensor([[1.0, 0.55]]), dim=1)
    known, new = torch.tensor([EAST] * 200), torch.tensor([WEST] * 200)

    def after(images: Tensor, **settings: Any) -> EvidenceRule:
        rule = plain_rule([50.0], [EAST], **settings)
        rule.assign(images, NOTHING)
        return rule

    def odds(rule: EvidenceRule) -> float:
        found = rule.look(doubtful, NOTHING)
        place = 0 if found.ids[0] == 0 else 1
        return float((found.similarities, found.runner_up_similarities)[place][0])

    calm, lively = after(known), after(new)
    assert calm.discovered == 0 and lively.discovered == 200
    assert calm.look(doubtful, NOTHING).ids.tolist() == [0] != lively.look(doubtful, NOTHING).ids.tolist()
    unlearned = odds(after(known, learn_share=False))
    assert odds(calm) - unlearned == pytest.approx(4.5 * log(0.95 / 0.05))  # 10 of 220: the least share
    again = plain_rule([50.0], [EAST])
    again.load_state_dict(calm.state_dict())
    assert odds(again) == odds(calm)
    older = lively.state_dict()
    del older["discovered"]
    with pytest.raises(KeyError):
        again.load_state_dict(older)
    before = plain_rule([50.0], [EAST], learn_share=False)
    before.load_state_dict(older)
    assert before.discovered == 0


def test_the_prior_counts_categories_with_members_only() -> None:
    rule, fewer = plain_rule([4.0, 4.0, 0.0], [EAST, NORTH, WEST]), plain_rule([4.0, 4.0], [EAST, NORTH])
    x = torch.tensor([EAST])
    assert abs(rule.look(x, NOTHING).similarities[0] - fewer.look(x, NOTHING).similarities[0]) < 1e-9


@pytest.mark.parametrize("counts", [[4.0, 0.0], [0.0, 4.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0, 0.0]])
def test_empty_categories_are_neither_answers_nor_runner_ups(counts: list[float]) -> None:
    place = counts.index(4.0)
    rule = plain_rule(counts, [EAST] * len(counts))
    joins = rule.look(torch.tensor([EAST]), NOTHING)
    assert rows_of(joins)[0][:2] == (place, False)
    assert (joins.runner_ups[0], joins.runner_up_similarities[0]) == (-1, -1e3)
    founds = rule.look(torch.tensor([WEST]), NOTHING)
    assert (founds.ids[0], founds.founded[0], founds.runner_ups[0]) == (len(counts), True, place)


def test_the_first_image_of_a_stream_without_known_classes_founds_category_zero() -> None:
    rule = EvidenceRule(Evidence(PLAIN, np.empty(0), np.empty((0, 2))), EvidenceConfig())
    answers = rule.assign(torch.tensor([EAST, EAST, WEST]), NOTHING)
    assert answers.ids.tolist() == [0, 0, 1] and answers.founded.tolist() == [True, False, True]
    assert (answers.similarities[0], answers.runner_ups[0], answers.runner_up_similarities[0]) == (-1e3, -1, -1e3)
    assert answers.runner_ups.tolist() == [-1, -1, 0]


def test_of_equal_categories_the_older_one_answers() -> None:
    rule = plain_rule([4.0, 4.0, 4.0], [NORTH, EAST, EAST])
    answers = rule.look(torch.tensor([EAST]), NOTHING)
    assert answers.ids.tolist() == [1] and answers.runner_ups.tolist() == [2]


def test_without_learning_categories_stay_and_founders_stay_alone() -> None:
    rule = plain_rule([4.0], [EAST], learns=False)
    tilted = [0.995, 0.0999]
    answers = rule.assign(torch.tensor([tilted, tilted, WEST, WEST, EAST]), NOTHING)
    assert answers.ids.tolist() == [0, 0, 1, 1, 0]
    assert rule.beliefs.counts.tolist() == [4.0, 1.0] and rule.answered == 5
    np.testing.assert_allclose(rule.beliefs.sums, [[40.0, 0.0], [-10.0, 0.0]])
    assert rule.think_again() == 0 and len(rule.recent) == 0


def lonely_founder(**settings: Any) -> EvidenceRule:
    """A rule whose first image founded a category, though by now it would join category 0: a new one got unlikely."""
    rule = plain_rule([4.0, 4.0], [NORTH, WEST], **settings)
    near_north = torch.tensor([[0.33, 0.943981]])
    assert -1.0 < rule.look(near_north, NOTHING).similarities[0] < 0.0
    assert rule.assign(near_north, NOTHING).ids.tolist() == [2]
    assert set(rule.assign(torch.tensor([WEST] * 100), NOTHING).ids.tolist()) == {1}
    return rule


def test_ids_are_never_used_again() -> None:
    rule = lonely_founder()
    assert rule.think_again() == 1
    assert rule.beliefs.counts.tolist() == [4.25, 29.0, 0.0] and rule.beliefs.living == 2
    founded = rule.assign(torch.tensor([[0.0, -1.0]]), NOTHING)
    assert founded.ids.tolist() == [3] and founded.founded.tolist() == [True]
    _, answers, homes = rule.recent.thoughts()
    assert (answers[0], homes[0]) == (2, 0)  # the answer stays


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("newest", [0, 100])
def test_second_thoughts_come_every_so_many_adaptations(every: int, newest: int) -> None:
    """About all images; those about the newest in between don't reach back to the first one."""
    rule = lonely_founder(every=every, newest=newest)
    for number in range(1, every + 1):
        assert rule.beliefs.living == 3
        rule.adapt()
        assert rule.adaptations == number
    assert rule.beliefs.living == 2


def test_the_newest_images_are_thought_of_at_every_adaptation() -> None:
    rule = lonely_founder(every=9, newest=101)
    rule.adapt()
    assert rule.beliefs.living == 2


def test_without_sweeps_there_are_no_second_thoughts() -> None:
    rule = lonely_founder(every=1, sweeps=0)
    rule.adapt()
    assert rule.think_again() == 0 and rule.beliefs.living == 3


def test_decisions_are_in_log_odds_against_zero() -> None:
    drawn = world(30, 0)
    stream = drawn.stream()
    decisions = stream.observe_many(drawn.features)
    assert {(decision.unit, decision.threshold) for decision in decisions} == {("log-odds", 0.0)}
    assert {decision.verdict for decision in decisions} == {"known", "discovered", "new"}
    for decision in decisions:
        assert (decision.similarity < 0.0) == (decision.verdict == "new")
        if decision.verdict == "new":
            assert decision.runner_up_similarity == decision.similarity
        else:
            assert decision.runner_up_similarity <= decision.similarity
    assert stream.decide(drawn.features[0]).unit == "log-odds"


# Merges ---------------------------------------------------------------------------------------------------------------


def test_halves_of_one_cluster_are_proposed_for_merging_and_clusters_far_apart_are_not() -> None:
    rule = plain_rule([5.0], [NORTH])
    for direction in (EAST, [0.999, 0.0447], WEST):
        rule.beliefs.found(10.0 * np.array(direction))
        for _ in range(4):
            rule.beliefs.join(rule.beliefs.size - 1, 10.0 * np.array(direction))
    merges = rule.merges()
    assert [pair[:2] for pair in merges] == [(1, 2)]
    counts, sums = rule.beliefs.counts, rule.beliefs.sums
    wanted = same(PLAIN, counts[1:2], sums[1:2], counts[2:3], sums[2:3])
    np.testing.assert_allclose(merges[0][2], wanted)


def test_known_classes_are_merged_with_discovered_ones_only() -> None:
    rule = plain_rule([5.0, 5.0, 0.0], [EAST, EAST, EAST])
    rule.beliefs.found(np.array([10.0, 0.0]))
    assert [pair[:2] for pair in rule.merges()] == [(0, 3), (1, 3)]
    rule.beliefs.leave(3, np.array([10.0, 0.0]))
    assert rule.merges() == []


@pytest.mark.parametrize("block", [2**20, 7])
def test_the_surest_merges_come_first(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["talon_ocd.memory.merges"], "BLOCK", block)
    random = np.random.default_rng(0)
    rule = plain_rule([5.0, 5.0, 70.0, 0.0], [NORTH, NORTH, EAST, WEST])
    for angle, count in zip(random.uniform(0.0, 2 * np.pi, 60), random.choice([1.0, 2.0, 3.0, 60.0], 60), strict=True):
        place = 10.0 * np.array([np.cos(angle), np.sin(angle)])
        rule.beliefs.put(np.array([rule.beliefs.size]), np.array([count]), count * place[None])
    every = rule.merges(most=10**6)
    counts, sums = rule.beliefs.counts, rule.beliefs.sums
    slow = {
        (a, b): float(same(PLAIN, counts[[a]], sums[[a]], counts[[b]], sums[[b]])[0])
        for a, b in combinations(np.flatnonzero(counts).tolist(), 2)
        if b >= 4
    }
    assert {pair[:2] for pair in every} == {pair for pair, odds in slow.items() if odds > 0.0}
    odds = [pair[2] for pair in every]
    np.testing.assert_allclose(odds, [slow[first, second] for first, second, _ in every], atol=1e-9)
    assert odds == sorted(odds, reverse=True) and len(odds) > 20
    assert rule.merges() == every[:20] and rule.merges(most=3) == every[:3]


# Saved evidence -------------------------------------------------------------------------------------------------------


def test_evidence_survives_saving() -> None:
    evidence = world(0, 4, offset=-2.5).evidence
    again = Evidence.from_state_dict(load(save(evidence.state_dict())))
    assert again.offset == -2.5 and again.model.tail == evidence.model.tail
    np.testing.assert_array_equal(again.counts, evidence.counts)
    np.testing.assert_array_equal(again.sums, evidence.sums)
    np.testing.assert_array_equal(again.model.transform, evidence.model.transform)


@pytest.mark.parametrize(
    "change",
    [
        {"counts": torch.ones(3, dtype=torch.float64)},
        {"counts": torch.tensor([1.0, -1.0])},
        {"sums": torch.ones(2, 2, dtype=torch.float64)},
        {"sums": torch.full((2, 3), float("nan"))},
        {"psi": torch.ones(2, dtype=torch.float64)},
    ],
)
def test_evidence_that_does_not_fit_together_is_refused(change: dict[str, Tensor]) -> None:
    with pytest.raises(DataError):
        Evidence.from_state_dict({**world(0, 4).evidence.state_dict(), **change})


def test_streams_of_one_model_never_meet() -> None:
    drawn = world(30, 0)
    first = rows_of(drawn.rule().assign(drawn.features, NOTHING))
    assert rows_of(drawn.rule().assign(drawn.features, NOTHING)) == first
    moved = drawn.evidence.with_offset(7.0)
    assert (moved.offset, drawn.evidence.offset) == (7.0, 0.0)
