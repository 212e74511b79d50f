"""A folder per category, with the pictures in it (layer: catalog).

Names come from people and sources from anywhere: whatever they are, nothing is written outside the target, and no name
meets another one by chance.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from talon_ocd.catalog.exchange import Exported, exported
from talon_ocd.catalog.reading import CatalogReader
from talon_ocd.durable.pictures import Pictures
from talon_ocd.errors import CatalogError, StorageError
from talon_ocd.images import LIMITS
from talon_ocd.images.folders import is_image_name
from talon_ocd.images.items import Readable
from talon_ocd.saved import make_folder, reason

LONGEST = 100
"""Bytes of a file name, so that a suffix still fits everywhere."""
_ODD = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*\u2028\u2029]+')
_ENDING = re.compile(r"\.[A-Za-z0-9]{1,8}$")
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the pictures: how many are in folders, and the sources of those whose original is gone."""

    pictures: int
    folders: int
    missing: tuple[str, ...]


def export_folders(
    catalog: CatalogReader, target: Path, link: bool = True, on_row: Callable[[], None] = lambda: None
) -> Written:
    """Put every picture into a folder with the name of its category; rejected ones are left out.

    Args:
        catalog: what to export.
        target: a folder that is empty or not there yet.
        link: hard links where the disk allows it, which take no space; else copies.
        on_row: called for every image, for progress.
    """
    make_folder(target)
    if any(target.iterdir()):
        raise CatalogError(f"{target}: this folder is not empty; give a new one.")
    pictures = Pictures(catalog.journal)
    places = _Places(target)
    missing: list[str] = []
    number = 0
    try:
        for row in exported(catalog):
            on_row()
            if row.resolved < 0:
                continue
            item = pictures.item(row.index)
            if item is None:
                missing.append(row.source)
                continue
            payload = item.payload.read(item.source, LIMITS) if isinstance(item.payload, Readable) else item.payload
            _put(payload, places.of(row, _ending(row, payload)), link)
            number += 1
    except OSError as error:
        raise StorageError(
            f"{target}: can't be written ({reason(error)}); {number} pictures are there already."
        ) from error
    finally:
        pictures.close()
    return Written(number, places.folders, tuple(missing))


class _Places:
    """Gives every category a folder and every picture a name of its own in it."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._folders: dict[int, Path] = {}
        self._taken: set[str] = set()
        self._files: dict[int, set[str]] = {}

    @property
    def folders(self) -> int:
        return len(self._folders)

    def of(self, row: Exported, ending: str) -> Path:
        if row.resolved not in self._folders:
            folder = self._target / _free(safe_name(row.name), f" ({row.resolved})", self._taken)
            folder.mkdir()
            self._folders[row.resolved], self._files[row.resolved] = folder, set()
        name = Path(file_name(row.source) + ending)
        free = _free(name.stem, f"~{row.index}", self._files[row.resolved], name.suffix)
        return self._folders[row.resolved] / free


def file_name(source: str) -> str:
    """Return what the picture of a source is called in a folder, unless another one is called so already."""
    return safe_name(re.split(r"[/\\]", source)[-1])


def folder_names(catalog: CatalogReader) -> dict[str, str]:
    """Return the names of categories with images by what an export calls, or may call, their folders."""
    rows = catalog.journal.query("SELECT home FROM decisions WHERE home >= 0 GROUP BY home ORDER BY min(idx)")
    names: dict[str, str] = {}
    for end in dict.fromkeys(catalog.resolve(row["home"]) for row in rows):
        name = catalog.name(end)
        for folder in (safe_name(name), f"{safe_name(name)} ({end})"):
            names.setdefault(folder, name)
    return names


def _free(stem: str, more: str, taken: set[str], ending: str = "") -> str:
    """Return a name that no other has as far as any disk can tell, and take it."""
    name = stem + ending
    while name.casefold() in taken:
        stem += more
        name = stem + ending
    taken.add(name.casefold())
    return name


def safe_name(text: str) -> str:
    """Return a name that is one file name on every system.

    >>> safe_name("great tit"), safe_name("../etc/passwd"), safe_name("nul.png"), safe_name(" .. ")
    ('great tit', '_etc_passwd', '_nul.png', '_')
    """
    name = _ODD.sub("_", text).strip().lstrip(".").rstrip(". ")
    ending = found.group() if (found := _ENDING.search(name)) else ""
    stem = (
        name.removesuffix(ending)
        .encode("utf-8", "replace")[: LONGEST - len(ending.encode())]
        .decode("utf-8", "ignore")
        .rstrip(". ")
    )
    name = stem + ending
    return f"_{name}" if not name or _RESERVED.fullmatch(name) else name


def _ending(row: Exported, payload: object) -> str:
    """Return the ending that a picture lacks: uploads need no name, but programs know pictures by their endings."""
    if is_image_name(file_name(row.source)):
        return ""
    try:
        with Image.open(io.BytesIO(payload) if isinstance(payload, bytes) else Path(str(payload))) as opened:
            kind = str(opened.format).lower()
    except (OSError, ValueError, Image.DecompressionBombError):
        return ""
    return f".{kind}" if is_image_name(f"x.{kind}") else ".jpg" if kind == "mpo" else ""


def _put(payload: object, place: Path, link: bool) -> None:
    if isinstance(payload, bytes):
        place.write_bytes(payload)
        return
    original = Path(str(payload))  # what `Pictures.item` gives is bytes, in an archive, or a path
    if link:
        with suppress(OSError):  # another disk, or one without links
            place.hardlink_to(original.resolve())
            return
    shutil.copyfile(original, place)
