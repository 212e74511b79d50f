"""Labels out of a folder per category, as ``folders`` writes it and people rearrange it (layer: catalog).

A picture may lie in any folder under the name that its source has; which image of the stream it is, its content says.
"""

from __future__ import annotations

import filecmp
import hashlib
import re
from collections import defaultdict, deque
from collections.abc import Iterable
from pathlib import Path

from talon_ocd.catalog.corrections import NOWHERE
from talon_ocd.catalog.folders import file_name, folder_names
from talon_ocd.catalog.intake import Label, Trouble
from talon_ocd.catalog.names import clean_name
from talon_ocd.catalog.reading import CatalogReader
from talon_ocd.durable.pictures import Pictures
from talon_ocd.errors import CatalogError, DataError, ImageError
from talon_ocd.images import LIMITS, ImageItem, display
from talon_ocd.images.folders import scan_stream
from talon_ocd.images.items import Readable

ROWS = 50_000
"""Answers that are looked through at once for their names."""
PIECE = 1 << 20
"""Bytes of a file that are read at once."""
_NUMBERED = re.compile(r"(?P<stem>.+)~(?P<index>\d{1,18})")


def read_folders(catalog: CatalogReader, root: Path) -> tuple[list[Label], list[Trouble]]:
    """Read which folder each picture lies in; the number of a picture stands for its line.

    A folder that the export gave to a category means that one, any other is the name of a category.
    """
    try:
        source = scan_stream(root)
    except DataError as error:
        raise CatalogError(str(error)) from error
    troubles = [Trouble(0, f"{left_out.source} {left_out.reason}") for left_out in source.skipped]
    if source.ignored:
        troubles.append(Trouble(0, f"files in {display(root)} that are no pictures by their endings: {source.ignored}"))
    labels: list[Label] = []
    finder = _Finder(catalog, [Path(str(item.payload)).name for item in source.items])
    try:
        for line, item in enumerate(source.items, 1):
            found = finder.label(line, item)
            if isinstance(found, Label):
                labels.append(found)
            else:
                troubles.append(found)
    finally:
        finder.close()
    return labels, troubles


class _Finder:
    """Finds the images of a stream by the pictures in folders; originals are read once or twice."""

    def __init__(self, catalog: CatalogReader, files: Iterable[str]) -> None:
        self._catalog, self._pictures = catalog, Pictures(catalog.journal)
        self._names = folder_names(catalog)
        self._taken: set[int] = set()
        self._homes = _homes_by_name(catalog, {name for file in files for name in _possible(file)})
        self._alike: dict[str, dict[str, _Alike]] = {}
        self._called: dict[int, str] = {NOWHERE: ""}

    def close(self) -> None:
        self._pictures.close()

    def label(self, line: int, item: ImageItem) -> Label | Trouble:
        """Return what a picture's place says of it."""
        path = Path(str(item.payload))
        if item.label is None:
            return Trouble(line, f"{item.source} lies beside the folders; move it into one of them")
        try:
            name = self._names.get(item.label) or clean_name(item.label)
        except CatalogError as error:
            return Trouble(line, f"{display(path.parent)}: {error}")
        index = self._find(path, name)
        if index is None:
            return Trouble(line, f"{item.source} is no image of this stream, or its original is gone or changed")
        self._taken.add(index)
        return Label(line, index, None, name)

    def _find(self, path: Path, name: str) -> int | None:
        """Return the image that a file is: by its number, or the only one called so, else by its content."""
        files = [file for file in sorted(_possible(path.name)) if file in self._homes]
        numbered = _NUMBERED.fullmatch(path.stem)
        number = -1 if numbered is None else int(numbered["index"])
        if number not in self._taken and any(number in self._homes[file] for file in files) and self._is(number, path):
            return number
        if len(files) == 1 and len(self._homes[files[0]]) == 1:
            only = next(iter(self._homes[files[0]]))
            return only if self._is(only, path) else None
        digest = _digest(path) if files else None
        alike = [] if digest is None else [found for file in files if (found := self._contents(file).get(digest))]
        return min((one.likeliest(name, self._taken) for one in alike), default=(None,))[-1]

    def _contents(self, file: str) -> dict[str, _Alike]:
        """Return the images that are called so, by their content; worked out once."""
        if file not in self._alike:
            found: dict[str, _Alike] = defaultdict(_Alike)
            for index, home in self._homes[file].items():
                if home not in self._called:
                    self._called[home] = self._catalog.name(self._catalog.resolve(home))
                payload = self._original(index)
                digest = None if payload is None else _digest(payload)
                if digest is not None:
                    found[digest].add(index, self._called[home])
            self._alike[file] = dict(found)
        return self._alike[file]

    def _is(self, index: int, path: Path) -> bool:
        original = self._original(index)
        try:
            if isinstance(original, bytes):
                return path.stat().st_size == len(original) and path.read_bytes() == original
            return original is not None and (original.samefile(path) or filecmp.cmp(original, path, shallow=False))
        except OSError:
            return False

    def _original(self, index: int) -> bytes | Path | None:
        """Return the encoded image, or the file that it is in; ``None`` if it is gone or has changed."""
        item = self._pictures.item(index)
        if item is None:
            return None
        try:
            payload = item.payload.read(item.source, LIMITS) if isinstance(item.payload, Readable) else item.payload
        except (OSError, ImageError):
            return None
        return payload if isinstance(payload, bytes) else Path(str(payload))


class _Alike:
    """Images with the same name and the same content, by the names of the categories that they are at home in."""

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._free: dict[str, deque[int]] = defaultdict(deque)
        self._all_free: deque[int] = deque()

    def add(self, index: int, name: str) -> None:
        self._first.setdefault(name, index)
        self._free[name].append(index)
        self._all_free.append(index)

    def likeliest(self, name: str, taken: set[int]) -> tuple[bool, bool, int]:
        """Return whether it was found before, whether it is at home elsewhere, and the image for which that is least.

        What was found before is dropped from the queues, so that all questions together take one look at each image.
        """
        for elsewhere, queue in ((False, self._free.get(name, deque())), (True, self._all_free)):
            while queue and queue[0] in taken:
                queue.popleft()
            if queue:
                return False, elsewhere, queue[0]
        return True, name not in self._first, self._first.get(name, min(self._first.values()))


def _digest(content: bytes | Path) -> str | None:
    """Return a digest of an encoded image; ``None`` if it can't be read."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    digest = hashlib.sha256()
    try:
        with content.open("rb") as file:
            while piece := file.read(PIECE):
                digest.update(piece)
    except OSError:
        return None
    return digest.hexdigest()


def _possible(file: str) -> set[str]:
    """Return the names that a file may have had before the export numbered it, or gave it the ending of its kind."""
    path = Path(file)
    stems = [path.stem]
    while numbered := _NUMBERED.fullmatch(stems[-1]):
        stems.append(numbered["stem"])
    return {*stems, *(stem + path.suffix for stem in stems)}


def _homes_by_name(catalog: CatalogReader, wanted: set[str]) -> dict[str, dict[int, int]]:
    """Return the images whose files are called so in an export, with their homes; one look through all answers."""
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for start in range(0, catalog.journal.answered, ROWS):
        rows = catalog.journal.query(
            "SELECT idx, source, home FROM decisions WHERE idx >= ? AND idx < ?", (start, start + ROWS)
        )
        for row in rows:
            if (name := file_name(row["source"])) in wanted:
                found[name][row["idx"]] = row["home"]
    return dict(found)
