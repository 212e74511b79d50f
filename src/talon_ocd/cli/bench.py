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
from talon_ocd.errors import ConfigError
from talon_ocd.saved import make_folder, write_files
from talon_ocd.scale.costs import BOUNDARY, Costs, held_by_each
from talon_ocd.scale.pool import Outcome, Pool
from talon_ocd.scale.simulation import simulate

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


@app.command("scale")
def scale(
    encoders: Annotated[int, typer.Option("--encoders", min=1, help="Processes that encode.")] = 64,
    encoder_rate: Annotated[
        float | None,
        typer.Option("--encoder-rate", help="Images a second of one encoder; left out: of one core, as measured."),
    ] = None,
    owners: Annotated[int, typer.Option("--owners", min=1, help="Owners that divide the feature space.")] = 1,
    prototypes: Annotated[int, typer.Option("--prototypes", min=0, help="Categories in all memories.")] = 10_000,
    size: Annotated[int, typer.Option("--size", min=1, help="Numbers of a feature.")] = 768,
    journal: Annotated[bool, typer.Option("--journal/--no-journal", help="Are answers written down?")] = True,
    waiting: Annotated[
        int | None,
        typer.Option("--waiting", min=0, help="Batches that may wait for the owners; left out: 4 for each encoder."),
    ] = None,
    stragglers: Annotated[
        float, typer.Option("--stragglers", help="Share of batches that take 4 times as long.")
    ] = 0.01,
    failures: Annotated[float, typer.Option("--failures", help="Share of batches at which an encoder dies.")] = 0.0005,
    batches: Annotated[int, typer.Option("--batches", min=1, help="Length of the stream, 256 images each.")] = 4000,
    seed: Annotated[int, typer.Option("--seed", help="Of times and failures.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Simulate many encoders and the owners of the memory, from costs that were measured on one core."""
    costs = Costs()
    rate = costs.encoder_rate if encoder_rate is None else encoder_rate
    if rate <= 0:
        raise ConfigError(f"--encoder-rate {rate:g}: give images a second, more than 0.")
    pool = Pool(
        encoders=encoders,
        batches=batches,
        warm_up=min(4 * encoders, batches // 4),
        trunk_seconds=Pool.batch / rate,
        owner_seconds=Pool.batch * costs.owner_seconds(held_by_each(prototypes, owners), size, journal),
        jitter=0.2,
        stragglers=stragglers,
        straggle=4.0,
        failures=failures,
        at_the_owner=4 * encoders if waiting is None else waiting,
        shares=(1.0 / owners,) * owners,
        boundary=BOUNDARY if owners > 1 else 0.0,
        exchange_seconds=0.001 if owners > 1 else 0.0,
        seed=seed,
    )
    outcome = simulate(pool)
    if as_json:
        typer.echo(json.dumps({"pool": dataclasses.asdict(pool), "outcome": dataclasses.asdict(outcome)}, indent=2))
    else:
        _tell_scale(pool, outcome)


def _tell_scale(pool: Pool, outcome: Outcome) -> None:
    table = Table(title="A simulated pool", box=SIMPLE, title_justify="left", show_header=False, padding=(0, 1, 0, 0))
    lines = {
        "images a second": f"{outcome.images_a_second:,.0f}",
        "encoders could make": f"{pool.encoders * pool.batch / pool.trunk_seconds:,.0f}",
        "owners could take": f"{len(pool.shares) * pool.batch / (pool.owner_seconds * (1.0 + pool.boundary)):,.0f}",
        "busiest owner at work": f"{max(outcome.owner_busy):.1%} of the time",
        "encoders at work": f"{outcome.encoder_busy:.1%} of the time",
        "batches under way": f"{outcome.most_under_way} at most, {pool.most_under_way} allowed",
        "batches waiting for owners": f"{outcome.most_waiting} at most",
        "seconds to the answer": f"{outcome.latency['p50']:.2f} median, {outcome.latency['p99']:.2f} for 99 %",
        "batches done again": str(outcome.redone),
    }
    for name, value in lines.items():
        table.add_row(name, value)
    choices.out.print(table)


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
