"""Images that another process can load (layer: scale)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from talon_ocd.errors import ImageError
from talon_ocd.images import ImageItem
from talon_ocd.images.decode import LIMITS, Limits
from talon_ocd.images.tars import Member, Spool

if TYPE_CHECKING:
    import pyarrow

BYTES = "bytes"
"""Column of a table of images that were read before."""


@dataclass(frozen=True)
class Unreadable:
    """An image that could not be read here, and why."""

    reason: str

    def read(self, source: str, limits: Limits) -> bytes:
        """Raise the reason."""
        raise ImageError(source, self.reason)


ELSEWHERE = Unreadable("was read by another process.")


def portable(item: ImageItem) -> ImageItem:
    """Return an image that can go to another process: one that need not be where we are, nor have what only we have.

    Relative paths become absolute, because a Ray that was started before us works in a folder of its own. Images of
    compressed archives lie in a nameless file of ours, so that their bytes go along.
    """
    payload = item.payload
    if isinstance(payload, Path):
        return replace(item, payload=payload.absolute())
    if not isinstance(payload, Member):
        return item
    if isinstance(payload.archive, Path):
        return replace(item, payload=replace(payload, archive=payload.archive.absolute()))
    try:
        return replace(item, payload=payload.read(item.source, LIMITS))
    except ImageError as error:
        return replace(item, payload=Unreadable(error.reason))


def bytes_to_send(item: ImageItem) -> int:
    """Return the bytes that ``portable`` adds to an image; 0 if others can read it where it is."""
    payload = item.payload
    return payload.size if isinstance(payload, Member) and isinstance(payload.archive, Spool) else 0


def without_pixels(item: ImageItem) -> ImageItem:
    """Return an image as the owner needs it: with its bytes only if it has no file, because then they are kept."""
    return item if isinstance(item.payload, bytes) else replace(item, payload=ELSEWHERE)


def with_bytes(items: Sequence[ImageItem], read: pyarrow.Table) -> list[ImageItem]:
    """Return images with the bytes that were read of them; one of which nothing could be read stays as it is."""
    found = read[BYTES].to_pylist()
    return [item if data is None else replace(item, payload=data) for item, data in zip(items, found, strict=True)]
