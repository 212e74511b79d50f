"""``talon tables``: the tables of the papers from the rows of grids."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from talon_ocd.cli import choices
from talon_ocd.errors import ConfigError, DataError, nearest
from talon_ocd.evaluation.rows import Row, read_rows
from talon_ocd.evaluation.table import Table
from talon_ocd.evaluation.tables import TABLES, make_table

FORMATS = ("text", "markdown", "csv")
FoldersArgument = Annotated[
    list[Path], typer.Argument(metavar="OUT...", help="Output folders of talon evaluate.", show_default=False)
]


def tables(
    folders: FoldersArgument,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", "-t", help=f"One of {', '.join(TABLES)}; may be repeated. Default: all with rows."),
    ] = None,
    form: Annotated[str, typer.Option("--format", "-f", help="text, markdown or csv.")] = "text",
    only: Annotated[str | None, typer.Option("--only", help="One data set.")] = None,
) -> None:
    """Print the tables of the papers, with how their figures were made below each."""
    if form not in FORMATS:
        raise ConfigError(f"--format {form!r} is not known; use {', '.join(FORMATS)}.{nearest(form, FORMATS)}")
    rows = rows_of(folders)
    for made in [make_table(name, rows, only) for name in table] if table else _all(rows, only):
        if form == "text":
            show(made)
        else:
            typer.echo(made.markdown() if form == "markdown" else made.csv())


def rows_of(folders: list[Path]) -> list[Row]:
    """Read rows and say which files were skipped."""
    reading = read_rows(folders)
    for problem in reading.problems:
        choices.err.print(f"note: {problem}", markup=False, highlight=False, soft_wrap=True)
    return reading.rows


def _all(rows: list[Row], only: str | None) -> list[Table]:
    """Return every table that rows belong to."""
    made = []
    for name in TABLES:
        try:
            made.append(make_table(name, rows, only))
        except DataError:  # nobody asked for this one
            continue
    return made


def show(table: Table) -> None:
    """Draw one table a data set: all of them side by side are wider than a terminal."""
    for name in table.parts:
        part = table.part(name)
        drawn = RichTable(title=f"{table.title}: {name}", title_justify="left", box=SIMPLE_HEAD)
        words = [not column.part for column in table.columns]
        for title, is_word in zip(part.header, words, strict=False):
            drawn.add_column(Text(title), justify="left" if is_word else "right", overflow="fold")
        for row in part.rows:
            drawn.add_row(*map(Text, row))
        choices.out.print(drawn)
    for note in table.notes:
        choices.out.print(f"  {note}", markup=False, highlight=False, soft_wrap=True)
    choices.out.print()
