"""The two nearest of very many prototypes: candidates from a graph, scored again exactly (layer: memory).

usearch holds a graph (HNSW) over the prototypes in 8 bits. It proposes a few candidates for every feature, and their
cosines are taken from the memory itself, so that the graph can miss a prototype but never invent one. Where a miss
could change an answer, the search is not content with it:

* before a category is founded, the graph is searched a second time, much wider;
* close to the threshold, and between close candidates, exact search decides.

Prototypes that are new, and those that moved far since they were put into the graph, wait outside of it and are
searched exactly; a few of them go in at every search. So the graph is never built in one go, and never saved: it
follows from the memory. ``docs/large-memories.md`` has the measurements behind the constants.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from talon_ocd.memory.search import Floats, Ints, Neighbours, best_two, nearest_two

CONNECTIVITY = 24
"""Links of a prototype in the graph; twice as many on its lowest layer."""
INSERT = 96
"""Prototypes looked at to find the links of one that goes in."""
FIRST_LOOK, SECOND_LOOK = 48, 512
"""Prototypes of the graph that are looked at for a feature, and for one that is about to found a category."""
CANDIDATES = 8
"""Candidates that are scored exactly."""
CLOSE = 0.0005
"""Cosines that differ by less are too close to rely on the graph."""
FAR = 0.1
"""Angle in radians that a prototype may move before it is put into the graph anew."""
WAITING = 1024
"""Prototypes that may wait outside: new ones still move much."""
AT_ONCE = 8
"""Most prototypes that go in for every feature that is searched for."""


class CandidateIndex:
    """A graph over the first prototypes of a memory; the memory tells it what happens to them.

    Attributes:
        indexed: prototypes in the graph: slots 0, 1, ... of the memory. All later ones wait.
        exact_rows: features that exact search over all prototypes decided so far.
    """

    def __init__(self, library: ModuleType, size: int) -> None:
        self._graph: Any = library.Index(
            ndim=size, metric="cos", dtype="i8", connectivity=CONNECTIVITY, expansion_add=INSERT
        )
        self.indexed = self.exact_rows = 0
        self._keys: Ints = np.empty(0, np.int64)  # of the slots; ascending, for whatever goes in gets the next key
        self._travelled: npt.NDArray[np.float32] = np.empty(0, np.float32)
        self._next_key = 0
        self._moved: Ints = np.empty(0, np.int64)  # slots that are elsewhere in the graph, in the order they left

    @classmethod
    def create(cls, size: int) -> CandidateIndex | None:
        """Return an index of prototypes with ``size`` dimensions; without usearch there is none, and a warning."""
        library = _usearch()
        return None if library is None else cls(library, size)

    def nearest_two(self, features: Tensor, prototypes: Tensor, threshold: float) -> Neighbours:
        """Return the two prototypes ``(K, D)`` nearest to unit features ``(B, D)``, for decisions at ``threshold``."""
        self.catch_up(prototypes, AT_ONCE * len(features), WAITING)
        features = features.detach()
        wide, rows = features.numpy(), prototypes.numpy()
        waiting = self._nearest_waiting(features, prototypes)
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

    def catch_up(self, prototypes: Tensor, most: int, leave: int = 0) -> int:
        """Put at most ``most`` waiting prototypes into the graph, but ``leave`` some; returns how many went in.

        It is single-threaded work, so that the same calls give the same graph.
        """
        new = len(prototypes) - self.indexed
        number = min(most, new + len(self._moved) - leave)
        if number <= 0:
            return 0
        again, self._moved = self._moved[:number], self._moved[number:]
        if len(again):
            self._graph.remove(self._keys[again], threads=1)
            self._add(again, prototypes)
        if number > len(again):
            slots = np.arange(self.indexed, self.indexed + number - len(again))
            self._reserve(self.indexed + len(slots))
            self._keys[slots] = np.arange(self._next_key, self._next_key + len(slots))
            self._next_key += len(slots)
            self.indexed += len(slots)
            self._add(slots, prototypes)
        return number

    def move(self, slots: Ints, before: Floats, after: Floats) -> None:
        """Hear that the prototypes of distinct slots ``(L,)`` went from one place ``(L, D)`` to another."""
        inside = slots < self.indexed
        slots = slots[inside]
        cosines = np.einsum("ld,ld->l", before[inside].astype(np.float64), after[inside].astype(np.float64))
        self._travelled[slots] += np.arccos(np.clip(cosines, -1.0, 1.0))  # never less than how far it is away by now
        far = slots[self._travelled[slots] > FAR]
        self._moved = np.concatenate([self._moved, far[~np.isin(far, self._moved)]])

    def keep(self, slots: Ints) -> None:
        """Hear that only these slots ``(L,)``, ascending, are left, and are numbered anew."""
        stays = np.zeros(self.indexed, np.bool_)
        kept = slots[slots < self.indexed]
        stays[kept] = True
        gone = self._keys[: self.indexed][~stays]
        if len(gone):
            self._graph.remove(gone, threads=1)
        self._moved = np.searchsorted(kept, self._moved[stays[self._moved]])
        self._keys, self._travelled, self.indexed = self._keys[kept], self._travelled[kept], len(kept)

    def _propose(self, features: Floats, look: int) -> Ints:
        """Return candidates' slots ``(B, CANDIDATES)``; -1 where there are fewer."""
        found = np.full((len(features), CANDIDATES), -1)
        if self.indexed and len(features):
            self._graph.expansion_search = look
            matches = self._graph.search(features, CANDIDATES, threads=1)
            keys = np.atleast_2d(matches.keys)  # one feature has a row of its own, which is no longer than it must be
            counts = getattr(matches, "counts", np.array([keys.shape[1]]))
            places = np.searchsorted(self._keys[: self.indexed], keys.astype(np.int64))
            found[:, : keys.shape[1]] = np.where(np.arange(keys.shape[1]) < counts[:, None], places, -1)
        return found

    def _nearest_waiting(self, features: Tensor, prototypes: Tensor) -> Ints:
        """Return the slots of the nearest two that are new and of the nearest two that moved ``(B, 4)``."""
        new = nearest_two(features, prototypes[self.indexed :]).ids.numpy()
        moved = nearest_two(features, prototypes[torch.from_numpy(self._moved)]).ids.numpy()
        slots = np.append(self._moved, -1)[moved]
        return np.concatenate([np.where(new >= 0, new + self.indexed, -1), slots], axis=1)

    def _add(self, slots: Ints, prototypes: Tensor) -> None:
        rows = prototypes[torch.from_numpy(slots)].float().numpy()
        self._graph.add(self._keys[slots], rows, threads=1)
        self._travelled[slots] = 0.0

    def _reserve(self, capacity: int) -> None:
        """Make room for so many slots; half as many more at a time."""
        if capacity > len(self._keys):
            more = capacity * 3 // 2 - len(self._keys)
            self._keys = np.pad(self._keys, (0, more))
            self._travelled = np.pad(self._travelled, (0, more))


def _put(near: Neighbours, rows: Ints, better: Neighbours) -> None:
    near.ids[rows], near.similarities[rows] = better.ids, better.similarities


@cache
def _usearch() -> ModuleType | None:
    """Return the library, or ``None`` with a warning that comes once."""
    try:
        return import_module("usearch.index")
    except ImportError:
        warnings.warn(
            "the memory is large, and usearch, which would speed its search up, is not installed: exact search goes "
            "on, with the same answers. Install it with: pip install 'talon-ocd[index]'",
            stacklevel=2,
        )
        return None
