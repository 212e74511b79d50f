"""The labelled images as a method sees them (layer: offline): trunk outputs, labels, names; nothing of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from talon_ocd.backbones import Backbone
from talon_ocd.config import OfflineConfig
from talon_ocd.errors import DataError
from talon_ocd.images import ImageItem, Skipped
from talon_ocd.offline.distributed import ALONE, Processes, Share, owners
from talon_ocd.offline.trunk_cache import TrunkCache, TrunkOutputs
from talon_ocd.offline.views import CachedViews, FreshViews, Subset, Views
from talon_ocd.progress import SILENT, Progress


@dataclass(frozen=True)
class Labelled:
    """N labelled images of C known classes.

    Attributes:
        outputs: trunk outputs of the images that this process holds; view 0 is the clean one.
        labels: classes from 0 to C - 1 ``(N,)``.
        names: names of the classes, in the order of their numbers.
        views: random views of the same images, for training.
        virtual: trunk outputs of generated images of no known class, for methods that train on such (DiffGRE).
        share: which process holds which image, if there are several.
        skipped: images that could not be used, with reasons.
    """

    outputs: TrunkOutputs
    labels: Tensor
    names: tuple[str, ...]
    views: Views
    virtual: TrunkOutputs | None = None
    share: Share | None = None
    skipped: tuple[Skipped, ...] = ()

    @classmethod
    def from_items(
        cls,
        items: Sequence[ImageItem],
        backbone: Backbone,
        config: OfflineConfig,
        cache: TrunkCache,
        progress: Progress = SILENT,
        processes: Processes = ALONE,
    ) -> Labelled:
        """Look at images that all have a label; with several processes, each looks at its own ones."""
        owner = owners([item.source for item in items], processes.size)
        own = torch.nonzero(owner == processes.rank)[:, 0].tolist()
        with processes.together():
            processes.check_batch(config.batch_size)
            outputs = cache.outputs([items[at] for at in own], config.views if config.epochs else 0, progress)
        found = processes.all(([own[at] for at in outputs.kept], outputs.skipped, outputs.views))
        kept = sorted(at for positions, _, _ in found for at in positions)
        names = tuple(sorted({label for at in kept if (label := items[at].label) is not None}))
        if not names:
            raise DataError(f"none of the {len(items)} labelled images can be used; see the list of skipped images.")
        position = {name: number for number, name in enumerate(names)}
        labels = torch.tensor([position[label] for at in kept if (label := items[at].label) is not None])
        fewest = min(views for _, _, views in found)
        fresh = [items[own[at]] for at in outputs.kept]
        views: Views = CachedViews(outputs, fewest) if fewest else FreshViews(fresh, backbone, config.augmentation)
        share = None
        if processes.size > 1:
            share = Share.among(processes, owner[kept])
            views = Subset(views, share.numbers)
        skipped = tuple(skip for _, skips, _ in found for skip in skips)
        return cls(outputs, labels, names, views, share=share, skipped=skipped)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        """C, the number of known classes."""
        return len(self.names)
