"""Pairs of random views for training (layer: offline): from the cache, or fresh at every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from talon_ocd.backbones.base import Backbone
from talon_ocd.errors import ConfigError, ImageError
from talon_ocd.images.items import ImageItem
from talon_ocd.images.loading import load_canvases
from talon_ocd.offline.trunk_cache import TrunkOutputs, view_pixels


class Views(Protocol):
    """Where training takes two views of the same images from."""

    def pair(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Return hidden ``(2, B, *hidden_shape)`` of two random views of each image ``index`` ``(B,)``.

        An image -1 is held by another process: it is drawn for like the others, and left out of the result.
        The tensor is the caller's until the next call, which may fill it anew.
        """


class CachedViews:
    """Two distinct ones of the cached views 1 to V, drawn for each image; ``views`` lowers V."""

    def __init__(self, outputs: TrunkOutputs, views: int | None = None) -> None:
        self._outputs = outputs
        self._room = outputs.empty(0)
        self.views = outputs.views if views is None else min(views, outputs.views)
        if self.views < 2:
            raise ConfigError(
                f"{self.views} cached views an image make no pair; use views=2 or more, or 0 (fresh ones)."
            )

    def pair(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Return two cached views of each image, always in the same place: fresh pages cost as much as the copy."""
        first = torch.randint(self.views, index.shape, generator=generator)
        step = torch.randint(1, self.views, index.shape, generator=generator)
        second = (first + step) % self.views
        here = index >= 0
        if not here.all():
            index, first, second = index[here], first[here], second[here]
        rows = 2 * len(index)
        if len(self._room) < rows:
            self._room = self._outputs.empty(rows)
        hidden = self._outputs.take(index.repeat(2), torch.cat([first, second]) + 1, self._room[:rows])
        pairs: Tensor = hidden.unflatten(0, (2, len(index)))
        return pairs


class FreshViews:
    """Decodes, augments and runs the trunk at every step: as the released code does, and as slow."""

    def __init__(
        self,
        items: Sequence[ImageItem],
        backbone: Backbone,
        augmentation: str = "talon",
    ) -> None:
        self._items, self._backbone, self._augmentation = items, backbone, augmentation

    def pair(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Return two views of each image that nobody has seen before."""
        seeds = torch.randint(1, 2**62, (2, len(index)), generator=generator)[:, index >= 0].tolist()
        items = [self._items[at] for at in index.tolist() if at >= 0]
        if not items:
            return torch.empty(2, 0, *self._backbone.hidden_shape, device=self._backbone.device)
        canvases = [_canvas(canvas) for _, canvas in load_canvases(items, self._backbone.preprocessing)]
        return torch.stack([self._look(canvases, numbers) for numbers in seeds])

    def _look(self, canvases: Sequence[Tensor], seeds: Sequence[int]) -> Tensor:
        with torch.no_grad():
            pixels = view_pixels(canvases, self._backbone.preprocessing, self._augmentation, seeds)
            hidden: Tensor = self._backbone.trunk(pixels.to(self._backbone.device))
        return hidden


@dataclass(frozen=True)
class Subset:
    """Views of some of the images of other views."""

    views: Views
    index: Tensor

    def pair(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Return hidden of two views of the images at ``index`` ``(B,)`` of the subset."""
        return self.views.pair(self.index[index], generator)


def _canvas(loaded: Tensor | ImageError) -> Tensor:
    if isinstance(loaded, ImageError):
        raise loaded
    return loaded
