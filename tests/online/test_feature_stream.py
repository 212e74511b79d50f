from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_ocd import FeatureStream, PrototypeMemory
from talon_ocd.config import OnlineConfig
from talon_ocd.errors import ConfigError, DataError
from talon_ocd.online import unit
from tests.memory.test_prototypes import unit_rows

CONFIG = OnlineConfig(threshold=0.7, adapt=("prototypes",), adapt_every=16)


def stream(config: OnlineConfig = CONFIG, known: int = 4, names: tuple[str, ...] = ()) -> FeatureStream:
    return FeatureStream(PrototypeMemory(unit_rows(known, 6, 0)), config, names)


@given(parts=st.lists(st.integers(0, 40), min_size=1, max_size=6), seed=st.integers(0, 999))
@settings(max_examples=40)
def test_how_vectors_are_cut_into_calls_does_not_matter(parts: list[int], seed: int) -> None:
    vectors = unit_rows(sum(parts), 6, seed)
    whole, cut = stream(), stream()
    expected = whole.observe_many(vectors)
    found = [decision for part in vectors.split(parts) for decision in cut.observe_many(part)]
    assert [decision.category for decision in found] == [decision.category for decision in expected]
    assert [decision.index for decision in found] == list(range(sum(parts)))
    torch.testing.assert_close(whole.memory.prototypes, cut.memory.prototypes)
    assert torch.equal(whole.memory.counts, cut.memory.counts)


def test_prototypes_stay_unit_vectors() -> None:
    moving = stream(replace(CONFIG, eta_known=1.0, eta_new=1.0, kappa_known=0.0, kappa_new=0.0))
    for part in unit_rows(200, 6, 1).split(50):
        moving.observe_many(part)
        torch.testing.assert_close(moving.memory.prototypes.norm(dim=1), torch.ones(moving.memory.size))


def test_deciding_changes_nothing() -> None:
    watched = stream()
    watched.observe_many(unit_rows(21, 6, 1))
    before = watched.memory.state_dict()
    first = [watched.decide(vector) for vector in unit_rows(20, 6, 2)]
    assert first == [watched.decide(vector) for vector in unit_rows(20, 6, 2)]
    assert all(torch.equal(value, before[key]) for key, value in watched.memory.state_dict().items())
    assert (watched.answered, watched.room) == (21, 11)
    assert watched.observe(unit_rows(20, 6, 2)[0]) == first[0]


@pytest.mark.parametrize(("threshold", "founded"), [(-1.0, 0), (1.5, 100)])
def test_extreme_thresholds(threshold: float, founded: int) -> None:
    decisions = stream(replace(CONFIG, threshold=threshold)).observe_many(unit_rows(100, 6, 3))
    assert sum(decision.verdict == "new" for decision in decisions) == founded


def test_without_eta_prototypes_stay_as_if_nothing_adapted() -> None:
    vectors = unit_rows(150, 6, 4)
    still, none = stream(replace(CONFIG, eta_known=0.0, eta_new=0.0)), stream(replace(CONFIG, adapt=()))
    ids = [decision.category for decision in still.observe_many(vectors)]
    assert ids == [decision.category for decision in none.observe_many(vectors)]
    torch.testing.assert_close(still.memory.prototypes, none.memory.prototypes)


def test_verdicts_names_and_counts() -> None:
    watched = FeatureStream(PrototypeMemory(torch.eye(3)[:2]), CONFIG, ["ant", "bee"])
    decisions = watched.observe_many(np.array([[0, 1, 0], [0, 0, 1], [0, 0.1, 1], [1, 0, 0]]), ["a", "b", "c", "d"])
    assert [(d.source, d.category, d.name, d.verdict) for d in decisions] == [
        ("a", 1, "bee", "known"),
        ("b", 2, "discovered-1", "new"),
        ("c", 2, "discovered-1", "discovered"),
        ("d", 0, "ant", "known"),
    ]
    assert watched.memory.counts.tolist() == [1, 1, 2]
    assert set(decisions[0].to_dict()) == {
        "index", "source", "category", "name", "verdict", "similarity", "threshold", "runner_up",
        "runner_up_similarity", "unit",
    }  # fmt: skip


@pytest.mark.parametrize("change", [{"group_lifetime": "stream"}, {"count_founder": False, "min_group": 1}])
def test_the_other_readings_run(change: dict[str, Any]) -> None:
    assert len(stream(replace(CONFIG, **change)).observe_many(unit_rows(100, 6, 5))) == 100


def test_adapting_to_nothing_is_harmless() -> None:
    idle = stream()
    before = idle.memory.prototypes.clone()
    idle.adapt()
    assert torch.equal(before, idle.memory.prototypes) and idle.observe_many(np.empty((0, 6))) == []


def test_bad_vectors_change_nothing() -> None:
    watched = stream()
    bad = unit_rows(20, 6, 1)
    bad[17] = float("nan")
    with pytest.raises(DataError, match="feature 17 is not finite"):
        watched.observe_many(bad)
    with pytest.raises(DataError, match=r"shape \(D,\)"):
        watched.observe(bad)
    with pytest.raises(DataError, match="1 sources were given for 20"):
        watched.observe_many(unit_rows(20, 6, 1), ["one"])
    assert watched.answered == 0 and watched.memory.size == 4


def test_vectors_without_numbers_are_refused() -> None:
    with pytest.raises(DataError, match=r"shape \(3, 0\) have no numbers"):
        unit(torch.empty(3, 0))


def test_bad_construction() -> None:
    with pytest.raises(ConfigError, match="before a stream starts"):
        stream(OnlineConfig())
    with pytest.raises(DataError, match="3 names were given for 4"):
        stream(names=("a", "b", "c"))
