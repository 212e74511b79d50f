"""Evidence, and rules and streams in the middle of their work, are saved and go on."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from talon_ocd.config import OnlineConfig
from talon_ocd.errors import DataError
from talon_ocd.memory import PrototypeMemory
from talon_ocd.online import Evidence, EvidenceRule, FeatureStream
from tests.online.worlds import NOTHING, rows_of, world


def test_evidence_survives_saving() -> None:
    evidence = world(0, 4, offset=-2.5).evidence
    again = Evidence.from_state_dict(load(save(evidence.state_dict())))
    assert again.offset == -2.5 and again.model.tail == evidence.model.tail
    np.testing.assert_array_equal(again.counts, evidence.counts)
    np.testing.assert_array_equal(again.sums, evidence.sums)
    np.testing.assert_array_equal(again.model.transform, evidence.model.transform)


def test_examples_survive_saving_as_precise_as_they_are_used() -> None:
    plain = world(0, 4).evidence
    rows = np.random.default_rng(0).normal(size=(5, plain.model.size))
    evidence = replace(plain, examples=rows, shown=np.array([3, 2]))
    again = Evidence.from_state_dict(load(save(evidence.state_dict())))
    assert [len(own) for own in again.labelled] == [3, 2] and plain.labelled == []
    for saved, used in zip(again.labelled, evidence.labelled, strict=True):
        np.testing.assert_array_equal(saved, used)
    np.testing.assert_allclose(np.concatenate(again.labelled), rows, rtol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"examples": torch.ones(2, 2), "shown": torch.tensor([1, 1])},
        {"examples": torch.ones(2, 3), "shown": torch.tensor([1, 2])},
        {"examples": torch.ones(2, 3), "shown": torch.tensor([2])},
        {"examples": torch.ones(2, 3), "shown": torch.tensor([3, -1])},
        {"examples": torch.full((2, 3), float("nan")), "shown": torch.tensor([1, 1])},
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


def test_a_rule_that_has_answered_goes_back_to_a_state_as_a_fresh_one_does() -> None:
    drawn = world(200, 4, new=4, noise=0.2)
    used, fresh = drawn.rule(share_window=64), drawn.rule(share_window=64)
    used.assign(drawn.features[:70], NOTHING)
    state = used.state_dict()
    used.assign(drawn.features[70:130], NOTHING)
    for rule in (used, fresh):
        rule.load_state_dict(state)
    for name, value in used.state_dict().items():
        assert torch.equal(value, state[name]), name
    coming = drawn.features[130:]
    assert rows_of(used.assign(coming, NOTHING)) == rows_of(fresh.assign(coming, NOTHING))
