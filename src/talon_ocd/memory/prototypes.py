"""Prototype memory: one unit vector and one count for every category (layer: memory).

Known categories come first, discovered ones follow in order of creation. A category has an *id* for ever, and a *slot*
as long as it is in the memory; the two are equal until a category is retired. Ids are never reused.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.errors import DataError
from talon_ocd.memory.lists import Lists
from talon_ocd.memory.neighbours import CandidateIndex
from talon_ocd.memory.search import Neighbours, nearest_two

GROWTH = 1.5
"""Factor by which the storage grows; what is not used yet is reserved, not resident."""


class PrototypeMemory:
    """Unit prototypes ``(K, D)`` with their counts ``(K,)``; the first ``known`` of them are known classes.

    >>> memory = PrototypeMemory(torch.eye(2))
    >>> memory.append(torch.tensor([[0.6, 0.8]]))
    >>> memory.size, memory.known, memory.nearest(torch.tensor([[0.0, 1.0]])).ids.tolist()
    (3, 2, [[1, 2]])
    """

    def __init__(self, prototypes: Tensor, known: int | None = None, counts: Tensor | None = None) -> None:
        if prototypes.ndim != 2 or prototypes.shape[1] == 0:
            raise DataError(f"prototypes must have the shape (K, D), got {tuple(prototypes.shape)}.")
        if not torch.isfinite(prototypes.sum(dim=1)).all():  # of the rows: no mask as large as the prototypes
            raise DataError("prototypes must be finite, got NaN or infinity; check the features they come from.")
        self._storage = F.normalize(prototypes.detach().to("cpu", torch.float32), dim=1)
        self._counts = torch.zeros(len(prototypes), dtype=torch.int64) if counts is None else counts.clone()
        self._last = torch.full_like(self._counts, -1)
        self._ids = torch.arange(len(prototypes))
        self._size = self.next_id = len(prototypes)
        self.known = len(prototypes) if known is None else known
        self._index: CandidateIndex | None = None

    def __len__(self) -> int:
        return self._size

    @property
    def size(self) -> int:
        """K, the number of categories."""
        return self._size

    @property
    def feature_size(self) -> int:
        """D."""
        return self._storage.shape[1]

    @property
    def prototypes(self) -> Tensor:
        """The unit prototypes ``(K, D)``: a view, a copy in half precision; change them through ``replace``."""
        return self.stored.float()

    @property
    def stored(self) -> Tensor:
        """The prototypes ``(K, D)`` as they are held, in single or half precision; a view."""
        return self._storage[: self._size]

    @property
    def counts(self) -> Tensor:
        """Stream images answered with each category ``(K,)``, a view."""
        return self._counts[: self._size]

    @property
    def ids(self) -> Tensor:
        """The id of each slot ``(K,)``, a view."""
        return self._ids[: self._size]

    @property
    def last(self) -> Tensor:
        """Index of the last answer of each slot ``(K,)``, -1 if there is none; a view."""
        return self._last[: self._size]

    def slot(self, category: int) -> int | None:
        """Return the slot of a category, ``None`` if it is not in the memory."""
        found = (self.ids == category).nonzero()
        return int(found[0]) if len(found) else None

    def rows(self, slots: Tensor) -> Tensor:
        """Return a copy of the prototypes of some slots ``(L,)``."""
        return self._storage[slots].float()

    def nearest(self, features: Tensor) -> Neighbours:
        """Return the two nearest categories of unit features ``(B, D)``; changes nothing."""
        return nearest_two(features, self.stored)

    def nearest_for(self, features: Tensor, threshold: float, index_above: int) -> Neighbours:
        """Return the two nearest categories, as far as a decision at ``threshold`` needs them.

        With ``index_above`` categories or more an index finds candidates, unless ``index_above`` is 0: see
        ``neighbours.py``. With fewer, and before ``fill_index`` began, it is ``nearest``. Changes nothing.
        """
        if self._index is None or not self.is_large(index_above):
            return self.nearest(features)
        return self._index.nearest_two(features, self.stored, threshold)

    def fill_index(self, index_above: int) -> int:
        """Put prototypes that wait into the index, if there are enough for one; returns how many went in.

        A stream does so whenever it adapts, step by step: see ``neighbours.AT_ONCE``.
        """
        if not self.is_large(index_above):
            return 0
        if self._index is None:
            self._index = CandidateIndex(Lists(self.feature_size))
        return self._index.catch_up(self.stored)

    @property
    def index(self) -> CandidateIndex | None:
        """The index, if there is one yet."""
        return self._index

    def is_large(self, index_above: int) -> bool:
        """Are there so many categories that an index finds candidates? 0 is never."""
        return 0 < index_above <= self._size

    def halve(self) -> None:
        """Hold the prototypes in half precision from now on; an index of what they were before is filled anew."""
        if self._storage.dtype != torch.float16:
            self._storage, self._index = self._storage.half(), None

    def append(self, features: Tensor, category: int | None = None) -> None:
        """Add unit vectors ``(N, D)`` as new categories with the next ids, or one that has an id already."""
        needed = self._size + len(features)
        if needed > len(self._storage):
            self._grow(max(needed, int(len(self._storage) * GROWTH), 16))
        first = self.next_id if category is None else category
        self._storage[self._size : needed] = features
        self._counts[self._size : needed] = 0
        self._last[self._size : needed] = -1
        self._ids[self._size : needed] = torch.arange(first, first + len(features))
        self._size, self.next_id = needed, max(self.next_id, first + len(features))

    def count(self, slots: Tensor, first: int = 0) -> None:
        """Count answers ``(B,)``, which have the indices ``first``, ``first + 1``, ...; a slot may occur twice."""
        self._counts.index_add_(0, slots, torch.ones_like(slots))
        self._last.scatter_reduce_(0, slots, torch.arange(first, first + len(slots)), "amax")

    def replace(self, slots: Tensor, prototypes: Tensor) -> None:
        """Put unit vectors ``(L, D)`` in the place of the prototypes of distinct slots ``(L,)``."""
        self._storage[slots] = prototypes.to(self._storage.dtype)
        if self._index is not None:
            self._index.move(slots.numpy(), self.rows(slots).numpy())

    def keep(self, slots: Tensor) -> None:
        """Keep only these slots ``(L,)``, ascending, known classes among them; others lose their place for ever."""
        if self._index is not None:
            self._index.keep(slots.numpy())
        self._storage, self._counts = self._storage[slots], self._counts[slots]
        self._last, self._ids, self._size = self._last[slots], self._ids[slots], len(slots)

    def copy(self) -> PrototypeMemory:
        """Return an independent copy."""
        return self.from_state_dict(self.state_dict())

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state as tensors, ready for safetensors."""
        lists = {} if self._index is None else self._index.lists.state_dict()
        return {
            **{f"index.{name}": value for name, value in lists.items()},
            "prototypes": self.stored.clone(),
            "counts": self.counts.clone(),
            "last": self.last.clone(),
            "ids": self.ids.clone(),
            "next_id": torch.tensor(self.next_id),
            "known": torch.tensor(self.known),
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor]) -> PrototypeMemory:
        """Rebuild a memory from ``state_dict``, to the bit: prototypes are not normalised once more."""
        prototypes, counts, known = state["prototypes"], state["counts"], int(state["known"])
        memory = cls(prototypes[:0], known)
        kinds = prototypes.dtype in (torch.float32, torch.float16) and counts.dtype == torch.int64
        whole = kinds and counts.shape == prototypes.shape[:1]
        if not whole or not 0 <= known <= len(prototypes):
            raise DataError(
                f"saved prototypes {tuple(prototypes.shape)} {prototypes.dtype}, counts {tuple(counts.shape)} "
                f"{counts.dtype} and known={known} do not belong together; load another copy of the model."
            )
        if not torch.isfinite(prototypes.sum(dim=1)).all():
            raise DataError("saved prototypes hold NaN or infinity; load another copy of the model.")
        memory._storage, memory._counts, memory._size = prototypes.clone(), counts.clone(), len(prototypes)
        memory._ids = state["ids"].clone() if "ids" in state else torch.arange(len(prototypes))  # older models: slots
        memory._last = state["last"].clone() if "last" in state else torch.full_like(memory._counts, -1)
        memory.next_id = int(state.get("next_id", torch.tensor(len(prototypes))))
        if "index.lists" in state:
            lists = {name: state[f"index.{name}"] for name in ("centres", "lists")}
            memory._index = CandidateIndex(Lists.from_state_dict(lists, memory.stored))
        return memory

    def _grow(self, capacity: int) -> None:
        storage = torch.empty(capacity, self.feature_size, dtype=self._storage.dtype)
        storage[: self._size] = self.stored
        self._storage = storage
        for name in ("_counts", "_last", "_ids"):
            longer = torch.zeros(capacity, dtype=torch.int64)
            longer[: self._size] = getattr(self, name)[: self._size]
            setattr(self, name, longer)
