"""Grouping recent images anew, from single ones upwards (layer: memory).

Categories that grow image by image keep the mistakes of their first days: an image moves alone, so two kinds that share
two categories the wrong way round stay like that. Ward's clustering begins with every image alone and joins, again and
again, the two groups whose union spreads least; it knows nothing of what was answered. Known classes, and categories
with members that are no longer remembered, take part as groups that are never joined with each other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linear_sum_assignment

from talon_ocd.memory.two_covariance import Floats

Ints = npt.NDArray[np.int64]
Floats32 = npt.NDArray[np.float32]


def ward(points: Floats, sizes: Floats, fixed: int, wanted: int) -> Ints:
    """Return groups ``(N,)`` of points ``(N, d)`` that count ``sizes`` ``(N,)``, at most ``wanted`` if it can be.

    A group is called by one of its points. The first ``fixed`` points never come into the same group, and call theirs.
    """
    costs = _costs(points.astype(np.float32), sizes, fixed)
    counts, group = sizes.astype(np.float32), np.arange(len(points))
    is_fixed = group < fixed
    nearest = costs.argmin(axis=1)
    least = costs[group, nearest]
    for _ in range(len(points) - wanted):
        into = int(least.argmin())
        if np.isinf(least[into]):  # only fixed ones are left
            break
        gone = int(nearest[into])
        if is_fixed[gone]:
            into, gone = gone, into
        union = _union(costs, counts, into, gone)
        union[is_fixed & is_fixed[into]] = np.inf
        counts[into] += counts[gone]
        group[gone] = into
        costs[gone], costs[:, gone], least[gone] = np.inf, np.inf, np.inf
        costs[into], costs[:, into] = union, union
        nearest[into], least[into] = union.argmin(), union.min()
        closer = (union <= least) & (union < np.inf)
        nearest[closer], least[closer] = into, union[closer]
        lost = np.flatnonzero(((nearest == into) | (nearest == gone)) & ~closer & (least < np.inf))
        lost = lost[lost != into]
        nearest[lost] = costs[lost].argmin(axis=1)
        least[lost] = costs[lost, nearest[lost]]
    return _roots(group)


def carried_over(groups: Ints, answers: Ints, categories: Ints) -> Ints:
    """Return which of categories ``(L,)`` each of the groups 0 .. G-1, G <= L, should be from now on ``(G,)``.

    ``groups`` ``(N,)`` and ``answers`` ``(N,)`` are of the same images: as many of them as can be have been answered
    with the category that their group gets, so that ids go on meaning what they meant.
    """
    place = np.minimum(np.searchsorted(categories, answers), len(categories) - 1)
    counted = categories[place] == answers
    shared = np.zeros((groups.max(initial=-1) + 1, len(categories)), np.int64)
    np.add.at(shared, (groups[counted], place[counted]), 1)
    _, chosen = linear_sum_assignment(shared, maximize=True)
    carried: Ints = categories[chosen]
    return carried


def _costs(points: Floats32, sizes: Floats, fixed: int) -> Floats32:
    """Return by how much the sum of squares inside groups would rise if two were joined ``(N, N)``."""
    rows = torch.from_numpy(points)
    costs: Floats32 = (rows @ rows.T).numpy()  # torch's: a replay rounds as the stream did, whose threads it takes
    squares = costs.diagonal().copy()
    costs *= -2.0
    costs += squares[:, None] + squares
    np.maximum(costs, 0.0, out=costs)
    counts = sizes.astype(np.float32)
    costs *= counts[:, None] * counts / (counts[:, None] + counts)
    np.fill_diagonal(costs, np.inf)
    costs[:fixed, :fixed] = np.inf
    return costs


def _union(costs: Floats32, counts: Floats32, first: int, second: int) -> Floats32:
    """Return what joining the union of two groups with each other one would cost ``(N,)`` (Lance and Williams)."""
    one, other = counts[first], counts[second]
    union: Floats32 = (one + counts) * costs[first]
    union += (other + counts) * costs[second]
    union -= counts * costs[first, second]
    union /= one + other + counts
    union[[first, second]] = np.inf
    return union


def _roots(group: Ints) -> Ints:
    """Follow every point ``(N,)`` to the group that its own one was joined with, to the end."""
    while not np.array_equal(group, above := group[group]):
        group = above
    return group
