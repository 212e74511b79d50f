"""Labels out of a folder per category, as ``folders`` writes it and people rearrange it (layer: catalog).

A picture may lie in any folder under the name that its source has; which image of the stream it is, its content says.
"""

from __future__ import annotations

import filecmp
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from talon_ocd.catalog.changes import column_of
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
    """Finds the images of a stream by the pictures in folders."""

    def __init__(self, catalog: CatalogReader, files: Iterable[str]) -> None:
        self._catalog, self._pictures = catalog, Pictures(catalog.journal)
        self._names = folder_names(catalog)
        self._taken: set[int] = set()
        self._by_name = _indices_by_name(catalog, {name for file in files for name in _possible(file)})

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
        for index in self._candidates(path.name, name):
            if self._is(index, path):
                self._taken.add(index)
                return Label(line, index, None, name)
        return Trouble(line, f"{item.source} is no image of this stream, or its original is gone or changed")

    def _candidates(self, file: str, name: str) -> list[int]:
        """Return the images that may be a file, likeliest first: by its number, at home there, not found before."""
        indices = sorted({index for possible in _possible(file) for index in self._by_name[possible]})
        homes = column_of(self._catalog.journal, "home", indices)
        numbered = _NUMBERED.fullmatch(Path(file).stem)
        number = None if numbered is None else int(numbered["index"])

        def likely(index: int) -> tuple[bool, bool, bool]:
            home = homes[index]
            elsewhere = home == NOWHERE or self._catalog.name(self._catalog.resolve(home)) != name
            return index in self._taken, index != number, elsewhere

        return sorted(indices, key=likely)

    def _is(self, index: int, path: Path) -> bool:
        item = self._pictures.item(index)
        if item is None:
            return False
        try:
            payload = item.payload.read(item.source, LIMITS) if isinstance(item.payload, Readable) else item.payload
            if isinstance(payload, bytes):
                return path.stat().st_size == len(payload) and path.read_bytes() == payload
            original = Path(str(payload))
            return original.samefile(path) or filecmp.cmp(original, path, shallow=False)
        except (OSError, ImageError):
            return False


def _possible(file: str) -> set[str]:
    """Return the names that a file may have had before the export numbered it, or gave it the ending of its kind."""
    path = Path(file)
    stems = [path.stem]
    while numbered := _NUMBERED.fullmatch(stems[-1]):
        stems.append(numbered["stem"])
    return {*stems, *(stem + path.suffix for stem in stems)}


def _indices_by_name(catalog: CatalogReader, wanted: set[str]) -> dict[str, list[int]]:
    """Return the images whose files are called so in an export; one look through all answers."""
    found: dict[str, list[int]] = defaultdict(list)
    for start in range(0, catalog.journal.answered, ROWS):
        rows = catalog.journal.query(
            "SELECT idx, source FROM decisions WHERE idx >= ? AND idx < ?", (start, start + ROWS)
        )
        for row in rows:
            if (name := file_name(row["source"])) in wanted:
                found[name].append(row["idx"])
    return found
