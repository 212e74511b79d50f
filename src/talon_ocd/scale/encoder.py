"""An encoder: decodes images and runs trunk and head, in a process of its own (layer: scale).

It remembers nothing that counts. What it is asked can be asked again, of it or of another one, with the same result.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from talon_ocd.durable.pictures import SIDE
from talon_ocd.errors import ImageError
from talon_ocd.images import ImageItem, load_canvases
from talon_ocd.online import DiscoveryStream
from talon_ocd.scale.batching import Cut
from talon_ocd.scale.portable import with_bytes
from talon_ocd.scale.settings import Wanted
from talon_ocd.talon import Talon

if TYPE_CHECKING:
    import pyarrow

Bytes3 = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Work:
    """What was done to how many images, and how long it took; ``life`` is another one after every restart."""

    stage: str
    life: str
    images: int
    seconds: float


@dataclass(frozen=True)
class Head:
    """The adapted parameters of the head; ``version`` is the number of times that it has changed."""

    version: int
    parameters: Mapping[str, Floats]


@dataclass(frozen=True)
class Encoded:
    """A batch as an owner takes it.

    Attributes:
        version: of the head that made the features.
        features: unit vectors ``(B, D)``; ``None`` if the owner runs the head.
        hidden: trunk outputs ``(B, *hidden_shape)``; ``None`` if nobody learns from them.
    """

    version: int
    features: Floats | None
    hidden: Floats | None


class Encoder:
    """Runs the model of a folder; it is loaded when it is needed first.

    Args:
        model: folder that ``talon fit`` wrote.
        threads: threads of torch.
        device: where to compute.
    """

    def __init__(self, model: str, threads: int, device: str | None) -> None:
        self._model, self._threads, self._device = model, threads, device
        self._version, self._life = 0, uuid4().hex

    def load(self) -> str:
        """Load the model, if that was not done; returns which life this is."""
        self._stream.backbone.eval()
        return self._life

    def process(self) -> int:
        """Return the process that this is."""
        return os.getpid()

    def decode(
        self, items: Sequence[ImageItem], wanted: Wanted, read: pyarrow.Table | None = None
    ) -> tuple[tuple[list[str | None], Work], Bytes3, list[Bytes3]]:
        """Decode a chunk; ``read`` has the bytes of its images, if these were read before.

        Returns:
            why each image can't be used (``None``: it can), and the work;
            the centres ``(G, 3, crop, crop)`` of the good ones;
            their small pictures ``(3, h, w)``, if thumbnails are wanted.
        """
        began = time.perf_counter()
        preprocessing = self._stream.backbone.preprocessing
        reasons: list[str | None] = []
        centres: list[Tensor] = []
        small: list[Bytes3] = []
        there = items if read is None else with_bytes(items, read)
        for _, canvas in load_canvases(there, preprocessing, workers=0):
            reasons.append(canvas.reason if isinstance(canvas, ImageError) else None)
            if not isinstance(canvas, ImageError):
                centres.append(preprocessing.centre(canvas))
                small += [shrunk(canvas)] if wanted.thumbnails else []
        pixels = torch.stack(centres).numpy() if centres else np.empty((0, 3, 0, 0), np.uint8)
        return (reasons, self._work("decode", len(items), began)), pixels, small

    def encode(self, cuts: Sequence[Cut], wanted: Wanted, head: Head | None, *chunks: Bytes3) -> tuple[Encoded, Work]:
        """Run trunk and head on a batch that is cut out of the centres of ``chunks``."""
        began = time.perf_counter()
        parts = [chunk[cut.start : cut.stop] for chunk, cut in zip(chunks, cuts, strict=True)]
        centres = torch.from_numpy(np.concatenate(parts))  # a copy: what Ray hands out can't be written to
        hidden = self._stream.encode_loaded(list(centres))
        features = self._run_head(hidden, head) if wanted.features else None
        given = Encoded(self._version, features, hidden.cpu().numpy() if wanted.hidden else None)
        return given, self._work("encode", len(centres), began)

    def _run_head(self, hidden: Tensor, head: Head | None) -> Floats:
        if head is not None and head.version != self._version:
            state = {name: torch.from_numpy(np.array(value)) for name, value in head.parameters.items()}
            self._stream.adapter.load_state_dict(state)
            self._version = head.version
        features: Floats = self._stream.adapter.encode(hidden).cpu().numpy()
        return features

    def _work(self, stage: str, images: int, began: float) -> Work:
        return Work(stage, self._life, images, time.perf_counter() - began)

    @cached_property
    def _stream(self) -> DiscoveryStream:
        torch.set_num_threads(self._threads)
        return Talon.from_pretrained(self._model, self._device).stream(adapt="none")


def shrunk(canvas: Tensor) -> Bytes3:
    """Return a canvas ``(3, H, W)`` in the size of a thumbnail, by the very steps that thumbnails take."""
    picture = Image.fromarray(canvas.permute(1, 2, 0).contiguous().numpy())
    picture.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))
