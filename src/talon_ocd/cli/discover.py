"""``talon discover``: answer a stream of images."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from talon_ocd.backbones import takes_vectors
from talon_ocd.catalog import Catalog
from talon_ocd.cli import bounds, choices, engines, untold
from talon_ocd.cli.display import progress_for
from talon_ocd.cli.engines import Online
from talon_ocd.errors import ConfigError, DataError
from talon_ocd.evaluation.protocol import score
from talon_ocd.evaluation.record import REPORT, SUMMARY, THOUGHTS, Record
from talon_ocd.images import ImageItem, ImageSource, Skipped, VectorSource, display, stdin_items
from talon_ocd.images.watch import watch as watch_folder
from talon_ocd.online import Decision
from talon_ocd.progress import Progress
from talon_ocd.saved import write_files
from talon_ocd.scale.extra import DATA_NEEDS, STREAM_NEEDS
from talon_ocd.talon import Talon

MOST_SHOWN = 10
"""Skipped images that are told by name on the terminal."""


def discover(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Images: a folder, a manifest, a tar, one image, .parquet embeddings, s3://..., - (paths on stdin).",
        ),
    ],
    model: Annotated[Path, typer.Option("--model", "-m", help="Folder that `talon fit` wrote.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for decisions, summary and report; with --stream: STREAM/report."),
    ] = None,
    stream: Annotated[
        Path | None,
        typer.Option("--stream", "-s", help="Folder of a stream that lasts: goes on where it stopped."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow the folder DATA: answer what arrives, until Ctrl-C.")
    ] = False,
    adapt: Annotated[
        str | None,
        typer.Option("--adapt", help="What keeps learning: prototypes,encoder, one of them, or none."),
    ] = None,
    threshold: Annotated[
        str | None, typer.Option("--threshold", help="auto (what fit found) or a cosine (TALON's rule).")
    ] = None,
    finer: Annotated[
        float | None,
        typer.Option("--finer", help="Nats of evidence: 3 gives more categories, -3 fewer.", show_default=False),
    ] = None,
    most_categories: bounds.MostCategoriesOption = None,
    tentative_below: bounds.TentativeBelowOption = None,
    retire_after: bounds.RetireAfterOption = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Shuffle the images first, by the seed.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of --shuffle.")] = 0,
    column: choices.ColumnOption = None,
    engine: engines.EngineOption = engines.Engine.LOCAL,
    address: engines.AddressOption = None,
    encoders: engines.EncodersOption = None,
    gpus_per_encoder: engines.GpusOption = 0.0,
    mode: engines.ModeOption = "exact",
    staleness: engines.StalenessOption = 2,
    read_ahead: engines.ReadAheadOption = False,
    quiet: choices.QuietOption = False,
) -> None:
    """Answer every image at once: a known class, a category discovered earlier, or a new one."""
    lazy = data == "-"
    target = _check(output, stream, watch, shuffle, lazy)
    needs = DATA_NEEDS if read_ahead or "://" in data else STREAM_NEEDS
    spread = engines.ray_settings(engine, address, encoders, gpus_per_encoder, mode, staleness, needs, read_ahead)
    source = None if lazy or watch else engines.listed(data, column)
    if spread and (lazy or isinstance(source, VectorSource)):
        raise ConfigError("--engine ray encodes images that can be listed: not standard input, and not embeddings.")
    talon = _fitting(Talon.from_pretrained(model), source)
    options: dict[str, Any] = {"threshold": threshold, "adapt": adapt, "finer": finer}
    options["bounds"] = bounds.bounds_from(stream, most_categories, tentative_below, retire_after)
    facts = {"model": display(model), **({"finer": finer} if finer else {})}
    with engines.opened(talon, model, stream, spread, options) as online:
        if watch:
            follow(online, Path(data))
        else:
            run_once(talon, online, engines.shown(data), source, target, shuffle, seed, quiet, facts)


def _check(output: Path | None, stream: Path | None, watch: bool, shuffle: bool, lazy: bool) -> Path:
    """Refuse options that don't go together; returns the folder for the report."""
    if lazy and shuffle:
        raise ConfigError("--shuffle needs all images before the first answer; paths on stdin come one by one.")
    if watch and (stream is None or lazy or shuffle):
        raise ConfigError("--watch follows a folder, for ever: give DATA as a folder, --stream, and no --shuffle.")
    if watch and output is not None:
        raise ConfigError(
            f"--output {output}: --watch never ends and writes no report; answers go to --stream. Leave it out."
        )
    if output is not None:
        return output
    if stream is None:
        raise ConfigError("nowhere to write to: give --output FOLDER, or --stream FOLDER for a stream that lasts.")
    return stream / "report"


def _fitting(talon: Talon, source: ImageSource | None) -> Talon:
    """Return the model for what it is given: pictures, or embeddings."""
    if isinstance(source, VectorSource):
        return talon.for_vectors(source.facts, source.name)
    if takes_vectors(talon.backbone):
        raise DataError(
            f"the model was fitted on embeddings ({talon.backbone.name}), and these are pictures; make embeddings of "
            "them with `talon embed`, by the same encoder."
        )
    return talon


def run_once(
    talon: Talon, online: Online, data: str, source: ImageSource | None, output: Path, shuffle: bool,
    seed: int, quiet: bool, facts: dict[str, Any],
) -> None:  # fmt: skip
    """Answer the images that there are, and write the report; without a source they come on standard input."""
    lazy = source is None
    items: Iterable[ImageItem] = _stdin() if source is None else _ordered(source.items, shuffle, seed)
    progress = progress_for(choices.err, quiet or lazy)
    name = namer(online)
    before, started = online.answered, time.perf_counter()
    kept = engines.lasting(online)
    first = before if kept is None else untold.first_untold(kept, output)
    with Record(output, len(talon.names)) as record:
        for left_out in source.skipped if source else []:
            record.skip(left_out)
        truth: list[str | None] = []
        labels = {item.source: item.label for item in source.items} if source and kept is not None else {}
        if kept is not None:
            untold.add_untold(kept, first, record, name, truth, labels)
        try:
            for answer, item in _answers(online, items, record, lazy, progress):
                decision = replace(answer, name=name(answer))
                record.add(decision, item)
                truth.append(item.label)
                if lazy:
                    typer.echo(line_of(decision))
            stopped = False
        except KeyboardInterrupt:  # the way to end a live stream: what was answered still gets its report
            stopped = True
            if kept is not None:
                untold.add_untold(kept, first + len(record.decisions), record, name, truth, labels)
        answered = first + len(record.decisions) - before
        facts = {**facts, **_facts(online, data, first, time.perf_counter() - started, answered)}
        metrics = _metrics(truth, record, talon)
        title = "standard input" if lazy else display(Path(data).name or data)
        thoughts = {} if kept is not None else _second_thoughts(online, record, output)
        summary = record.finish(title, {**facts, "stopped_early": stopped, **thoughts}, talon.config.to_dict(), metrics)
    _tell(summary, output, choices.err if lazy else choices.out, [] if lazy else record.skipped)
    if stopped:
        raise KeyboardInterrupt


def follow(online: Online, folder: Path) -> None:
    """Answer what arrives in a folder, a line each, until somebody stops it."""
    name = namer(online)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # service managers say so
    choices.err.print(f"watching {display(folder)}; Ctrl-C stops", soft_wrap=True, markup=False, highlight=False)
    for arrived in watch_folder(folder):
        for answer, _ in engines.answers(online, arrived, _tell_skip):
            typer.echo(line_of(replace(answer, name=name(answer))))


def namer(online: Online) -> Callable[[Decision], str]:
    """Return what gives a decision its name: people's, where there are people."""
    kept = engines.lasting(online)
    if kept is None:
        return lambda decision: decision.name
    catalog = Catalog(kept.journal)
    return lambda decision: catalog.name(decision.category)


def line_of(decision: Decision) -> str:
    """Return a decision as one line for programs."""
    return f"{decision.source}\t{decision.category}\t{decision.name}\t{decision.verdict}"


def _tell_skip(skipped: Skipped) -> None:
    typer.echo(f"skipped {skipped.source}: {skipped.reason}", err=True)


def _facts(online: Online, data: str, before: int, seconds: float, answered: int) -> dict[str, Any]:
    kept = engines.lasting(online)
    return {
        **online.facts(),
        **({"stream": display(kept.folder), "answered_before": before} if kept else {}),
        "data": display(data),
        "seconds": round(seconds, 3),
        "images_per_second": round(answered / seconds, 2) if seconds else 0.0,
        "command": choices.command_line(),
    }


def _stdin() -> Iterator[ImageItem]:
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # file names need not be UTF-8
    return stdin_items(sys.stdin)


def _answers(
    online: Online, items: Iterable[ImageItem], record: Record, lazy: bool, progress: Progress
) -> Iterator[tuple[Decision, ImageItem]]:
    """Answer the images while the progress moves; ``lazy`` tells of every image before it reads the next one."""

    def skip(skipped: Skipped) -> None:
        record.skip(skipped)
        if lazy:
            _tell_skip(skipped)

    if isinstance(items, list):
        items = online.unseen(items)
    with progress.task("Discovering", len(items) if isinstance(items, Sized) else None) as task:
        for decision, item in engines.answers(online, items, skip, one_by_one=lazy):
            yield decision, item
            task.advance(1, categories=online.categories, **engines.rates(online))


def _ordered(items: list[ImageItem], shuffle: bool, seed: int) -> list[ImageItem]:
    return [items[i] for i in np.random.RandomState(seed).permutation(len(items))] if shuffle else items


def _metrics(truth: list[str | None], record: Record, talon: Talon) -> dict[str, Any] | None:
    """Score the answers if all images have labels that speak of the model's classes (folders by date do not)."""
    labels = [label for label in truth if label is not None]
    if not labels or len(labels) < len(truth) or not set(labels) & set(talon.names):
        return None
    return score(labels, [decision.category for decision in record.decisions], talon.names)


def _second_thoughts(online: Online, record: Record, output: Path) -> dict[str, int]:
    """Write what the stream would say differently by now; returns how many proposals there are."""
    thoughts = online.second_thoughts()
    if thoughts is None:
        return {}
    written = len(record.decisions)  # Ctrl-C in the middle of a batch: more was answered than anybody was told
    thoughts = replace(thoughts, moves=tuple(move for move in thoughts.moves if move.index < written))
    plain = thoughts.to_dict(online.name, lambda index: record.decisions[index].source)
    write_files(output, {THOUGHTS: json.dumps(plain, indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace")})
    return {"proposed_moves": len(thoughts.moves), "proposed_merges": len(thoughts.merges)}


def _tell(summary: dict[str, Any], output: Path, console: Console, skipped: list[Skipped]) -> None:
    verdicts = summary["verdicts"]
    if summary.get("answered_before"):
        console.print(f"went on after {summary['answered_before']} images; what was answered before is left out")
    console.print(
        f"{summary['images']} images: {verdicts['known']} known, {verdicts['discovered'] + verdicts['new']} in "
        f"{summary['categories_discovered']} discovered categories, {summary['skipped']['count']} skipped"
    )
    for item in skipped[:MOST_SHOWN]:
        choices.err.print(f"skipped {item.source}: {item.reason}", markup=False, highlight=False, soft_wrap=True)
    if (more := summary["skipped"]["count"] - MOST_SHOWN) > 0 and skipped:
        choices.err.print(f"... and {more} more skipped; {SUMMARY} lists them", highlight=False)
    if summary.get("proposed_moves") or summary.get("proposed_merges"):
        console.print(
            f"second thoughts: {summary['proposed_moves']} images would be answered differently by now, "
            f"{summary['proposed_merges']} pairs of categories look like one ({THOUGHTS})",
            highlight=False,
        )
    if facts := summary.get("ray"):
        console.print(engines.ray_line(facts), soft_wrap=True, highlight=False)
    if metrics := summary.get("metrics"):
        strict = metrics["strict"]
        console.print(f"strict accuracy: all {strict['all']:.1%}, old {strict['old']:.1%}, new {strict['new']:.1%}")
    console.print(f"report: {display(output / REPORT)}", soft_wrap=True, markup=False, highlight=False)
