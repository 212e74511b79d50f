"""Clustering scores against the specification's values, brute force and the reference formulation."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_ocd.errors import DataError
from talon_ocd.metrics import (
    Accuracy,
    category_counts,
    fragmentation,
    greedy_accuracy,
    known_accuracy,
    strict_accuracy,
)
from tests.twins.accuracy import greedy_by_permutations, square_padded, strict_by_permutations

SCORES = [strict_accuracy, greedy_accuracy]
samples = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=24)
many_samples = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), min_size=1, max_size=200)
Pairs = list[tuple[int, int]]


def columns(pairs: Pairs) -> tuple[list[int], list[int]]:
    return [label for label, _ in pairs], [cluster for _, cluster in pairs]


def values(accuracy: Accuracy) -> tuple[float, float, float]:
    return accuracy.all, accuracy.old, accuracy.new


@pytest.mark.parametrize("score", SCORES)
def test_specification_example_with_one_best_matching(score) -> None:  # type: ignore[no-untyped-def]
    result = score([0, 0, 0, 1, 1, 2, 2, 2], [0, 0, 3, 0, 1, 3, 3, 0], 2)
    assert values(result) == pytest.approx((0.625, 0.6, 2 / 3))


def test_specification_example_where_the_protocols_differ() -> None:
    y, p = [0] * 5 + [1] * 3, [0] * 8
    assert values(greedy_accuracy(y, p, 1)) == (1, 1, 1)
    assert values(strict_accuracy(y, p, 1)) == (0.625, 1, 0)


@settings(max_examples=60, deadline=None)
@given(samples, st.integers(0, 4), st.one_of(st.none(), st.integers(1, 5)))
def test_both_protocols_agree_with_brute_force(pairs: Pairs, known: int, top_k: int | None) -> None:
    y, p = columns(pairs)
    strict, greedy = strict_by_permutations(y, p, known, top_k), greedy_by_permutations(y, p, known, top_k)
    assert values(strict_accuracy(y, p, known, top_k)) == pytest.approx(values(strict))
    assert values(greedy_accuracy(y, p, known, top_k)) == pytest.approx(values(greedy))


@settings(deadline=None)
@given(many_samples)
def test_all_agrees_with_the_square_zero_padded_matrix(pairs: Pairs) -> None:
    y, p = columns(pairs)
    assert strict_accuracy(y, p, 5).all == pytest.approx(square_padded(y, p))


@settings(deadline=None)
@given(many_samples, st.integers(0, 10))
def test_all_is_the_weighted_mean_and_strict_is_at_most_greedy(pairs: Pairs, known: int) -> None:
    y, p = columns(pairs)
    weight = sum(label < known for label in y) / len(y)
    strict, greedy = strict_accuracy(y, p, known), greedy_accuracy(y, p, known)
    for result in (strict, greedy):
        assert result.all == pytest.approx(weight * result.old + (1 - weight) * result.new)
    assert strict.all <= greedy.all
    assert strict.old <= greedy.old
    assert strict.new <= greedy.new


@settings(deadline=None)
@given(many_samples, st.integers(0, 10), st.permutations(range(31)))
def test_numbering_of_ids_does_not_matter(pairs: Pairs, known: int, names: list[int]) -> None:
    y, p = columns(pairs)
    renamed = [names[cluster] * 7919 for cluster in p]
    for score in SCORES:
        assert score(y, p, known) == score(y, renamed, known)
    assert fragmentation(y, p) == fragmentation(y, renamed) or math.isclose(
        fragmentation(y, p).effective_ids, fragmentation(y, renamed).effective_ids
    )


@settings(deadline=None)
@given(many_samples, st.integers(1, 40))
def test_truncation_never_helps_and_large_top_k_changes_nothing(pairs: Pairs, top_k: int) -> None:
    y, p = columns(pairs)
    for score in SCORES:
        assert score(y, p, 5, len(set(p))) == score(y, p, 5)
        assert score(y, p, 5, top_k).all <= score(y, p, 5).all


def test_truncation_drops_the_larger_of_two_ids_of_equal_size() -> None:
    assert values(strict_accuracy([0, 0, 1, 1], [8, 8, 3, 3], 1, top_k=1)) == (0.5, 0, 1)


@pytest.mark.parametrize("score", SCORES)
def test_labels_may_be_text_arrays_or_tensors(score) -> None:  # type: ignore[no-untyped-def]
    y, p = [0, 0, 1, 2, 2], [5, 5, 0, 9, 0]
    expected = score(y, p, 2)
    names = ["ant", "bee", "cat"]
    assert score([names[label] for label in y], p, ["ant", "bee"]) == expected
    assert score(np.array([names[label] for label in y], dtype=object), p, {"ant", "bee"}) == expected
    assert score(torch.tensor(y), torch.tensor(p), torch.tensor([0, 1])) == expected
    assert score(np.array(y, dtype=np.uint8), np.array(p), range(2)) == expected


def test_known_values_need_not_come_first() -> None:
    assert values(strict_accuracy([0, 7, 7, 3], [0, 1, 1, 0], [7])) == (0.75, 1, 0.5)


@pytest.mark.parametrize("score", SCORES)
def test_empty_input_and_empty_subsets_score_zero(score) -> None:  # type: ignore[no-untyped-def]
    assert values(score([], [], 3)) == (0, 0, 0)
    assert values(score([1, 2], [0, 4], 0)) == (1, 0, 1)
    assert values(score([1, 2], [0, 4], [])) == (1, 0, 1)
    assert values(score([1, 2], [0, 4], 9)) == (1, 1, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], [0], 1), "2 labels but y_pred has 1"),
        (([[0], [1]], [0, 1], 1), r"shape \(2, 1\)"),
        (([0.5, 1.5], [0, 1], 1), "use ints or text"),
        ((["a", "b"], [0, 1], 1), "names of the known classes"),
        ((["a", "b"], [0, 1], "ab"), "list of names"),
        (([0, 1], [0, 1], ["0"]), "same kind"),
        (([0, 1], [0, 1], 1, 0), "top_k=0"),
    ],
)
def test_unusable_labels_are_refused_with_a_remedy(arguments, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DataError, match=message):
        strict_accuracy(*arguments)


def test_known_accuracy_asks_for_the_id_of_the_class_itself() -> None:
    assert known_accuracy([0, 0, 1, 5], [0, 1, 1, 5], 2) == pytest.approx(2 / 3)
    assert known_accuracy(["dog", "cat", "fox"], [0, 0, 2], ["dog", "cat"]) == 0.5
    assert known_accuracy([5, 6], [0, 1], 2) == 0.0


def test_counts_and_fragmentation() -> None:
    y, p = [0] * 100 + [1], [0] * 99 + [1, 2]
    counts = category_counts(y, p)
    assert (counts.found, counts.true, counts.ratio) == (3, 2, 1.5)
    spread = fragmentation(y, p)
    assert spread.ids == 1.5
    assert 1.0 < spread.effective_ids < 1.05
    assert fragmentation([0] * 4, [0, 1, 2, 3]).effective_ids == pytest.approx(4)
    assert category_counts([], []).ratio == fragmentation([], []).ids == 0.0


@pytest.mark.parametrize("kind", ["random", "good", "dense"])
def test_hundred_thousand_samples_are_scored_in_seconds(kind: str) -> None:
    rng = np.random.default_rng(0)
    classes = 300 if kind == "dense" else 2_000
    y = rng.integers(0, classes, 100_000)
    p = rng.integers(0, 300 if kind == "dense" else 20_000, 100_000)
    if kind == "good":
        p = np.where(rng.random(100_000) < 0.7, y, p)
    begin = time.perf_counter()
    result = strict_accuracy(y, p, classes // 2)
    assert time.perf_counter() - begin < 10
    assert 0 < result.all < 1
