"""Images in a folder tree, found without being opened (layer: images).

Links to files and folders are followed. Every real folder is entered once, real ones before links to them, so
a loop of links ends where it began and is listed. The result is sorted by path, whatever the disk's order.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from talon_ocd.errors import DataError
from talon_ocd.images.items import ImageItem, ImageSource, Skipped, display, key_of, natural

SUFFIXES = frozenset(
    f".{ending}"
    for ending in (
        *("jpg", "jpeg", "jpe", "jfif", "png", "apng", "webp", "bmp", "dib", "gif", "tif", "tiff"),
        *("avif", "avifs", "ppm", "pgm", "pbm", "pnm", "jp2", "tga"),
    )
)


def is_image_name(name: str) -> bool:
    """Tell by its ending whether a file is meant to be an image."""
    return os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122 - half the time of Path, on every file


def is_hidden(name: str) -> bool:
    """Tell whether a file or folder is nobody's picture: dot files and what macOS adds to archives."""
    return name.startswith(".") or name == "__MACOSX"


def scan_labelled(root: Path) -> ImageSource:
    """List a folder of class folders: the label is the first folder below ``root``."""
    walk = _Walk(root)
    walk.enter()
    items = []
    for item in walk.items:
        if item.label is None:
            walk.skip(item.source, "lies beside the class folders; move it into one of them.")
        else:
            items.append(item)
    full = {item.label for item in items}
    for name in walk.top_folders:
        if display(name) not in full:
            walk.skip(display(root / name), "is a class folder without images; add some or remove it.")
    if not walk.top_folders and walk.items:
        raise DataError(
            f"{display(root)} has {len(walk.items)} images but no class folders; "
            "put the images of each class into a folder of its own."
        )
    return ImageSource(display(root), items, walk.skipped, walk.ignored)


def scan_stream(root: Path) -> ImageSource:
    """List all images below a folder by path; the label is the first folder below ``root``, if any."""
    walk = _Walk(root)
    walk.enter()
    return ImageSource(display(root), walk.items, walk.skipped, walk.ignored)


@dataclass
class _Walk:
    """One pass over a folder tree."""

    root: Path
    top_folders: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    ignored: int = 0
    _found: list[tuple[str, ImageItem]] = field(default_factory=list)
    _folders: set[tuple[int, int]] = field(default_factory=set)
    _linked_later: list[tuple[str, str]] = field(default_factory=list)
    _files: set[str] = field(default_factory=set)

    @property
    def items(self) -> list[ImageItem]:
        return [item for _, item in self._found]

    def skip(self, source: str, reason: str) -> None:
        self.skipped.append(Skipped(source, reason))

    def enter(self) -> None:
        """Visit real folders first, then links to folders, then links to files; sort at the end."""
        pending, links = [""], deque[str]()
        while pending or links:
            folders = self._folder(pending.pop() if pending else links.popleft())
            pending += [path for path, linked in reversed(folders) if not linked]
            links += [path for path, linked in folders if linked]
        for relative, resolved in self._linked_later:
            self._file(relative, resolved)
        self._found.sort(key=lambda pair: natural(pair[0]))
        self.skipped.sort(key=lambda skipped: natural(skipped.source))
        self.top_folders.sort(key=natural)

    def _folder(self, relative: str) -> list[tuple[str, bool]]:
        """Take the files of one folder; return its sub-folders and whether each is a link."""
        path = self.root / relative
        try:
            facts = path.stat()
            identity = (facts.st_dev, facts.st_ino)
            if identity in self._folders:
                self.skip(display(path), "leads to a folder that is already in the list; remove the link.")
                return []
            self._folders.add(identity)
            with os.scandir(path) as entries:
                listing = sorted(entries, key=lambda entry: natural(entry.name))
        except OSError as error:
            reason = f"can't be read ({error.strerror}); change its permissions."
            if not relative:
                raise DataError(f"{display(path)} {reason}") from error
            self.skip(display(path), reason)
            return []
        real = os.path.realpath(path)
        folders = []
        for entry in listing:
            below = f"{relative}/{entry.name}" if relative else entry.name
            if is_hidden(entry.name):
                continue
            if _is_folder(entry):
                folders.append((below, entry.is_symlink()))
                if not relative:
                    self.top_folders.append(entry.name)
            elif not is_image_name(entry.name):
                self.ignored += 1
            elif entry.is_symlink():
                self._linked_later.append((below, os.path.realpath(entry.path)))
            else:
                self._file(below, os.path.join(real, entry.name))  # noqa: PTH118 - text, once a file
        return folders

    def _file(self, relative: str, resolved: str) -> None:
        path = self.root / relative
        try:
            facts = os.stat(resolved)  # noqa: PTH116 - text, once a file
        except OSError as error:
            self.skip(display(path), f"can't be reached ({error.strerror}); repair or remove the link.")
            return
        if not stat.S_ISREG(facts.st_mode):
            self.skip(display(path), "is not a regular file; copy the image into one.")
        elif resolved in self._files:
            self.skip(display(path), f"leads to {display(resolved)}, already in the list; remove the link.")
        else:
            self._files.add(resolved)
            label = display(relative.split("/", 1)[0]) if "/" in relative else None
            self._found.append((relative, ImageItem(display(path), label, key_of(resolved, facts), path)))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
