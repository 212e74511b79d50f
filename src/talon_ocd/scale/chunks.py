"""Images on their way to encoders, a chunk at a time (layer: scale)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from talon_ocd.images import ImageItem


@dataclass(frozen=True)
class Chunk:
    """Images that are decoded together.

    Attributes:
        items: the images.
        block: reference to a table with their bytes, if these were read before; it need not be on this machine.
    """

    items: list[ImageItem]
    block: Any = None


class Chunks(Protocol):
    """What is still to be decoded, in order."""

    @property
    def over(self) -> bool:
        """Whether all was taken."""

    @property
    def late(self) -> bool:
        """Whether there is more, but none of it now."""

    def take(self) -> Chunk | None:
        """Return the next chunk, ``None`` if there is none now."""

    def close(self) -> None:
        """Give up what was not taken."""


class Listed:
    """Chunks of images that are read where they are decoded: nothing is waited for."""

    late = False

    def __init__(self, items: Sequence[ImageItem], size: int) -> None:
        self._chunks = deque(Chunk(list(items[start : start + size])) for start in range(0, len(items), size))

    @property
    def over(self) -> bool:
        """Whether all was taken."""
        return not self._chunks

    def take(self) -> Chunk | None:
        """Return the next chunk."""
        return self._chunks.popleft() if self._chunks else None

    def close(self) -> None:
        """Forget what was not taken."""
        self._chunks.clear()
