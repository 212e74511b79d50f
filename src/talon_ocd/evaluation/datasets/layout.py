"""How official downloads lie on the disk: finding them, reading their indices, refusing others (layer: evaluation)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from talon_ocd.errors import DataError
from talon_ocd.images import ImageItem, Skipped, display, file_item
from talon_ocd.images.folders import is_hidden, scan_stream

_AGAIN = "unpack the official download again."


@dataclass(frozen=True)
class Layout:
    """What an official download looks like."""

    title: str
    folders: tuple[str, ...]
    """What its folder is called in the archive; ``--root`` may be this folder or the one that holds it."""
    marks: tuple[str, ...]
    """Files and folders by which it is known."""
    tree: str
    """A drawing of what is expected, for people."""
    origin: str
    """Where it comes from."""

    def find(self, root: Path) -> Path:
        """Return the folder of the data set, which is ``root`` or lies in it; raises `DataError`."""
        found = self.locate(root)
        if found is None:
            raise self.refusal(root, f"is not {self.title}: {self._missing(root)} missing.{self._hint(root)}")
        return found

    def locate(self, root: Path) -> Path | None:
        """Return the folder of the data set, or ``None`` where it is not."""
        for folder in _candidates(root, self.folders):
            if all((folder / mark).exists() for mark in self.marks):
                return folder
        return None

    def refusal(self, root: Path, problem: str) -> DataError:
        """Return an error that says what is wrong with ``root``, what is expected there and where it comes from."""
        if not root.is_dir():
            problem = "is a file, not a folder." if root.exists() else "does not exist; check --root."
        return DataError(f"{display(root)} {problem}\nExpected under --root:\n{self.tree}\nFrom {self.origin}")

    def _missing(self, root: Path) -> str:
        """Return what is missing where the least is."""
        lists = [[mark for mark in self.marks if not (at / mark).exists()] for at in _candidates(root, self.folders)]
        least = min(lists, key=len)
        return f"{' and '.join(least)} {'is' if len(least) == 1 else 'are'}"

    def _hint(self, root: Path) -> str:
        """Return a guess at what was meant, where the data set lies a step away."""
        resolved = root.absolute()
        children = [root / name for name in class_folders(root)][:100] if root.is_dir() else []
        for folder in (resolved.parent, resolved.parent.parent, *children):
            if (found := self.locate(folder)) is not None:
                return f" Did you mean --root {display(found)}?"
        return ""


def read_table(path: Path, columns: int) -> list[list[str]]:
    """Return the rows of an index file, each cut at blanks into ``columns``; the last one keeps its blanks."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{display(path)} can't be read ({error}); {_AGAIN}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        row = line.split(maxsplit=columns - 1)
        if len(row) != columns:
            raise DataError(f"{display(path)}:{number} {line[:60]!r} has {len(row)} columns, not {columns}; {_AGAIN}")
        rows.append([cell.strip() for cell in row])
    return rows


def class_number(text: str, classes: int, path: Path) -> int:
    """Return an official class number, counted from 1 in ``path``, counted from 0."""
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= classes:
        raise DataError(f"{display(path)} has the class {text[:20]!r}, not one of 1 to {classes}; {_AGAIN}")
    return int(text) - 1


def listed_items(rows: Iterable[tuple[Path, str]], index: str) -> tuple[list[ImageItem], list[Skipped]]:
    """Return an item for every path and label, in their order; files that are not there are listed as skipped."""
    items, skipped = [], []
    for path, label in rows:
        if path.is_file():
            items.append(file_item(path, label))
        else:
            skipped.append(Skipped(display(path), f"is listed in {index} but is not there; {_AGAIN}"))
    return items, skipped


def class_folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted as strings (torchvision's ImageFolder does the same)."""
    try:
        return sorted(entry.name for entry in folder.iterdir() if not is_hidden(entry.name) and entry.is_dir())
    except OSError as error:
        raise DataError(f"{display(folder)} can't be read ({error.strerror}); change its permissions.") from error


def folder_items(folder: Path, classes: Sequence[tuple[str, str]]) -> tuple[list[ImageItem], list[Skipped]]:
    """Return the images of class folders: class by class as given (folder name, label), sorted by path in each."""
    items: list[ImageItem] = []
    skipped: list[Skipped] = []
    for name, label in classes:
        source = scan_stream(folder / name)
        items += sorted((replace(item, label=label) for item in source.items), key=lambda item: item.source)
        skipped += source.skipped
    return items, skipped


def _candidates(root: Path, folders: Sequence[str]) -> list[Path]:
    return [root, *(root / folder for folder in folders)]
