"""Virtual images as training sees them (layer: methods; section 3.10): trunk outputs, from a folder or mixed.

Generated pictures reach a recipe as ``Labelled.virtual``. Without them two labelled images are mixed, which is a
stand-in that needs no diffusion model: it shows that the rest works, not what DiffGRE is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from talon_ocd.offline import CachedViews, TrunkOutputs, Views


class VirtualImages(Views, Protocol):
    """Images of classes that nobody has seen, as trunk outputs."""

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> Tensor:
        """Return hidden ``(B, *hidden_shape)`` of the clean views of images ``index`` ``(B,)``."""


class StoredImages:
    """Generated pictures whose trunk outputs are known."""

    def __init__(self, outputs: TrunkOutputs) -> None:
        self._outputs = outputs
        self._views = CachedViews(outputs) if outputs.views > 1 else None

    def __len__(self) -> int:
        return len(self._outputs)

    def take(self, index: Tensor) -> Tensor:
        """Return the clean views."""
        return self._outputs.take(index)

    def pair(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Return two random views, or the clean one twice where there are none."""
        if self._views is not None:
            return self._views.pair(index, generator)
        return torch.stack([self._outputs.take(index)] * 2)


@dataclass(frozen=True)
class MixedImages:
    """Blends of two labelled images of different classes.

    Attributes:
        outputs: trunk outputs that ``first`` and ``second`` ``(V,)`` count in.
        views: random views of the same images, counted from 0 to N - 1 as ``members`` does.
        members: positions ``(N,)`` of the labelled images among ``outputs``.
        first: one parent of each blend, counted among the members.
        second: the other one.
        share: how much of a blend is its first parent's.
    """

    outputs: TrunkOutputs
    views: Views
    members: Tensor
    first: Tensor
    second: Tensor
    share: float = 0.5

    def __len__(self) -> int:
        return len(self.first)

    def take(self, index: Tensor) -> Tensor:
        """Return blends of the clean views."""
        first, second = (self.outputs.take(self.members[parent[index]]) for parent in (self.first, self.second))
        return torch.lerp(second, first, self.share)

    def pair(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Return two blends of random views."""
        first = self.views.pair(self.first[index], generator).clone()  # the next call fills the same place
        return torch.lerp(self.views.pair(self.second[index], generator), first, self.share)


def unlike_pairs(labels: Tensor, count: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return two indices ``(count,)`` each: images of different classes, all such pairs as likely.

    Both are empty if all labels ``(N,)`` are one class.
    """
    order = labels.argsort(stable=True)
    sizes = torch.bincount(labels)
    if count == 0 or int(sizes.max()) == len(labels):
        return order[:0], order[:0]
    # A class lies in one piece of the order; the partner is drawn from what follows the piece, round the end.
    weights = (len(labels) - sizes)[labels].double()
    first = torch.multinomial(weights, count, replacement=True, generator=draws)
    own = labels[first]
    ends = sizes.cumsum(0)[own]
    others = len(labels) - sizes[own]
    step = (torch.rand(count, generator=draws, dtype=torch.float64) * others).long()
    return first, order[(ends + step) % len(labels)]


@dataclass(frozen=True)
class JoinedViews:
    """Labelled images, numbers 0 to ``count - 1``, and the chosen virtual ones after them."""

    views: Views
    count: int
    virtual: VirtualImages
    chosen: Tensor

    def pair(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Return hidden ``(2, B, *hidden_shape)`` of two views of each image."""
        real = index < self.count
        if real.all():
            return self.views.pair(index, generator)
        made = self.virtual.pair(self.chosen[index[~real] - self.count], generator)
        if not real.any():
            return made
        hidden = made.new_empty(2, len(index), *made.shape[2:])
        hidden[:, ~real] = made
        hidden[:, real] = self.views.pair(index[real], generator)
        return hidden
