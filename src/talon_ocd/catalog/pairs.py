"""The pairs of categories whose centres are nearest to each other (layer: catalog).

Ten thousand categories make fifty million pairs: the product is taken in blocks once, and afterwards only for what has
changed. Kept are the best pairs; every pair that is not kept is known to be no better than the floor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from talon_ocd.catalog.centres import Centres, Floats32
from talon_ocd.catalog.totals import Bools, Ints

Pair = tuple[int, int, float]
"""Two categories, and how much they look like one."""

KEPT = 4096
"""Pairs that are kept."""
BLOCK = 512
"""Categories that are compared with all others at once."""
LEAST_COSINE = 0.5
"""Pairs with less in common are not worth anybody's time."""


@dataclass(frozen=True)
class Standing:
    """What must be known of all categories ``(size,)`` to compare them.

    Attributes:
        ends: what each has become by merges.
        shown: whether that is neither hidden nor retired.
        members: images at home in each.
        moved: number of the last correction that touched each.
        known: number of known classes.
        refused: pairs of ends, smaller first, that people say are not one.
    """

    ends: Ints
    shown: Bools
    members: Ints
    moved: Ints
    known: int
    refused: frozenset[tuple[int, int]]


class NearestPairs:
    """Keeps the nearest pairs up to date; one thread at a time."""

    def __init__(self, centres: Centres) -> None:
        self._centres = centres
        self._first: Ints = np.zeros(0, np.int64)
        self._second: Ints = np.zeros(0, np.int64)
        self._scores: Floats32 = np.zeros(0, np.float32)
        self._floor = LEAST_COSINE
        self._ends: Ints = np.zeros(0, np.int64)
        self._shown: Bools = np.zeros(0, np.bool_)
        self._refused: frozenset[tuple[int, int]] = frozenset()
        self._changed: Ints = np.zeros(0, np.int64)

    def best(self, standing: Standing, limit: int) -> list[Pair]:
        """Return pairs of ends that people may be asked about, with their cosine, nearest first."""
        self._look(standing)
        changed, self._changed = self._changed, np.zeros(0, np.int64)
        if len(changed) > len(standing.ends) // 4:
            self._compare_all(standing)
        elif len(changed):
            self._compare_changed(standing, changed)
        found = self._lifted(standing, limit)
        if len(found) < limit and self._floor > LEAST_COSINE:  # there may be more below what was kept
            self._compare_all(standing)
            found = self._lifted(standing, limit)
        return found

    def near(self, standing: Standing, category: int, limit: int) -> list[tuple[int, float]]:
        """Return the shown ends that are nearest to a category, with their cosine."""
        self._look(standing)
        centres, end = self._centres, standing.ends[category]
        own = np.flatnonzero((standing.ends == end) & centres.there)
        others = np.flatnonzero(standing.shown & centres.there & (standing.ends != end))
        if not len(own) or not len(others):
            return []
        scores = (centres.rows[own] @ centres.rows.T)[:, others].max(axis=0)
        best: dict[int, float] = {}
        for place in np.argsort(-scores, kind="stable").tolist():
            best.setdefault(int(standing.ends[others[place]]), float(scores[place]))
            if len(best) == limit:
                break
        return list(best.items())

    def scored(self, standing: Standing, pairs: Sequence[tuple[int, int]]) -> list[Pair]:
        """Return pairs of categories with the cosine between their centres; 0 if one has none."""
        if pairs:
            self._look(standing)
        rows = self._centres.rows
        return [(one, two, float(rows[one] @ rows[two])) for one, two in pairs]

    def _look(self, standing: Standing) -> None:
        """Note the categories of which something is not as it was last time: centre, end, state or refusals."""
        moved = self._centres.refresh(standing.members, standing.moved)
        size, before = len(standing.ends), len(self._ends)
        other = np.ones(size, np.bool_)
        other[:before] = (standing.ends[:before] != self._ends) | (standing.shown[:before] != self._shown)
        other[moved] = True
        said = {end for pair in standing.refused ^ self._refused for end in pair}
        other |= np.isin(standing.ends, list(said))
        self._ends, self._shown, self._refused = standing.ends, standing.shown, standing.refused
        self._changed = np.union1d(self._changed, np.flatnonzero(other))  # who looks need not be who compares

    def _compare_all(self, standing: Standing) -> None:
        self._first = self._second = np.zeros(0, np.int64)
        self._scores, self._floor = np.zeros(0, np.float32), LEAST_COSINE
        living = np.flatnonzero(standing.shown & self._centres.there)
        rows = self._centres.rows[living]
        for start in range(0, len(living), BLOCK):
            part = rows[start : start + BLOCK]
            scores = part @ rows[start:].T
            scores[np.tri(*scores.shape, dtype=np.bool_)] = -1.0  # every pair once, none with itself
            self._keep(standing, living[start : start + BLOCK], living[start:], scores)

    def _compare_changed(self, standing: Standing, changed: Ints) -> None:
        stays = ~(np.isin(self._first, changed) | np.isin(self._second, changed))
        self._first, self._second, self._scores = self._first[stays], self._second[stays], self._scores[stays]
        living = np.flatnonzero(standing.shown & self._centres.there)
        also = np.isin(living, changed)
        fresh = living[also]
        for start in range(0, len(fresh), BLOCK):
            part = fresh[start : start + BLOCK]
            scores = (self._centres.rows[part] @ self._centres.rows.T)[:, living]  # no copy of all centres
            scores[also & (part[:, None] <= living)] = -1.0  # of two that have changed it is the later one's turn
            self._keep(standing, part, living, scores)

    def _keep(self, standing: Standing, one: Ints, two: Ints, scores: Floats32) -> None:
        """Take the good ones of scores ``(P, Q)`` of categories ``(P,)`` and ``(Q,)``."""
        rows, columns = np.nonzero(scores >= self._floor)
        first, second, good = one[rows], two[columns], scores[rows, columns]
        ends, others = standing.ends[first], standing.ends[second]
        asked = (ends != others) & ((ends >= standing.known) | (others >= standing.known))
        asked &= ~_refused(ends, others, standing.refused)
        self._first = np.concatenate([self._first, first[asked]])
        self._second = np.concatenate([self._second, second[asked]])
        self._scores = np.concatenate([self._scores, good[asked]])
        if len(self._scores) > KEPT:
            best = np.argpartition(-self._scores, KEPT)[:KEPT]
            self._first, self._second, self._scores = self._first[best], self._second[best], self._scores[best]
            self._floor = float(self._scores.min())

    def _lifted(self, standing: Standing, limit: int) -> list[Pair]:
        """Return the kept pairs as people may be asked about them."""
        found = worth_asking(self._once_more(4 * limit), standing, limit)
        if len(found) == limit or len(self._scores) <= 4 * limit:
            return found
        return worth_asking(self._once_more(KEPT), standing, limit)  # the best were parts of the same few

    def _once_more(self, most: int) -> Iterator[Pair]:
        """Yield the best kept pairs, each with the score that it always has.

        A product of matrices rounds by its shape, so that the cosines are taken once more, one by one.
        """
        best = np.lexsort((self._second, self._first, -self._scores))[:most]
        low, high = np.minimum(self._first, self._second)[best], np.maximum(self._first, self._second)[best]
        scores = np.einsum("nd,nd->n", self._centres.rows[low], self._centres.rows[high])
        order = np.lexsort((high, low, -scores))
        return zip(low[order].tolist(), high[order].tolist(), scores[order].tolist(), strict=True)


def worth_asking(pairs: Iterable[Pair], standing: Standing, limit: int, shown: int = 2) -> list[Pair]:
    """Return the first pairs that people may be asked about, each once, as pairs of what they have become.

    One of the two must be discovered, so many of them ``shown``, and nobody has said that they are not one.
    """
    found: dict[tuple[int, int], float] = {}
    for one, two, score in pairs:
        first, second = sorted((int(standing.ends[one]), int(standing.ends[two])))
        asked = first != second and second >= standing.known and (first, second) not in standing.refused
        if asked and standing.shown[[first, second]].sum() >= shown:
            found.setdefault((first, second), score)
        if len(found) == limit:
            break
    return [(first, second, score) for (first, second), score in found.items()]


def _refused(ends: Ints, others: Ints, refused: frozenset[tuple[int, int]]) -> Bools:
    """Return which pairs of ends ``(N,)`` people have refused."""
    if not refused:
        return np.zeros(len(ends), np.bool_)
    size = 2**31
    codes = np.minimum(ends, others) * size + np.maximum(ends, others)
    return np.isin(codes, [first * size + second for first, second in refused])
