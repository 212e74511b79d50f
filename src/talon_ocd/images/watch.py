"""A folder that fills while somebody looks (layer: images)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from talon_ocd.errors import DataError
from talon_ocd.images.folders import scan_stream
from talon_ocd.images.items import ImageItem, display

EVERY = 1.0
"""Seconds between two looks at a folder."""
REST = 5.0
"""A look that takes long is followed by a rest that is so many times as long: a disk has other things to do."""


def watch(
    folder: Path, every: float = EVERY, rest: Callable[[float], object] = time.sleep
) -> Iterator[list[ImageItem]]:
    """Yield the images of a folder, then those that arrive, for ever; each list is what one look has found.

    An image counts as arrived when it stayed the same from one look to the next: programs write files bit by bit.
    One that changes later comes again. A folder that is away for a while (a network drive) is waited for.
    """
    if not folder.is_dir():
        raise DataError(f"{display(folder)} is not a folder; --watch follows a folder.")
    given: dict[str, str] = {}
    growing: dict[str, str] = {}
    while True:
        began = time.monotonic()
        found = _look(folder)
        if found is not None:
            keys = {item.source: item.key for item in found}
            given = {source: key for source, key in given.items() if source in keys}  # what is gone is forgotten
            ready = [item for item in found if growing.get(item.source) == item.key != given.get(item.source)]
            given.update((item.source, item.key) for item in ready)
            growing = keys
            if ready:
                yield ready
        rest(max(every, REST * (time.monotonic() - began)))


def _look(folder: Path) -> list[ImageItem] | None:
    try:
        return scan_stream(folder).items
    except (DataError, OSError):
        return None
