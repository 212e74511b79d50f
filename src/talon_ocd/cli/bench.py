"""``talon bench``: speed on this machine, as ratios taken in one run."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from talon_ocd.benchmarks import suite
from talon_ocd.benchmarks.result import Result
from talon_ocd.benchmarks.sizes import Sizes
from talon_ocd.cli import choices
from talon_ocd.cli.display import progress_for
from talon_ocd.saved import make_folder, write_files

app = typer.Typer(help="Benchmarks: ratios taken in one run.", no_args_is_help=True)


@app.callback()
def options() -> None:
    """Benchmarks: ratios taken in one run."""


@app.command("speed")
def speed(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    only: Annotated[
        str | None, typer.Option("--only", help="Some groups: stream, decisions, training, memory (with commas).")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke test: small sizes, numbers without meaning.")] = False,
    repeats: Annotated[int | None, typer.Option("--repeats", min=1, help="Most repeats of a comparison.")] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write the JSON to this file as well.")] = None,
    quiet: choices.QuietOption = False,
) -> None:
    """Measure stream, decisions, training and memory against what they should be.

    Every value is a ratio of medians of interleaved repeats. It is a measurement, not a test: a value that misses its
    target is marked "below" and the command still succeeds.
    """
    sizes = Sizes.quick() if quick else Sizes()
    if repeats is not None:
        sizes = dataclasses.replace(sizes, repeats=repeats)
    groups = [part.strip() for part in only.split(",")] if only else []
    if save is not None:
        make_folder(save.parent)
    commit = choices.commit()  # of the code that is loaded now; the checkout may move while this runs
    started, before = time.perf_counter(), suite.load()
    results = list(suite.run(sizes, groups, progress_for(choices.err, quiet)))
    content = {"commit": commit, "quick": quick, **_content(results, time.perf_counter() - started, before)}
    text = json.dumps(content, indent=2)
    if save is not None:
        write_files(save.parent, {save.name: f"{text}\n".encode()})
    if as_json:
        typer.echo(text)
    else:
        _tell(results, content)


def _content(results: list[Result], seconds: float, load: list[float] | None) -> dict[str, Any]:
    return {
        "machine": {**suite.machine(), "load_before": load, "load_after": suite.load()},
        "results": [result.to_dict() for result in results],
        "command": choices.command_line(),
        "seconds": round(seconds, 1),
    }


def _tell(results: list[Result], content: dict[str, Any]) -> None:
    title = "Speed" + (" (smoke test: numbers without meaning)" if content["quick"] else "")
    table = Table(title=title, box=SIMPLE, title_justify="left", padding=(0, 1, 0, 0))
    table.add_column("name", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("target", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("note")
    for result in results:
        value = "-" if result.value is None else f"{result.value:.3g}"
        table.add_row(result.name, value, str(result.target), result.verdict, escape(f"{result.unit} {result.note}"))
    choices.out.print(table)
    facts = content["machine"]
    choices.out.print(
        f"{facts['cpu']}, {facts['threads']} threads on {facts['cores']} cores, torch {facts['torch']}, "
        f"load {facts['load_before']} before and {facts['load_after']} after, commit {content['commit']}, "
        f"{content['seconds']} s",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
