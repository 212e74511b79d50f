"""Pairs of categories that are rather one than two (layer: memory).

How sure a pair is depends on its sums by one product, as long as the numbers of members are the same: so categories are
compared in groups of equal numbers, of which there are few.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from talon_ocd.memory.beliefs import Beliefs, Ints
from talon_ocd.memory.two_covariance import Floats, TwoCovariance

MOST_COMPARED = 4.0
"""Members that count when two categories are compared: more would prove that any two halves of a class differ."""
BLOCK = 2**20
"""Pairs compared at once."""


def merges(beliefs: Beliefs, most: int) -> list[tuple[int, int, float]]:
    """Return pairs of categories, one of them discovered, with the log-odds that they are one; surest first."""
    pairs: list[tuple[int, int, float]] = []
    for one, two, odds in _compared(beliefs):
        rows, columns = np.nonzero(odds > 0.0)
        first, second = np.minimum(one[rows], two[columns]), np.maximum(one[rows], two[columns])
        good = second >= beliefs.known
        found = zip(first[good].tolist(), second[good].tolist(), odds[rows, columns][good].tolist(), strict=True)
        pairs = sorted([*pairs, *found], key=lambda pair: (-pair[2], pair[:2]))[:most]
    return pairs


def odds_of_one(model: TwoCovariance, counts: Floats, sums: Floats, counts_2: Floats, sums_2: Floats) -> Floats:
    """Return the log-odds ``(P, Q)`` that a category of the first ones is one with a category of the second ones.

    They have counts ``(P,)`` and ``(Q,)``, at least 1 each, and sums ``(P, d)`` and ``(Q, d)``.
    """
    odds: Floats = np.empty((len(counts), len(counts_2)))
    counted, counted_2 = np.minimum(counts, MOST_COMPARED), np.minimum(counts_2, MOST_COMPARED)
    scaled, scaled_2 = sums * (counted / counts)[:, None], sums_2 * (counted_2 / counts_2)[:, None]
    for number in np.unique(counted):
        rows = np.flatnonzero(counted == number)
        for number_2 in np.unique(counted_2):
            columns = np.flatnonzero(counted_2 == number_2)
            odds[np.ix_(rows, columns)] = _same(model, number, scaled[rows], number_2, scaled_2[columns])
    return odds


def _compared(beliefs: Beliefs) -> Iterator[tuple[Ints, Ints, Floats]]:
    """Yield ids ``(P,)`` and ``(Q,)`` and log-odds ``(P, Q)``; every pair once, -inf where it is another's turn."""
    counted = np.minimum(beliefs.counts, MOST_COMPARED)
    sums = beliefs.sums * (counted / np.maximum(beliefs.counts, 1.0))[:, None]
    numbers = np.unique(counted[counted >= 1.0])
    for place, number in enumerate(numbers):
        one = np.flatnonzero(counted == number)
        for other in numbers[place:]:
            two = np.flatnonzero(counted == other)
            step = max(BLOCK // len(two), 1)
            for part in (one[start : start + step] for start in range(0, len(one), step)):
                odds = _same(beliefs.model, number, sums[part], other, sums[two])
                if number == other:
                    odds[part[:, None] >= two] = -np.inf
                yield part, two, odds


def _same(model: TwoCovariance, count: float, sums: Floats, other_count: float, other_sums: Floats) -> Floats:
    """Return the log-odds ``(P, Q)`` that categories with so many members are one, for all pairs."""
    together = (count + other_count) * model.psi + 1.0
    weights = model.psi / together
    volume = np.log(together).sum()
    apart = []
    for number, rows in ((count, sums), (other_count, other_sums)):
        grown = number * model.psi + 1.0
        volume -= np.log(grown).sum()
        apart.append(rows**2 @ (weights - model.psi / grown))
    odds: Floats = (sums * weights) @ other_sums.T
    odds += 0.5 * (apart[0][:, None] + apart[1] - volume)
    return odds
