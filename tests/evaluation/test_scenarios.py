"""Streams that are not fair: what each scenario promises about its images and their order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_ocd.evaluation.splits import scenario_order
from talon_ocd.evaluation.splits.scenarios import IMBALANCE, LONGEST, SHORTEST


def images(sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Positions 10, 11, ... of classes c0, c1, ... with these sizes, mixed."""
    classes = np.concatenate([np.full(size, f"c{number}") for number, size in enumerate(sizes)])
    random = np.random.default_rng(0)
    return np.arange(10, 10 + len(classes)), random.permutation(classes)


@given(st.lists(st.integers(1, 70), min_size=1, max_size=6), st.integers(0, 5), st.integers(0, 2))
def test_bursts_hold_every_image_once_in_runs_of_one_class(sizes: list[int], seed: int, number: int) -> None:
    indices, classes = images(sizes)
    order = scenario_order(indices, classes, ["c0"], "bursty", seed, number)
    assert sorted(order.tolist()) == indices.tolist()
    seen = classes[order - 10]
    changes = np.flatnonzero(seen[1:] != seen[:-1]) + 1
    runs = np.diff(np.concatenate([[0], changes, [len(seen)]]))
    assert len(runs) <= sum(-(-size // SHORTEST) for size in sizes)
    if len(sizes) == 1 or max(sizes) <= LONGEST:
        assert len(runs) >= len(sizes)


def test_a_long_tail_keeps_all_of_one_class_and_a_hundredth_of_another() -> None:
    indices, classes = images([200] * 5)
    order = scenario_order(indices, classes, [], "long-tailed", 3, 0)
    sizes = sorted(np.unique(classes[order - 10], return_counts=True)[1].tolist())
    assert sizes[0] == round(200 / IMBALANCE) and sizes[-1] == 200
    assert len(set(order.tolist())) == len(order)


def test_a_class_never_leaves_a_long_tail_altogether() -> None:
    indices, classes = images([3, 3, 3])
    order = scenario_order(indices, classes, [], "long-tailed", 0, 0)
    assert set(classes[order - 10]) == {"c0", "c1", "c2"}


def test_nothing_new_means_known_classes_only() -> None:
    indices, classes = images([20, 30, 40])
    order = scenario_order(indices, classes, ["c0", "c2"], "known", 0, 1)
    assert set(classes[order - 10]) == {"c0", "c2"}
    assert len(order) == 60


@pytest.mark.parametrize("kind", ["bursty", "long-tailed", "known"])
def test_seed_and_number_decide(kind: str) -> None:
    indices, classes = images([40, 40, 40])

    def order(seed: int, number: int) -> list[int]:
        made = scenario_order(indices, classes, ["c0", "c1"], kind, seed, number)  # type: ignore[arg-type]
        return [int(position) for position in made]

    assert order(1, 1) == order(1, 1)
    assert order(1, 1) != order(1, 2)
    assert order(1, 1) != order(2, 1)
