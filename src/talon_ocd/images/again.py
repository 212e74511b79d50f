"""Finds images again by the keys that were written down about them (layer: images)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from talon_ocd.errors import TalonError
from talon_ocd.images.items import ImageItem, file_key
from talon_ocd.images.tars import SUFFIXES, scan_tar

_MEMBER = re.compile(r"(?P<archive>.+?\|\d+\|\d+)\|.+", re.DOTALL)
_BYTE = re.compile(rb"\\x([0-9a-f]{2})")


def find_again(source: str, key: str) -> ImageItem | None:
    """Return the file or the member of an archive that a key speaks of; ``None`` if it is gone or has changed since."""
    if (path := _unchanged(key)) is not None:
        return ImageItem(source, None, key, path)
    found = _MEMBER.fullmatch(key)
    archive = None if found is None else _unchanged(found["archive"])
    if found is None or archive is None or not archive.name.lower().endswith(SUFFIXES):
        return None
    with suppress(TalonError):
        return _members(archive, found["archive"]).get(key)
    return None


def _unchanged(key: str) -> Path | None:
    """Return the file with this key."""
    for path in _paths(key.rsplit("|", 2)[0]):
        with suppress(OSError, ValueError):
            if file_key(path) == key:
                return path
    return None


def _paths(shown: str) -> Iterator[Path]:
    r"""Yield what a path may have been before ``display``: bytes that are no text are shown as ``\xNN``."""
    yield Path(shown)
    raw = _BYTE.sub(lambda match: bytes([int(match[1], 16)]), shown.encode("utf-8"))
    if raw != shown.encode("utf-8"):
        yield Path(os.fsdecode(raw))


@lru_cache(maxsize=4)
def _members(archive: Path, key: str) -> dict[str, ImageItem]:
    """Return the images of an archive by their keys; ``key`` is the archive's own, so that a new one is read anew."""
    return {item.key: item for item in scan_tar(archive, labelled=False).items}
