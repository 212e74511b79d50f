"""One encoder of a served stream, as Ray Serve runs it (layer: scale).

It is the service's own encoding in another process. What goes in and out is plain: bytes, texts and arrays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from talon_ocd.errors import ImageError, ModelError
from talon_ocd.images import ImageItem, Limits
from talon_ocd.scale.encoder import shrunk
from talon_ocd.service.encoding import EncodedImages, LocalEncoding
from talon_ocd.talon import Talon


@dataclass(frozen=True)
class Upload:
    """An image as it came, and what it is called."""

    source: str
    content: bytes


@dataclass(frozen=True)
class Reply:
    """What became of a micro-batch; the fields are those of ``EncodedImages``.

    Attributes:
        pictures: of each image a picture ``(3, h, w)`` in the size of a thumbnail, or why it can't be used.
        hidden: trunk outputs ``(N, *hidden_shape)`` of the usable ones.
    """

    pictures: list[npt.NDArray[np.uint8] | str]
    hidden: npt.NDArray[np.float32]
    decode_seconds: list[float]
    encode_seconds: float
    encoder: str

    def encoded(self, uploads: Sequence[Upload], device: torch.device) -> EncodedImages:
        """Return it as the service takes it; arrays are copied, what Ray hands out can't be written to."""
        pictures = [
            ImageError(upload.source, picture) if isinstance(picture, str) else torch.from_numpy(picture.copy())
            for upload, picture in zip(uploads, self.pictures, strict=True)
        ]
        hidden = torch.from_numpy(self.hidden.copy()).to(device)
        return EncodedImages(pictures, hidden, self.decode_seconds, self.encode_seconds, self.encoder)


class Replica:
    """Decodes and runs the trunk of the model in a folder that every machine of the cluster sees.

    Args:
        model: folder that ``talon fit`` wrote.
        fingerprint: of the owner's model; another one would give trunk outputs that mean something else.
        device: where to compute.
    """

    def __init__(self, model: str, fingerprint: str, device: str | None) -> None:
        talon = Talon.from_pretrained(model, device)
        if talon.fingerprint() != fingerprint:
            raise ModelError(
                f"{model} is another model here than where the service was started; let both see the same folder."
            )
        self._encoding = LocalEncoding(talon.stream(adapt="none"))
        self._life = uuid4().hex

    async def encode(self, uploads: Sequence[Upload], limits: Limits) -> Reply:
        """Decode images and run the trunk; the next micro-batch is decoded meanwhile."""
        items = [ImageItem(upload.source, None, upload.source, upload.content) for upload in uploads]
        encoded = await asyncio.wrap_future(self._encoding.encode(items, limits))
        pictures = await asyncio.to_thread(lambda: [_plain(picture) for picture in encoded.pictures])
        hidden, seconds = encoded.hidden.cpu().numpy(), list(encoded.decode_seconds)
        return Reply(pictures, hidden, seconds, encoded.encode_seconds, self._life)


def _plain(picture: Tensor | ImageError) -> npt.NDArray[np.uint8] | str:
    return picture.reason if isinstance(picture, ImageError) else shrunk(picture)
