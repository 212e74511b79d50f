"""Slow, obvious clustering scores: every permutation, and the square matrix of the reference code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import permutations

import numpy as np
from scipy.optimize import linear_sum_assignment

from talon_ocd.metrics import Accuracy


def strict_by_permutations(y: Sequence[int], p: Sequence[int], known: int, top_k: int | None = None) -> Accuracy:
    """Try every injective map from classes to ids (or nothing); prefer all, then old."""
    best_old, best_new = _best(list(zip(y, p, strict=True)), known, top_k)
    n_old = sum(label < known for label in y)
    n_new = len(y) - n_old
    return Accuracy(_ratio(best_old + best_new, len(y)), _ratio(best_old, n_old), _ratio(best_new, n_new))


def greedy_by_permutations(y: Sequence[int], p: Sequence[int], known: int, top_k: int | None = None) -> Accuracy:
    """Solve the old and the new samples as problems of their own."""
    pairs = list(zip(y, p, strict=True))
    old = [pair for pair in pairs if pair[0] < known]
    new = [pair for pair in pairs if pair[0] >= known]
    right_old, right_new = sum(_best(old, known, top_k)), sum(_best(new, known, top_k))
    return Accuracy(_ratio(right_old + right_new, len(y)), _ratio(right_old, len(old)), _ratio(right_new, len(new)))


def square_padded(y: Sequence[int], p: Sequence[int]) -> float:
    """Return All as GCD-style code does: a zero-padded square matrix and ``max - w`` as the cost."""
    size = max(max(y), max(p)) + 1
    w = np.zeros((size, size), dtype=np.int64)
    for label, cluster in zip(y, p, strict=True):
        w[cluster, label] += 1
    rows, columns = linear_sum_assignment(w.max() - w)
    return float(w[rows, columns].sum() / len(y))


def _best(pairs: list[tuple[int, int]], known: int, top_k: int | None) -> tuple[int, int]:
    table = Counter(pairs)
    sizes = Counter(cluster for _, cluster in pairs)
    kept: list[int | None] = [*sorted(sizes, key=lambda cluster: (-sizes[cluster], cluster))[:top_k]]
    classes = sorted({label for label, _ in pairs})
    best = (0, 0)
    for choice in permutations(kept + [None] * len(classes), len(classes)):
        hits = [0 if cluster is None else table[label, cluster] for label, cluster in zip(classes, choice, strict=True)]
        old = sum(hit for label, hit in zip(classes, hits, strict=True) if label < known)
        best = max(best, (old, sum(hits) - old), key=lambda score: (sum(score), score[0]))
    return best


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
