"""``talon reproduce``: a published row again, beside what the paper reports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable

from talon_ocd.cli import choices
from talon_ocd.cli.display import progress_for
from talon_ocd.cli.tables import show
from talon_ocd.errors import ConfigError
from talon_ocd.evaluation.datasets import load_dataset
from talon_ocd.evaluation.grid import Grid
from talon_ocd.evaluation.paper import comparison, paper_names, paper_row
from talon_ocd.evaluation.protocol import default_cache_directory
from talon_ocd.evaluation.rows import Row, check
from talon_ocd.saved import make_folder


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Row, e.g. cub-clip; without one, all rows are listed.")] = None,
    root: Annotated[Path | None, typer.Option("--root", help="Where the data set is.")] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", help="Folder of the encoder's weights; default: its hub id.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for the rows; resumable.")] = None,
    orders: Annotated[int, typer.Option("--orders", min=1, help="Stream orders; the paper's is not known.")] = 3,
    epochs: choices.EpochsOption = None,
    views: Annotated[
        int | None,
        typer.Option("--views", help="Cache this many random views an image; the paper draws fresh ones (0)."),
    ] = None,
    quiet: choices.QuietOption = False,
) -> None:
    """Run a published row of TALON with its official settings and print ours against it."""
    if name is None:
        _list()
        return
    row = paper_row(name)
    if root is None:
        raise ConfigError(f"{name} needs --root DIR, the folder of the data set {row.dataset}; see docs/data-sets.md.")
    encoder = row.encoder(weights)
    plan = row.plan(orders, epochs=epochs, views=views)
    data = load_dataset(row.dataset, root)
    progress = progress_for(choices.err, quiet)
    for note in data.notes:
        progress.note(f"{data.name}: {note}")
    folder = output or Path("runs") / "reproduce" / name
    make_folder(folder)
    about = {"command": choices.command_line(), "commit": choices.commit()}
    made = [
        Row(content) for content in Grid(plan, encoder, folder, about, default_cache_directory(), progress).run([data])
    ]
    for one in made:
        check(one)
    show(comparison(row, made))


def _list() -> None:
    table = RichTable(title="Published rows of TALON", title_justify="left", box=SIMPLE_HEAD)
    for column in ("name", "what", "known / new", "Strict All / Old / New", "Greedy All / Old / New"):
        table.add_column(column)
    for name in paper_names():
        row = paper_row(name)
        triples = [
            " / ".join(f"{value:.1f}" for value in row.published[part].values()) for part in ("strict", "greedy")
        ]
        table.add_row(name, row.title, row.split, *triples)
    choices.out.print(table)
