"""What the evidence of an image is, and who answers."""

from math import log
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from talon_ocd.config import EvidenceConfig
from talon_ocd.online import Evidence, EvidenceRule
from tests.online.worlds import EAST, NORTH, NOTHING, PLAIN, WEST, plain_rule, rows_of, world
from tests.twins.two_covariance import log_odds


@pytest.mark.parametrize("offset", [0.0, -4.0, 2.5])
def test_similarities_are_evidence_minus_the_prior(offset: float) -> None:
    rule = plain_rule([4.0, 4.0, 4.0], [EAST, NORTH, WEST], offset=offset, answer_weight=1.0)
    x = torch.tensor([EAST])
    for answered in range(67):
        counts, sums = rule.beliefs.counts[:1].copy(), rule.beliefs.sums[:1].copy()
        counted = np.minimum(counts, 50.0)
        evidence = float(log_odds(PLAIN, PLAIN.coordinates(x), counted, sums * (counted / counts)[:, None])[0])
        share = 0.5 if answered < 64 else 10 / 84  # it is told anew after every 64 answers
        prior = offset + log(3) + 3.5 * log(5.0 / (5.0 + answered)) + 5.0 * log(share / (1.0 - share))
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
    assert odds(calm) - unlearned == pytest.approx(5.0 * log(0.93 / 0.07))  # 10 of 212: the least share
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
