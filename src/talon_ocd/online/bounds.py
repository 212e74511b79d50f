"""How much a stream may remember (layer: online)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from talon_ocd.memory import PrototypeMemory
from talon_ocd.online.silent import heard_of
from talon_ocd.settings import check_types, require

SLACK = 0.95
"""Share of the largest number of categories that is left when it was passed: room for the next ones."""


@dataclass(frozen=True)
class Bounds:
    """Which discovered categories are retired: they keep their ids and images, but no image joins them any more."""

    most_categories: int = 20_000
    """Discovered categories in the memory, about 8 kB each and 4 bytes for every dimension of the features.
    Beyond it those with the fewest images go, the least recent first."""
    tentative_below: int = 2
    """A category with fewer images is tentative."""
    retire_after: int = 0
    """Answers after which a tentative category that nothing joined is retired; 0: never."""

    def __post_init__(self) -> None:
        check_types(self)
        require(self, "most_categories", self.most_categories >= 1, "1 or more")
        require(self, "tentative_below", self.tentative_below >= 1, "1 or more")
        require(self, "retire_after", self.retire_after >= 0, "0 (never) or more")

    def hold(self, memory: PrototypeMemory) -> bool:
        """Is there nothing to retire for sure? It takes no look at a million categories."""
        return not self.retire_after and memory.size - memory.known <= self.most_categories

    def kept(self, memory: PrototypeMemory, answered: int) -> Tensor:
        """Return the slots ``(L,)`` that stay, ascending."""
        silent = ~heard_of(memory)  # as if an image founded it just now: one will, and until then it has no age
        counts = np.where(silent, 1, memory.counts.numpy())
        last = np.where(silent, answered, memory.last.numpy())
        stays = np.ones(memory.size, np.bool_)
        if self.retire_after:
            stays = (counts >= self.tentative_below) | (last >= answered - self.retire_after)
        stays[: memory.known] = True
        discovered = np.flatnonzero(stays)[memory.known :]
        if len(discovered) > self.most_categories:
            weakest_first = discovered[np.lexsort((last[discovered], counts[discovered]))]
            stays[weakest_first[: len(discovered) - int(self.most_categories * SLACK)]] = False
        return torch.from_numpy(np.flatnonzero(stays))
