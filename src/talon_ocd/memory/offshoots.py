"""Kinds that a known class has taken in (layer: memory): what joined it is compared with its labelled images.

A new kind that lies near a known class joins it, moves it, and may end as most of it. The model can't tell: one wide
class is a class. But labelled images of the class are there, and what joins should look like them. So what joined is
cut in two, the half that lies farther from the class on one side; if labelled images are hardly ever like that half, it
is something else.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from talon_ocd.memory.two_covariance import Floats, TwoCovariance

Bools = npt.NDArray[np.bool_]
FEWEST_MEMBERS, FEWEST_LABELLED, FEWEST_LEAVING = 8, 3, 5
"""Images that joined, labelled ones, and images that leave, below which nothing can be said."""
RARELY = 0.25
"""Share of labelled images that are like those that leave, over the share of those that joined: not more than this.
Labelled images lie a little too near to their own class, because the coordinates were chosen for them."""
STEPS = 6
"""Of two-means; the answer hardly changes after that."""


def offshoot(
    model: TwoCovariance, members: Floats, labelled: Floats, count: float, total: Floats, most_chance: float
) -> Bools | None:
    """Return which members ``(N,)`` of a known class are a kind of their own, ``None`` if none are.

    ``members`` ``(N, d)`` joined the class, which without them has so many images ``count`` with the sum ``total``
    ``(d,)``; ``labelled`` ``(L, d)`` are some of these. ``most_chance`` bounds how likely chance alone does as much.
    """
    if len(members) < FEWEST_MEMBERS or len(labelled) < FEWEST_LABELLED or count <= 1.0:
        return None
    scale = np.sqrt(model.psi / (1.0 + model.psi))  # as in grouping anew: what classes have in each coordinate
    points = members * scale
    leaving = _cut(points, count, total * scale)
    if leaving is None or not _is_likelier(model, members, leaving, count, total):
        return None
    staying_count, staying = count + np.count_nonzero(~leaving), total + members[~leaving].sum(axis=0)
    number, away = np.count_nonzero(leaving), members[leaving].sum(axis=0)
    # Everyone is judged without itself.
    own = _nearer(
        points[leaving], (away - members[leaving]) / max(number - 1, 1) * scale, staying / staying_count * scale
    )
    examples = labelled * scale
    theirs = _nearer(examples, away / number * scale, (staying - labelled) / (staying_count - 1.0) * scale)
    like, found = int(np.count_nonzero(theirs)), int(np.count_nonzero(own))
    if found < FEWEST_LEAVING or like * len(members) > RARELY * found * len(labelled):
        return None
    return leaving if chance(found, len(members), like, len(labelled)) < most_chance else None


def chance(found: int, members: int, like: int, labelled: int) -> float:
    """Return how likely as many as ``found`` of the members are of one half, if members and labelled are alike.

    Fisher's exact test, of one side: ``found + like`` of all are of that half, and who they are is chance.

    >>> round(chance(3, 4, 1, 4), 4)
    0.2429
    """
    both, everyone = found + like, members + labelled
    more = np.arange(found, min(both, members) + 1)
    logs = _choices(members, more) + _choices(labelled, both - more) - _choices(everyone, np.array(both))
    return float(np.exp(logs).sum())


def _cut(points: Floats, count: float, total: Floats) -> Bools | None:
    """Cut points ``(N, d)`` in two by two-means, one of whose means holds ``count`` others with the sum ``total``.

    Returns which ones leave that one ``(N,)``.
    """
    away = points - total / count
    along = away @ away.mean(axis=0)
    leaving: Bools = along > np.median(along)
    for _ in range(STEPS):
        if not leaving.any():
            return None
        staying = (total + points[~leaving].sum(axis=0)) / (count + np.count_nonzero(~leaving))
        nearer = _nearer(points, points[leaving].mean(axis=0), staying)
        if np.array_equal(nearer, leaving):
            break
        leaving = nearer
    return leaving if leaving.any() else None


def _nearer(points: Floats, first: Floats, second: Floats) -> Bools:
    """Return which points ``(N, d)`` are nearer to the first of two places ``(d,)`` or ``(N, d)``."""
    nearer: Bools = ((points - first) ** 2).sum(axis=1) < ((points - second) ** 2).sum(axis=1)
    return nearer


def _is_likelier(model: TwoCovariance, members: Floats, leaving: Bools, count: float, total: Floats) -> bool:
    """Does the model find two classes likelier than one?"""
    sums = np.stack([members[leaving].sum(axis=0), total + members[~leaving].sum(axis=0)])
    counts = np.array([np.count_nonzero(leaving), count + np.count_nonzero(~leaving)], np.float64)
    parts = model.log_evidence(counts, sums).sum()
    return bool(parts > model.log_evidence(counts.sum(keepdims=True), sums.sum(axis=0, keepdims=True))[0])


def _choices(number: int, chosen: npt.NDArray[np.int64]) -> Floats:
    """Return the logarithm of the ways to choose so many of a number."""
    ways: Floats = gammaln(number + 1) - gammaln(chosen + 1) - gammaln(number - chosen + 1)
    return ways
