"""The labelled images as a method sees them (layer: offline): trunk outputs, labels, names; nothing of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from talon_ocd.backbones import Backbone
from talon_ocd.config import OfflineConfig
from talon_ocd.errors import DataError
from talon_ocd.images import ImageItem
from talon_ocd.offline.trunk_cache import TrunkCache, TrunkOutputs
from talon_ocd.offline.views import CachedViews, FreshViews, Views
from talon_ocd.progress import SILENT, Progress


@dataclass(frozen=True)
class Labelled:
    """N labelled images of C known classes.

    Attributes:
        outputs: trunk outputs of the images; view 0 is the clean one.
        labels: classes from 0 to C - 1 ``(N,)``.
        names: names of the classes, in the order of their numbers.
        views: random views of the same images, for training.
        virtual: trunk outputs of generated images of no known class, for methods that train on such (DiffGRE).
    """

    outputs: TrunkOutputs
    labels: Tensor
    names: tuple[str, ...]
    views: Views
    virtual: TrunkOutputs | None = None

    @classmethod
    def from_items(
        cls,
        items: Sequence[ImageItem],
        backbone: Backbone,
        config: OfflineConfig,
        cache: TrunkCache,
        progress: Progress = SILENT,
    ) -> Labelled:
        """Look at images that all have a label; those that can't be used are in ``outputs.skipped``."""
        outputs = cache.outputs(items, config.views if config.epochs else 0, progress)
        kept = [items[i] for i in outputs.kept]
        names = tuple(sorted({item.label for item in kept if item.label is not None}))
        if not names:
            raise DataError(f"none of the {len(items)} labelled images can be used; see the list of skipped images.")
        position = {name: number for number, name in enumerate(names)}
        labels = torch.tensor([position[item.label] for item in kept if item.label is not None])
        views: Views = CachedViews(outputs) if outputs.views else FreshViews(kept, backbone, config.augmentation)
        return cls(outputs, labels, names, views)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        """C, the number of known classes."""
        return len(self.names)
