"""Images listed in a CSV or JSON Lines file with the columns ``path`` and ``label`` (layer: images).

Paths are relative to the manifest, rows keep their order, and a row that can't be used is listed by its line.
"""

from __future__ import annotations

import csv
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from talon_ocd.errors import DataError
from talon_ocd.images.items import ImageItem, ImageSource, Skipped, display, key_of

SUFFIXES = (".csv", ".jsonl")
_NUL = "\ufdd0"
"""A character that no text has."""
_DELIMITERS = (",", ";", "\t")


def read_manifest(path: Path, *, need_labels: bool) -> ImageSource:
    """List the rows of a manifest; with ``need_labels``, a row without a label is skipped."""
    items: list[ImageItem] = []
    skipped: list[Skipped] = []
    seen: dict[str, str | None] = {}
    for line, row in _rows(path):
        where = f"{display(path)}:{line}"
        if isinstance(row, str):
            skipped.append(Skipped(where, row))
            continue
        name, label = _text(row.get("path")), _text(row.get("label"))
        outcome = _item(path.parent, name, label, need_labels, seen)
        if isinstance(outcome, str):
            skipped.append(Skipped(f"{where} {display(name)}" if name else where, outcome))
        else:
            items.append(outcome)
    return ImageSource(display(path), items, skipped)


def _item(
    base: Path, name: str | None, label: str | None, need_labels: bool, seen: dict[str, str | None]
) -> ImageItem | str:
    """Return the item of a row, or the reason why there is none."""
    if name is None:
        return "has no path; fill the column path."
    if need_labels and label is None:
        return "has no label; fill the column label."
    path = base / name
    try:
        resolved = os.path.realpath(path)
        facts = os.stat(resolved)  # noqa: PTH116 - the resolved text is what the key needs
    except FileNotFoundError:
        return f"does not exist; paths are relative to the manifest's folder, {display(base)}."
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return f"can't be reached ({reason}); check the path and its permissions."
    if not stat.S_ISREG(facts.st_mode):
        return "is not a regular file; list the images one by one."
    if resolved in seen:
        if seen[resolved] == label:
            return "is already in the list; remove the row."
        return f"is already in the list with the label {seen[resolved]!r}; keep the right one."
    seen[resolved] = label
    return ImageItem(display(path), None if label is None else display(label), key_of(resolved, facts), path)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, object] | str]]:
    """Yield line number and row, or line number and what is wrong with the line."""
    try:
        # utf-8-sig: Excel writes a mark first; surrogateescape: file names of any bytes survive.
        text = path.read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise DataError(f"{display(path)} can't be read ({error.strerror}); change its permissions.") from error
    yield from _json_rows(path, text) if path.suffix.lower() == ".jsonl" else _csv_rows(path, text)


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, object] | str]]:
    first = text.split("\n", 1)[0]
    delimiter = next((mark for mark in _DELIMITERS if "path" in _columns(first.split(mark))), ",")
    # Python 3.10 refuses a whole file for one NUL; with a stand-in only the row that has it is refused.
    reader = csv.reader(io.StringIO(text.replace("\0", _NUL), newline=""), delimiter=delimiter)
    try:
        header = _columns(next(reader, []))
        if "path" not in header:
            found = ", ".join(header) or "none"
            raise DataError(
                f"{display(path)} has no column path (columns: {display(found)}); its first line must be path,label."
            )
        for row in reader:
            if row:
                yield reader.line_num, dict(zip(header, (cell.replace(_NUL, "\0") for cell in row), strict=False))
    except csv.Error as error:
        where = f"{display(path)}:{reader.line_num}"
        raise DataError(f"{where} is not CSV ({error}); check its quotes.") from error


def _columns(cells: list[str]) -> list[str]:
    return [cell.strip().strip('"').lower() for cell in cells]


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, object] | str]]:
    objects = 0
    named = 0
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            yield number, 'is not a JSON object; write {"path": ..., "label": ...}.'
            continue
        objects += 1
        named += "path" in row
        yield number, row
    if objects and not named:
        raise DataError(f'{display(path)} has no "path" in any line; write {{"path": ..., "label": ...}}.')


def _text(value: object) -> str | None:
    """Return a cell as text; an empty one, or anything that is neither text nor number, counts as missing."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value).strip() or None
