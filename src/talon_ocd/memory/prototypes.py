"""Prototype memory: one unit vector and one count for every category (layer: memory).

Known categories come first, discovered ones follow in order of creation; ids are positions and are never reused.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.errors import DataError
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
        self._size = len(prototypes)
        self.known = len(prototypes) if known is None else known

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
        """The unit prototypes ``(K, D)``, a view: read it, change it through ``replace``."""
        return self._storage[: self._size]

    @property
    def counts(self) -> Tensor:
        """Stream images answered with each category ``(K,)``, a view."""
        return self._counts[: self._size]

    def nearest(self, features: Tensor) -> Neighbours:
        """Return the two nearest categories of unit features ``(B, D)``; changes nothing."""
        return nearest_two(features, self.prototypes)

    def append(self, features: Tensor) -> None:
        """Add unit vectors ``(N, D)`` as new categories with the ids K, K + 1, ..."""
        needed = self._size + len(features)
        if needed > len(self._storage):
            self._grow(max(needed, int(len(self._storage) * GROWTH), 16))
        self._storage[self._size : needed] = features
        self._counts[self._size : needed] = 0
        self._size = needed

    def count(self, ids: Tensor) -> None:
        """Add one to the count of each id ``(B,)``; an id may occur more than once."""
        self._counts.index_add_(0, ids, torch.ones_like(ids))

    def replace(self, ids: Tensor, prototypes: Tensor) -> None:
        """Put unit vectors ``(L, D)`` in the place of the prototypes of distinct ids ``(L,)``."""
        self._storage[ids] = prototypes

    def copy(self) -> PrototypeMemory:
        """Return an independent copy."""
        known = torch.tensor(self.known)
        return self.from_state_dict({"prototypes": self.prototypes, "counts": self.counts, "known": known})

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state as tensors, ready for safetensors."""
        return {
            "prototypes": self.prototypes.clone(),
            "counts": self.counts.clone(),
            "known": torch.tensor(self.known),
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor]) -> PrototypeMemory:
        """Rebuild a memory from ``state_dict``, to the bit: prototypes are not normalised once more."""
        prototypes, counts, known = state["prototypes"], state["counts"], int(state["known"])
        memory = cls(prototypes[:0], known)
        whole = (
            prototypes.dtype == torch.float32 and counts.dtype == torch.int64 and counts.shape == prototypes.shape[:1]
        )
        if not whole or not 0 <= known <= len(prototypes):
            raise DataError(
                f"saved prototypes {tuple(prototypes.shape)} {prototypes.dtype}, counts {tuple(counts.shape)} "
                f"{counts.dtype} and known={known} do not belong together; load another copy of the model."
            )
        if not torch.isfinite(prototypes.sum(dim=1)).all():
            raise DataError("saved prototypes hold NaN or infinity; load another copy of the model.")
        memory._storage, memory._counts, memory._size = prototypes.clone(), counts.clone(), len(prototypes)
        return memory

    def _grow(self, capacity: int) -> None:
        storage = torch.empty(capacity, self.feature_size)
        counts = torch.zeros(capacity, dtype=torch.int64)
        storage[: self._size] = self.prototypes
        counts[: self._size] = self.counts
        self._storage, self._counts = storage, counts
