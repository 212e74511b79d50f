"""From chunks that encoders decode to the very batches of one process (layer: scale).

Numbers are rounded alike only if images go through the network in the same company. One process fills its batches with
images that can be used, so a broken one shifts every boundary behind it. Here the driver does the same on paper: it
hears which images of a chunk are good and says of which rows of which chunks a batch is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from talon_ocd.images import ImageItem, Skipped
from talon_ocd.online.stream import MOST_AHEAD


@dataclass(frozen=True)
class Cut:
    """Rows ``start`` to before ``stop`` of the good images of a chunk."""

    chunk: int
    start: int
    stop: int


@dataclass(frozen=True)
class Batch:
    """Images that are answered together.

    Attributes:
        first: index of the first answer.
        items: the images.
        cuts: where their pixels are.
        skipped: what could not be used, since the batch before.
    """

    first: int
    items: list[ImageItem]
    cuts: list[Cut]
    skipped: list[Skipped]


class Batching:
    """Fills batches up to the next adaptation, as ``DiscoveryStream.run_items`` does.

    Args:
        answered: answers that the stream has given.
        room: answers left before its next adaptation.
        every: answers between two adaptations.
    """

    def __init__(self, answered: int, room: int, every: int) -> None:
        self._answered, self._room, self._every = answered, room, every
        self._begin()

    def add(self, chunk: int, items: Sequence[ImageItem], reasons: Sequence[str | None]) -> list[Batch]:
        """Take a decoded chunk (``reasons`` tells of every image why it can't be used); return what is full now."""
        full: list[Batch] = []
        row = 0
        for item, reason in zip(items, reasons, strict=True):
            if reason is not None:
                self._skipped.append(Skipped(item.source, reason))
                continue
            self._items.append(item)
            self._rows.append((chunk, row))
            row += 1
            if len(self._items) == min(self._room, MOST_AHEAD):
                full.append(self._close())
        return full

    def rest(self) -> Batch:
        """Return what is left at the end: a smaller batch, perhaps without any image."""
        return self._close()

    def needs(self, chunk: int) -> bool:
        """Will a later batch have rows of this chunk?"""
        return any(number == chunk for number, _ in self._rows)

    def _begin(self) -> None:
        self._items: list[ImageItem] = []
        self._rows: list[tuple[int, int]] = []
        self._skipped: list[Skipped] = []

    def _close(self) -> Batch:
        batch = Batch(self._answered, self._items, _cuts(self._rows), self._skipped)
        self._answered += len(self._items)
        self._room -= len(self._items)
        self._room = self._room or self._every
        self._begin()
        return batch


def _cuts(rows: Sequence[tuple[int, int]]) -> list[Cut]:
    """Return rows that follow each other as one cut."""
    cuts: list[Cut] = []
    for chunk, row in rows:
        if cuts and cuts[-1].chunk == chunk:
            cuts[-1] = Cut(chunk, cuts[-1].start, row + 1)
        else:
            cuts.append(Cut(chunk, row, row + 1))
    return cuts
