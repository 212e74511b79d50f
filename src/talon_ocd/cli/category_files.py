"""``talon categories export``, ``import`` and ``carry``: categories go elsewhere and come back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from talon_ocd.catalog import Catalog
from talon_ocd.catalog.carry import carry
from talon_ocd.catalog.exchange import FORMATS, export
from talon_ocd.catalog.folder_intake import read_folders
from talon_ocd.catalog.folders import export_folders
from talon_ocd.catalog.intake import Trouble, plan, read_labels
from talon_ocd.cli import choices
from talon_ocd.cli.display import progress_for
from talon_ocd.durable import Journal
from talon_ocd.errors import CatalogError
from talon_ocd.images import display

StreamOption = Annotated[Path, typer.Option("--stream", "-s", help="Folder of the stream.")]
ByOption = Annotated[str, typer.Option("--by", help="Who says so; it is written down.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines, one line a row.")]

ENDINGS = {".csv": "csv", ".jsonl": "jsonl", ".json": "label-studio", "": "folders"}
MOST_SHOWN = 20
"""Rows that are told one by one."""


@contextmanager
def opened(stream: Path, edit: bool = False) -> Iterator[Catalog]:
    """Open the catalog of a stream folder; only one program at a time may edit."""
    if edit:
        Journal(stream).close()  # a folder without a stream is refused, and stays as it is
    journal = Journal(stream, write=edit, purpose="talon categories")
    try:
        yield Catalog(journal)
    finally:
        journal.close()


def export_command(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="File to write, or a new folder for pictures.")],
    stream: StreamOption,
    kind: Annotated[
        str | None,
        typer.Option("--format", "-f", help="csv, jsonl, label-studio or folders; otherwise by TARGET's ending."),
    ] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", help="Before every image in Label Studio's links, e.g. /data/local-files/?d=.")
    ] = "",
    copy: Annotated[bool, typer.Option("--copy", help="Copy pictures into folders instead of linking them.")] = False,
    quiet: choices.QuietOption = False,
) -> None:
    """Write all answers with the names that categories have now."""
    chosen = kind or ENDINGS.get(target.suffix.lower())
    if chosen is None:
        raise CatalogError(f"{target}: say with --format what to write: {', '.join(FORMATS)} or folders.")
    with opened(stream) as catalog:
        if chosen != "folders":
            _say(f"{export(catalog, target, chosen, prefix)} images written to {display(target)}")
            return
        progress = progress_for(choices.err, quiet)
        with progress.task("export", catalog.journal.answered) as task:
            written = export_folders(catalog, target, not copy, task.advance)
    _say(f"{written.pictures} pictures in {written.folders} folders of {display(target)}")
    if written.missing:
        _say(f"{len(written.missing)} left out, their originals are gone or changed:")
        _some(list(written.missing))


def import_command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help=".csv, .jsonl, .json of Label Studio, or a folder per category.")
    ],
    stream: StreamOption,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Images that are in the right place count once more there.")
    ] = False,
    by: ByOption = "person",
    as_json: JsonOption = False,
) -> None:
    """Take labels in that people made elsewhere: rows with index or source, and name; or pictures in folders."""
    with opened(stream) as reader:  # pictures take their time, and whoever edits meanwhile need not wait
        labels, unreadable = read_folders(reader, file) if file.is_dir() else read_labels(file)
    with opened(stream, edit=not dry_run) as catalog:
        made = plan(catalog, labels, confirm)
        events = [] if dry_run else made.carry_out(catalog, by, display(file.name))
    troubles = sorted([*unreadable, *made.troubles], key=lambda trouble: trouble.line)
    if as_json:
        rows = [{"step": asdict(step)} for step in made.steps] + [{"trouble": asdict(bad)} for bad in troubles]
        for row in rows:
            typer.echo(json.dumps(row, ensure_ascii=False))
        return
    _some([str(step) for step in made.steps])
    done = "nothing was changed (--dry-run)" if dry_run else f"{len(events)} events written"
    _say(f"{done}; {made.unchanged} images are in the right place already")
    _tell_troubles(troubles)


def carry_command(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Folder of the stream that people worked on.")],
    stream: StreamOption,
    by: ByOption = "person",
) -> None:
    """Carry names, merges, hiding and refusals over from a stream of an earlier model that has seen the same images."""
    with opened(old) as before, opened(stream, edit=True) as catalog:
        done = carry(before, catalog, by)
    _say(f"carried over from {display(old)}: {len(done.events)}")
    if done.left:
        _say(f"{len(done.left)} left behind:")
        _some([f"category {left.category} ({left.name!r}): {left.reason}" for left in done.left])
    if done.told:
        _say(done.told)


def _tell_troubles(troubles: list[Trouble]) -> None:
    if troubles:
        _say(f"{len(troubles)} rows left out:")
        _some([f"line {bad.line}: {bad.reason}" if bad.line else bad.reason for bad in troubles])


def _some(lines: list[str]) -> None:
    for line in lines[:MOST_SHOWN]:
        _say(f"  {line}")
    if len(lines) > MOST_SHOWN:
        _say(f"  ... and {len(lines) - MOST_SHOWN} more")


def _say(text: str) -> None:
    choices.out.print(text, markup=False, highlight=False, soft_wrap=True)
