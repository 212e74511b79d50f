"""From uploads to trunk outputs: the part of the service that may run elsewhere (layer: service).

It has no memory and changes nothing, so that a micro-batch may be encoded anywhere, by several at once, and again if
who encoded it is gone. Decisions are no part of it: they are made by the one owner of the stream.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from talon_ocd.errors import ImageError
from talon_ocd.images import ImageItem, Limits, load_canvases
from talon_ocd.online import DiscoveryStream

DECODERS = 2
"""Threads that decode."""


@dataclass(frozen=True)
class EncodedImages:
    """What became of the images of a micro-batch.

    Attributes:
        pictures: of each its canvas ``(3, H, W)``, at least as large as a thumbnail, or why it can't be used.
        hidden: trunk outputs ``(N, *hidden_shape)`` of the ``N`` usable ones.
        decode_seconds: how long each took to decode.
        encode_seconds: how long the trunk took for all of them.
        encoder: who did it; another name is another process.
    """

    pictures: Sequence[Tensor | ImageError]
    hidden: Tensor
    decode_seconds: Sequence[float]
    encode_seconds: float
    encoder: str = "here"


class Encoding(Protocol):
    """Whoever encodes for a service."""

    @property
    def ahead(self) -> int:
        """Micro-batches that may be under way at once, until they are answered."""

    def encode(self, items: Sequence[ImageItem], limits: Limits) -> Future[EncodedImages]:
        """Begin to encode a micro-batch; an image beyond the limits can't be used."""

    def close(self) -> None:
        """Finish what was begun, and end."""


class LocalEncoding:
    """Encodes in threads of this process: the next micro-batch is decoded while one goes through the trunk."""

    ahead = 2

    def __init__(self, stream: DiscoveryStream) -> None:
        self._stream = stream
        self._decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="talon-decode")
        self._trunk = ThreadPoolExecutor(1, thread_name_prefix="talon-encode")

    def encode(self, items: Sequence[ImageItem], limits: Limits) -> Future[EncodedImages]:
        """Begin to encode a micro-batch; one after another goes through the trunk, in order."""
        decoding = [self._decoders.submit(self._decode, item, limits) for item in items]
        return self._trunk.submit(self._encode, decoding)

    def close(self) -> None:
        """Finish what was begun, and end."""
        self._decoders.shutdown(wait=True)
        self._trunk.shutdown(wait=True)

    def _decode(self, item: ImageItem, limits: Limits) -> tuple[Tensor | ImageError, float]:
        started = time.perf_counter()
        _, picture = next(load_canvases([item], self._stream.backbone.preprocessing, limits, workers=0))
        return picture, time.perf_counter() - started

    def _encode(self, decoding: Sequence[Future[tuple[Tensor | ImageError, float]]]) -> EncodedImages:
        decoded = [future.result() for future in decoding]
        canvases = [picture for picture, _ in decoded if isinstance(picture, Tensor)]
        started = time.perf_counter()
        hidden = self._stream.encode_loaded(canvases) if canvases else torch.empty(0)
        seconds = time.perf_counter() - started
        return EncodedImages([picture for picture, _ in decoded], hidden, [took for _, took in decoded], seconds)
