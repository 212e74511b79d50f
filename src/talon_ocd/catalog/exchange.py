"""Taking answers and names elsewhere: CSV, JSONL, Label Studio (layer: catalog). ``folders`` writes pictures."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from talon_ocd.catalog.reading import CatalogReader
from talon_ocd.durable.pictures import stored_path
from talon_ocd.errors import CatalogError, StorageError, nearest
from talon_ocd.saved import make_folder, reason

FORMATS = ("csv", "jsonl", "label-studio")
COLUMNS = ("index", "source", "category", "resolved", "name", "verdict", "similarity", "at")
ROWS = 5000
"""Answers that are read at once."""
CHOICE = {"from_name": "category", "to_name": "image", "type": "choices"}
"""Names of the tags in the labelling set-up of Label Studio; see ``docs/catalog.md``."""


@dataclass(frozen=True, slots=True)
class Exported:
    """An answer on its way out.

    Attributes:
        index: of the image in the stream.
        source: what the image is called in its source.
        category: what was answered.
        resolved: where the image belongs by now, merges followed; -1 if it was rejected.
        name: of that category; empty if the image was rejected.
        verdict: of the answer.
        similarity: of the answer.
        at: when it was answered, UTC.
        stored: name of the picture in the stream's folder, if it has no file of its own (an upload).
    """

    index: int
    source: str
    category: int
    resolved: int
    name: str
    verdict: str
    similarity: float
    at: str
    stored: str | None = None


def exported(catalog: CatalogReader) -> Iterator[Exported]:
    """Yield all answers, oldest first, with the names that categories have at their first appearance."""
    ends: dict[int, tuple[int, str]] = {-1: (-1, "")}
    after = -1
    while rows := catalog.journal.query("SELECT * FROM decisions WHERE idx > ? ORDER BY idx LIMIT ?", (after, ROWS)):
        for row in rows:
            home = row["home"]
            if home not in ends:
                end = catalog.resolve(home)
                ends[home] = end, catalog.name(end)
            at = datetime.fromtimestamp(row["at"], timezone.utc).isoformat(timespec="milliseconds")
            yield Exported(
                row["idx"], row["source"], row["category"], *ends[home], row["verdict"], row["similarity"], at,
                row["stored"],
            )  # fmt: skip
        after = rows[-1]["idx"]


def export(catalog: CatalogReader, file: Path, kind: str, prefix: str = "") -> int:
    """Write all answers to a file; returns how many. ``prefix`` goes before paths in Label Studio's image links.

    Label Studio shows pictures: an upload whose original was let go of is no task.
    """
    writers: Mapping[str, Callable[[TextIO, Iterable[Exported]], int]] = {
        "csv": _write_csv,
        "jsonl": _write_jsonl,
        "label-studio": lambda text, rows: _write_tasks(text, rows, catalog, prefix),
    }
    if kind not in writers:
        raise CatalogError(f"{kind!r} is no format; choose from {', '.join(FORMATS)}.{nearest(kind, FORMATS)}")
    with _appearing(file) as text:
        return writers[kind](text, exported(catalog))


def _write_csv(text: TextIO, rows: Iterable[Exported]) -> int:
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    number = 0
    for number, row in enumerate(rows, 1):  # noqa: B007 - the last one is their number
        writer.writerow([getattr(row, column) for column in COLUMNS])
    return number


def _write_jsonl(text: TextIO, rows: Iterable[Exported]) -> int:
    number = 0
    for number, row in enumerate(rows, 1):  # noqa: B007 - the last one is their number
        line = {column: getattr(row, column) for column in COLUMNS}
        text.write(json.dumps(line, ensure_ascii=False) + "\n")
    return number


def _write_tasks(text: TextIO, rows: Iterable[Exported], catalog: CatalogReader, prefix: str) -> int:
    """Write tasks: what the stream says is a prediction, what a person said an annotation; rejected ones have none."""
    said = catalog.corrected()
    cosine = catalog.journal.meta("rule", {}).get("unit") == "cosine"
    number = 0
    text.write("[")
    for row in rows:
        place = _place(row, catalog.journal.folder)
        if place is None:
            continue
        task: dict[str, Any] = {"data": {"image": prefix + place, "index": row.index, "source": row.source}}
        if row.name:
            result = [{**CHOICE, "value": {"choices": [row.name]}}]
            score = {"score": row.similarity} if cosine else {}
            task["predictions"] = [{"model_version": "talon-ocd", **score, "result": result}]
            if row.index in said:
                task["annotations"] = [{"result": result}]
        text.write((",\n" if number else "\n") + json.dumps(task, ensure_ascii=False))
        number += 1
    text.write("\n]\n")
    return number


def _place(row: Exported, folder: Path) -> str | None:
    """Return where the picture of an answer is: its source, or for an upload what was kept of it, if it still is."""
    if row.stored is None:
        return row.source
    kept = stored_path(folder, row.stored)
    return kept.as_posix() if kept.is_file() else None


@contextmanager
def _appearing(file: Path) -> Iterator[TextIO]:
    """Give a file to write that has its name only when it is whole."""
    make_folder(file.parent)
    part = file.with_name(f".{file.name}.part")
    try:
        with part.open("w", encoding="utf-8", newline="") as text:
            yield text
        part.replace(file)
    except OSError as error:
        raise StorageError(
            f"{file}: can't be written ({reason(error)}); what was there before is untouched."
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
