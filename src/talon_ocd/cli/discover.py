"""``talon discover``: answer a stream of images."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from talon_ocd.cli import choices
from talon_ocd.cli.display import progress_for
from talon_ocd.errors import ConfigError
from talon_ocd.evaluation.protocol import score
from talon_ocd.evaluation.record import REPORT, SUMMARY, THOUGHTS, Record
from talon_ocd.images import ImageItem, Skipped, display, stdin_items, stream
from talon_ocd.online import Decision, DiscoveryStream
from talon_ocd.progress import Progress
from talon_ocd.saved import write_files
from talon_ocd.talon import Talon

MOST_SHOWN = 10
"""Skipped images that are told by name on the terminal."""


def discover(
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="Images: a folder, a manifest, a tar, one image, or - for paths on stdin."),
    ],
    model: Annotated[Path, typer.Option("--model", "-m", help="Folder that `talon fit` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for decisions, summary and report.")],
    adapt: Annotated[
        str | None,
        typer.Option("--adapt", help="What keeps learning: prototypes,encoder, one of them, or none."),
    ] = None,
    threshold: Annotated[
        str | None, typer.Option("--threshold", help="auto (what fit found) or a cosine (TALON's rule).")
    ] = None,
    finer: Annotated[
        float, typer.Option("--finer", help="Nats of evidence: 3 gives more categories, -3 fewer.", show_default=False)
    ] = 0.0,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Shuffle the images first, by the seed.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of --shuffle.")] = 0,
    quiet: choices.QuietOption = False,
) -> None:
    """Answer every image at once: a known class, a category discovered earlier, or a new one."""
    talon = Talon.from_pretrained(model)
    online = talon.stream(threshold=threshold, adapt=adapt, finer=finer)
    rule = online.discovery.rule
    lazy = data == "-"
    if lazy and shuffle:
        raise ConfigError("--shuffle needs all images before the first answer; paths on stdin come one by one.")
    source = None if lazy else stream(data)
    items: Iterable[ImageItem] = _stdin() if source is None else _ordered(source.items, shuffle, seed)
    progress = progress_for(choices.err, quiet or lazy)
    started = time.perf_counter()
    with Record(output, len(talon.names)) as record:
        for left_out in source.skipped if source else []:
            record.skip(left_out)
        truth: list[str | None] = []
        try:
            for decision, item in _answers(online, items, record, lazy, progress):
                record.add(decision, item)
                truth.append(item.label)
                if lazy:
                    typer.echo(f"{decision.source}\t{decision.category}\t{decision.name}\t{decision.verdict}")
            stopped = False
        except KeyboardInterrupt:  # the way to end a live stream: what was answered still gets its report
            stopped = True
        seconds = time.perf_counter() - started
        facts = {
            "rule": rule.name,
            "unit": rule.unit,
            "threshold": rule.threshold,
            **({"finer": finer} if finer else {}),
            "adapt": ",".join(online.config.adapt) or "none",
            "model": display(model),
            "data": display(data),
            "stopped_early": stopped,
            "seconds": round(seconds, 3),
            "images_per_second": round(len(record.decisions) / seconds, 2) if seconds else 0.0,
            "command": choices.command_line(),
        }
        metrics = _metrics(truth, record, talon)
        title = "standard input" if lazy else display(Path(data).name or data)
        thoughts = _second_thoughts(online, record, output)
        summary = record.finish(title, {**facts, **thoughts}, talon.config.to_dict(), metrics)
    _tell(summary, output, choices.err if lazy else choices.out, [] if lazy else record.skipped)
    if stopped:
        raise KeyboardInterrupt


def _stdin() -> Iterator[ImageItem]:
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # file names need not be UTF-8
    return stdin_items(sys.stdin)


def _answers(
    online: DiscoveryStream, items: Iterable[ImageItem], record: Record, lazy: bool, progress: Progress
) -> Iterator[tuple[Decision, ImageItem]]:
    """Answer the images while the progress moves; ``lazy`` tells of every image before it reads the next one."""

    def skip(skipped: Skipped) -> None:
        record.skip(skipped)
        if lazy:
            typer.echo(f"skipped {skipped.source}: {skipped.reason}", err=True)

    with progress.task("Discovering", len(items) if isinstance(items, Sized) else None) as task:
        for decision, item in online.run_items(items, skip, batch_size=1 if lazy else None):
            yield decision, item
            task.advance(1, categories=online.memory.size - online.memory.known)


def _ordered(items: list[ImageItem], shuffle: bool, seed: int) -> list[ImageItem]:
    return [items[i] for i in np.random.RandomState(seed).permutation(len(items))] if shuffle else items


def _metrics(truth: list[str | None], record: Record, talon: Talon) -> dict[str, Any] | None:
    """Score the answers if all images have labels that speak of the model's classes (folders by date do not)."""
    labels = [label for label in truth if label is not None]
    if not labels or len(labels) < len(truth) or not set(labels) & set(talon.names):
        return None
    return score(labels, [decision.category for decision in record.decisions], talon.names)


def _second_thoughts(online: DiscoveryStream, record: Record, output: Path) -> dict[str, int]:
    """Write what the stream would say differently by now; returns how many proposals there are."""
    thoughts = online.second_thoughts()
    if thoughts is None:
        return {}
    written = len(record.decisions)  # Ctrl-C in the middle of a batch: more was answered than anybody was told
    thoughts = replace(thoughts, moves=tuple(move for move in thoughts.moves if move.index < written))
    plain = thoughts.to_dict(online.discovery.name, lambda index: record.decisions[index].source)
    write_files(output, {THOUGHTS: json.dumps(plain, indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace")})
    return {"proposed_moves": len(thoughts.moves), "proposed_merges": len(thoughts.merges)}


def _tell(summary: dict[str, Any], output: Path, console: Console, skipped: list[Skipped]) -> None:
    verdicts = summary["verdicts"]
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
    if metrics := summary.get("metrics"):
        strict = metrics["strict"]
        console.print(f"strict accuracy: all {strict['all']:.1%}, old {strict['old']:.1%}, new {strict['new']:.1%}")
    console.print(f"report: {display(output / REPORT)}", soft_wrap=True, markup=False, highlight=False)
