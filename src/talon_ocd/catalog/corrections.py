"""Where images belong by what people said (layer: catalog).

An image is at home where the last active correction says, else where it was answered. Three plain columns hold all
corrections of a stream, oldest first: 24 bytes each, and one look finds those of some images.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable

import numpy as np

NOWHERE = -1
"""Home of an image that was rejected."""


class Corrections:
    """Every move of every image; which of them count, the ledger knows."""

    def __init__(self) -> None:
        self._images, self._events, self._homes = array("q"), array("q"), array("q")

    def add(self, seq: int, moves: Iterable[tuple[int, int, int]]) -> None:
        """Take the moves (image, from, to) of an event."""
        for image, _, home in moves:
            self._images.append(image)
            self._events.append(seq)
            self._homes.append(home)

    def homes(self, images: Collection[int], counts: Callable[[int], bool]) -> dict[int, int]:
        """Return the homes of those images that a correction speaks of whose event counts."""
        if not self._images or not images:
            return {}
        wanted = np.fromiter(images, np.int64, len(images))
        found = np.flatnonzero(np.isin(np.frombuffer(self._images, np.int64), wanted))
        homes = {}
        for place in found.tolist():
            if counts(self._events[place]):
                homes[self._images[place]] = self._homes[place]
        return homes

    def corrected(self, counts: Callable[[int], bool]) -> set[int]:
        """Return the images that a person has said something about that counts."""
        return {image for image, seq in zip(self._images, self._events, strict=True) if counts(seq)}
