"""``talon figures``: the figures of the papers from the rows of grids."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from talon_ocd.cli import choices
from talon_ocd.cli.tables import FoldersArgument, rows_of
from talon_ocd.evaluation.rows import of_dataset
from talon_ocd.images import display


def figures(
    folders: FoldersArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the PNG and SVG files.")],
    only: Annotated[str | None, typer.Option("--only", help="One data set.")] = None,
) -> None:
    """Draw the figures of the papers; a figure without rows is left out, with the command that makes them."""
    from talon_ocd.evaluation.plots import draw  # here: every other command would wait for matplotlib

    drawings, notes = draw(of_dataset(rows_of(folders), only))
    for drawing in drawings:
        for path in drawing.save(output):
            choices.out.print(display(path), markup=False, highlight=False, soft_wrap=True)
    for note in notes:
        choices.err.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
