"""Trunk outputs of images and of their random views, computed once (layer: offline).

The trunk is frozen, so its outputs are facts: training, prototypes, rehearsals and evaluations share them.
View 0 is the clean test view; views 1 to V are random ones, each a function of seed, picture and view number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from talon_ocd.backbones.base import Backbone
from talon_ocd.errors import StorageError
from talon_ocd.images.augment import augment, content_key, view_seed
from talon_ocd.images.items import ImageItem, Skipped
from talon_ocd.images.loading import Batch, batches
from talon_ocd.images.transforms import Preprocessing
from talon_ocd.offline.cache_folder import CacheFolder
from talon_ocd.offline.row_store import KEY_BYTES, MISSING, MemorySegment, RowStore
from talon_ocd.progress import SILENT, Progress

TRUNK_BATCH = 64
FORMAT = 2

Numbers = NDArray[np.int64]


class TrunkOutputs:
    """Trunk outputs of N images that could be decoded, valid while their cache is open.

    Attributes:
        kept: positions of these images among the items that were asked for.
        skipped: the others, with reasons.
        views: random views there are of each; fewer than asked for when they would not fit.
    """

    def __init__(
        self,
        stores: tuple[RowStore, RowStore],
        numbers: Tensor,
        kept: list[int],
        skipped: list[Skipped],
        device: torch.device,
    ) -> None:
        self.kept = kept
        self.skipped = skipped
        self.views = len(numbers) - 1
        self._clean, self._random = stores
        self._numbers = numbers
        self._device = device

    def __len__(self) -> int:
        return len(self.kept)

    def empty(self, rows: int) -> Tensor:
        """Return room for ``rows`` trunk outputs, for ``take``."""
        return torch.empty(rows, *self._clean.shape)

    def take(self, index: Tensor, view: Tensor | int = 0, out: Tensor | None = None) -> Tensor:
        """Return hidden ``(B, *hidden_shape)`` of images ``index`` ``(B,)``, counted among the kept ones.

        ``view`` is 0 (clean), 1 to ``views``, or a tensor ``(B,)`` of these. Rows are gathered in ``out`` if given.
        """
        numbers = self._numbers[view, index]
        if isinstance(view, int):
            return (self._random if view else self._clean).gather(numbers, out).to(self._device)
        clean = view == 0
        if not clean.any():
            return self._random.gather(numbers, out).to(self._device)
        hidden = self.empty(len(numbers)) if out is None else out
        hidden[clean], hidden[~clean] = (
            self._clean.gather(numbers[clean]),
            self._random.gather(numbers[~clean]),
        )
        return hidden.to(self._device)


class TrunkCache:
    """Computes trunk outputs that nobody has computed yet; keeps them in memory or on disk.

    With a ``directory`` they outlive the process. Without one they stay in memory up to ``memory_bytes`` and
    go to a temporary folder above it. A full disk is no end: what is missing stays in memory, with fewer
    views if need be.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        memory_bytes: int,
        disk_bytes: int,
        directory: Path | None = None,
        augmentation: str = "talon",
        seed: int = 0,
    ) -> None:
        self.augmentation, self.seed = augmentation, seed
        self._backbone = backbone
        self._memory_bytes, self._disk_bytes = memory_bytes, disk_bytes
        self._directory = directory
        self._folder: CacheFolder | None = None
        self._may_use_disk = True
        self._clean, self._random = (RowStore(backbone.hidden_shape) for _ in range(2))

    def __enter__(self) -> TrunkCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the files; a temporary folder is deleted."""
        if self._folder is not None:
            self._folder.close()

    def outputs(self, items: Sequence[ImageItem], views: int = 0, progress: Progress = SILENT) -> TrunkOutputs:
        """Return the trunk outputs of ``items``: their clean view and ``views`` random ones."""
        if self._directory is not None and self._folder is None:
            self._go_to_disk(progress)
        # Without augmentation every view is the clean one.
        stored = 0 if self.augmentation == "none" else views
        keys = [[_key(item.key, view) for item in items] for view in range(stored + 1)]
        while True:
            fitting = self._fitting_views(self._find(keys), progress)
            keys = keys[: fitting + 1]
            try:
                skipped = self._compute(items, keys, progress)
                break
            except StorageError as error:
                if not self._on_disk:
                    raise
                self._leave_disk(str(error), progress)
        numbers = self._find(keys)
        kept = np.flatnonzero((numbers != MISSING).all(axis=0)).tolist()
        rows = torch.from_numpy(numbers[:, kept])
        if self.augmentation == "none":
            stores, rows = (self._clean, self._clean), rows.expand(views + 1, -1)
        else:
            stores = (self._clean, self._random)
        return TrunkOutputs(stores, rows, kept, skipped, self._backbone.device)

    @property
    def _on_disk(self) -> bool:
        return self._folder is not None and self._may_use_disk

    def _store(self, view: int) -> RowStore:
        return self._random if view else self._clean

    def _find(self, keys: Sequence[Sequence[bytes]]) -> Numbers:
        return np.stack([self._store(view).find(column) for view, column in enumerate(keys)])

    def _compute(
        self, items: Sequence[ImageItem], keys: Sequence[Sequence[bytes]], progress: Progress
    ) -> list[Skipped]:
        """Fill in what is missing; every image is decoded once for all its views."""
        missing = self._find(keys) == MISSING
        todo = {items[at].key: at for at in np.flatnonzero(missing.any(axis=0)).tolist()}
        if not todo:
            return []
        for view, store in ((0, self._clean), (1, self._random)):
            wanted = missing[:1] if view == 0 else missing[1:]
            store.reserve(int(wanted[:, list(todo.values())].sum()))
        skipped: list[Skipped] = []
        preprocessing = self._backbone.preprocessing
        with progress.task("Looking at images", len(todo)) as task, torch.no_grad():
            wanted_items = [items[at] for at in todo.values()]
            for batch in batches(wanted_items, preprocessing, TRUNK_BATCH, skipped.append):
                places = [todo[item.key] for item in batch.items]
                for view in range(len(keys)):
                    part = [at for at, place in enumerate(places) if missing[view, place]]
                    if part:
                        hidden = self._look(batch, part, view)
                        self._store(view).append([keys[view][places[at]] for at in part], hidden)
                task.advance(len(batch))
            task.advance(len(skipped))
        return skipped

    def _look(self, batch: Batch, part: Sequence[int], view: int) -> Tensor:
        """Run the trunk on one view of the images ``part`` of a batch."""
        canvases = [batch.canvases[at] for at in part]
        seeds = [view_seed(self.seed, content_key(canvas), view) for canvas in canvases]
        recipe = self.augmentation if view else "none"
        pixels = view_pixels(canvases, self._backbone.preprocessing, recipe, seeds)
        hidden: Tensor = self._backbone.trunk(pixels.to(self._backbone.device))
        return hidden.float().cpu()

    def _fitting_views(self, numbers: Numbers, progress: Progress) -> int:
        """Return how many views have room: all that are asked for, fewer (but a pair), or none."""
        views = len(numbers) - 1
        missing = (numbers == MISSING).sum(axis=1).cumsum() * self._clean.row_bytes
        choices: list[int] = [*range(views, 1, -1), 0] if views > 1 else [*range(views, -1, -1)]
        for choice in choices:
            if self._has_room(int(missing[choice]), progress):
                if choice < views:
                    progress.note(
                        f"Only {choice} of {views} random views an image fit into the trunk cache; raise "
                        "offline.cache_bytes or offline.cache_disk_bytes for more."
                    )
                return choice
        raise StorageError(
            f"trunk outputs of {numbers.shape[1]} images need {int(missing[0]):,} bytes, more than memory "
            "and disk may hold; raise offline.cache_bytes or offline.cache_disk_bytes, or use fewer images."
        )

    def _has_room(self, needed: int, progress: Progress) -> bool:
        """Return whether ``needed`` more bytes fit where the cache is, or elsewhere: then it goes there."""
        in_memory = self._clean.memory_bytes + self._random.memory_bytes + needed <= self._memory_bytes
        if needed == 0 or (in_memory and not self._on_disk):
            return True
        if self._folder is None and self._may_use_disk:
            self._go_to_disk(progress)
        if self._on_disk and self._folder is not None and self._folder.make_room(needed):
            return True
        if in_memory and self._on_disk:
            self._leave_disk("No room for the trunk cache on disk.", progress)
        return in_memory

    def _go_to_disk(self, progress: Progress) -> None:
        """Grow in files from now on: in the given directory, or in a temporary one."""
        shape = self._backbone.hidden_shape
        try:
            self._folder = CacheFolder(self._directory, self._disk_bytes)
            segments = [self._folder.open(self._name(clean), shape) for clean in (True, False)]
        except StorageError as error:
            if self._directory is None:
                self._leave_disk(str(error), progress)
                return
            progress.note(f"{error} This run keeps its own cache.")
            self._directory, self._folder = None, None
            return
        for store, segment in zip((self._clean, self._random), segments, strict=True):
            store.grow_in(segment)
        if self._directory is None:
            progress.note(f"The trunk cache is larger than memory may hold; it goes to {self._folder.path}.")

    def _leave_disk(self, reason: str, progress: Progress) -> None:
        progress.note(f"{reason} What is missing stays in memory.")
        self._may_use_disk = False
        for store in (self._clean, self._random):
            store.grow_in(MemorySegment(store.shape, 0))

    def _name(self, clean: bool) -> str:
        """Return the file name: equal names mean equal rows. The seed only matters to random views."""
        facts = [FORMAT, self._backbone.trunk_fingerprint(), self._backbone.preprocessing.to_dict()]
        facts += [] if clean else [self.augmentation, self.seed]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def view_pixels(
    canvases: Sequence[Tensor], preprocessing: Preprocessing, augmentation: str, seeds: Sequence[int]
) -> Tensor:
    """Return pixels ``(B, 3, crop, crop)`` of one random view a canvas; ``none`` is the test view."""
    if augmentation == "none":
        return preprocessing.pixels(canvases)
    return preprocessing.normalise(augment(canvases, preprocessing, augmentation, seeds))


def _key(key: str, view: int) -> bytes:
    text = f"{view}|{key}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=KEY_BYTES).digest()
