"""TALON's rule: join the nearest category if the cosine reaches τ, else found a new one (layer: online; section 3.1.3).

The rule is sequential: a category founded by query i is there for query i + 1. Inside a batch nothing else changes, so
the batch's own Gram matrix holds every cosine to a category founded in it, and the loop below runs once for every
category that is founded, not once for every query.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from talon_ocd.memory import PrototypeMemory
from talon_ocd.online.rules.assignment import Assignment, Floats, Ints


@dataclass(frozen=True)
class CosineRule:
    """Attach when the cosine is at least ``threshold``, else create.

    Attributes:
        threshold: τ.
        index_above: categories from which on an index finds candidates; 0 is never.
    """

    threshold: float
    index_above: int = 0
    name: ClassVar[Literal["cosine"]] = "cosine"
    unit: ClassVar[Literal["cosine"]] = "cosine"

    def adapt(self) -> None:
        """Learn nothing: the prototypes are the memory's."""

    def keep(self, slots: Tensor) -> None:
        """Follow nothing: the prototypes are the memory's."""

    def correct(self, index: int, feature: Tensor, away: int | None, to: int | None) -> None:
        """Learn nothing: the prototypes are the memory's."""

    def forget(self, answered: int) -> None:
        """Forget nothing: no image is remembered."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return nothing: there is no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take nothing over."""

    def look(self, features: Tensor, memory: PrototypeMemory) -> Assignment:
        """Answer unit features ``(B, D)``, each as if it came next."""
        return Assignment.joined([self.assign(feature[None], memory) for feature in features])

    def assign(self, features: Tensor, memory: PrototypeMemory) -> Assignment:
        """Answer unit features ``(B, D)`` one after another against ``memory``, which stays as it is."""
        near = memory.nearest_for(features, self.threshold, self.index_above)
        ids: Ints = near.ids.numpy().copy()
        scores: Floats = near.similarities.numpy().copy()
        founded = np.zeros(len(ids), dtype=np.bool_)
        lonely = np.flatnonzero(scores[:, 0] < self.threshold)  # scores only rise: nobody else can found a category
        gram = _cosines(features, lonely)
        start, new_id = 0, memory.size
        while (position := _first_below(scores[start:, 0], self.threshold)) is not None:
            founder = start + position
            founded[founder] = True
            ids[founder] = new_id, ids[founder, 0]
            scores[founder, 1] = scores[founder, 0]
            start = founder + 1
            _challenge(ids[start:], scores[start:], gram[start:, np.searchsorted(lonely, founder)], new_id)
            new_id += 1
        nobody = np.isneginf(scores)
        scores[nobody] = -1.0
        return Assignment(ids[:, 0], founded, scores[:, 0], ids[:, 1], scores[:, 1])


def _cosines(features: Tensor, columns: Ints) -> Floats:
    """Return ``(B, L)`` products in float64 of all unit features with those at ``columns`` ``(L,)``."""
    wide = features.detach().numpy().astype(np.float64)
    cosines: Floats = wide @ wide[columns].T
    return cosines


def _first_below(scores: Floats, threshold: float) -> int | None:
    below = scores < threshold
    return int(below.argmax()) if below.any() else None


def _challenge(ids: Ints, scores: Floats, challenger: Floats, new_id: int) -> None:
    """Let category ``new_id`` compete with the two best so far; on a tie the older category stays ahead."""
    wins = challenger > scores[:, 0]
    second = ~wins & (challenger > scores[:, 1])
    ids[wins, 1], scores[wins, 1] = ids[wins, 0], scores[wins, 0]
    ids[wins, 0], scores[wins, 0] = new_id, challenger[wins]
    ids[second, 1], scores[second, 1] = new_id, challenger[second]
