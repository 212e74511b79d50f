"""Streams that are not fair (layer: evaluation): bursts, a long tail, nothing new at all.

The field shuffles evenly filled classes. Cameras don't: they see one animal for an hour, most of them seldom, and on
most days nothing that they have not seen before.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import numpy as np
import numpy.typing as npt

from talon_ocd.evaluation.splits.sampling import Indices, generator

Scenario = Literal["bursty", "long-tailed", "known"]
SHORTEST, LONGEST = 8, 32
"""Images of a class in a row, in a bursty stream."""
IMBALANCE = 100.0
"""How many times more images the largest class of a long-tailed stream has than the smallest."""


def scenario_order(
    indices: Indices, classes: npt.NDArray[np.str_], known: Collection[str], kind: Scenario, seed: int, number: int
) -> Indices:
    """Return images ``indices`` ``(N,)`` of ``classes`` ``(N,)`` as the scenario streams them, perhaps only some.

    ``bursty`` has runs of 8 to 32 images of a class; ``long-tailed`` keeps ever fewer images of classes in a random
    order, down to a hundredth but at least one; ``known`` has images of known classes only.
    """
    random = generator(seed, number)
    if kind == "known":
        return random.permutation(indices[np.isin(classes, list(known))]).astype(np.int64)
    names = random.permutation(np.unique(classes))
    members = [random.permutation(indices[classes == name]) for name in names]
    if kind == "long-tailed":
        shares = IMBALANCE ** (-np.arange(len(names)) / max(len(names) - 1, 1))
        kept = [part[: max(round(len(part) * share), 1)] for part, share in zip(members, shares, strict=True)]
        return random.permutation(np.concatenate(kept)).astype(np.int64)
    runs = []
    for part in members:
        ends = np.cumsum(random.randint(SHORTEST, LONGEST + 1, size=len(part) // SHORTEST + 1))
        runs += [run for run in np.split(part, ends[ends < len(part)]) if len(run)]
    return np.concatenate([runs[i] for i in random.permutation(len(runs))]).astype(np.int64)
