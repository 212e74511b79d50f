"""Nearest prototypes among very many of them: candidates from lists, exact scores from the memory (layer: memory).

``Lists`` holds copies of the prototypes in 8 bits, sorted around centres. The lists nearest to a feature propose a few
candidates, and their cosines are taken from the memory itself, so that the index can miss a prototype but never invent
one. Where a miss could change an answer, the search is not content with it:

* before a category is founded, many more lists are read;
* close to the threshold, and between close candidates, exact search decides.

Prototypes that are new wait outside and are searched exactly until the memory learns; so the index changes only where
the memory does. ``docs/large-memories.md`` has the measurements behind the constants.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from talon_ocd.memory.lists import Lists
from talon_ocd.memory.search import Floats, Ints, Neighbours, best_two, nearest_two

FIRST_LOOK, SECOND_LOOK = 6, 64
"""Lists that are read for a feature, and for one that is about to found a category."""
CANDIDATES = 8
"""Candidates that are scored exactly."""
CLOSE = 0.0005
"""Cosines that differ by less are too close to rely on the lists."""
AT_ONCE = 2048
"""Most prototypes that go in at a time: nobody's answer shall wait for more than a fraction of a second."""


class CandidateIndex:
    """Lists of the first prototypes of a memory; the memory tells it what happens to them.

    Attributes:
        lists: prototypes of slots 0, 1, ... of the memory. All later ones wait.
        exact_rows: features that exact search over all prototypes decided so far.
    """

    def __init__(self, lists: Lists) -> None:
        self.lists, self.exact_rows = lists, 0

    @property
    def indexed(self) -> int:
        """How many prototypes don't wait."""
        return len(self.lists)

    def nearest_two(self, features: Tensor, prototypes: Tensor, threshold: float) -> Neighbours:
        """Return the two prototypes ``(K, D)`` nearest to unit features ``(B, D)``, for decisions at ``threshold``."""
        features = features.detach()
        wide, rows = features.numpy(), prototypes.numpy()
        waiting = nearest_two(features, prototypes[self.indexed :]).ids.numpy()
        waiting[waiting >= 0] += self.indexed
        near = best_two(wide, rows, np.concatenate([self._propose(wide, FIRST_LOOK), waiting], axis=1))
        ids, scores = near.ids.numpy(), near.similarities.numpy()
        lonely = np.flatnonzero(scores[:, 0] < threshold + CLOSE)
        if len(lonely):
            again = np.concatenate([self._propose(wide[lonely], SECOND_LOOK), ids[lonely]], axis=1)
            _put(near, lonely, best_two(wide[lonely], rows, again))
        close = scores[:, 0] - np.maximum(scores[:, 1], threshold) < CLOSE  # to the runner-up or, from above, to τ
        doubtful = np.flatnonzero(close & (scores[:, 0] > threshold - CLOSE))
        if len(doubtful):
            self.exact_rows += len(doubtful)
            _put(near, doubtful, nearest_two(features[doubtful], prototypes))
        return near

    def catch_up(self, prototypes: Tensor) -> int:
        """Put the prototypes ``(K, D)`` that wait into the lists, at most ``AT_ONCE``; returns how many went in."""
        new = prototypes[self.indexed : self.indexed + AT_ONCE]
        if len(new):
            self.lists.add(new.float().numpy())
        return len(new)

    def move(self, slots: Ints, prototypes: Floats) -> None:
        """Hear that the prototypes of distinct slots ``(L,)`` are others by now ``(L, D)``."""
        inside = slots < self.indexed
        self.lists.move(slots[inside], prototypes[inside])

    def keep(self, slots: Ints) -> None:
        """Hear that only these slots ``(L,)``, ascending, are left, and are numbered anew."""
        self.lists.keep(slots[slots < self.indexed])

    def _propose(self, features: Floats, look: int) -> Ints:
        return self.lists.nearest(features, look, CANDIDATES)


def _put(near: Neighbours, rows: Ints, better: Neighbours) -> None:
    near.ids[rows], near.similarities[rows] = better.ids, better.similarities
