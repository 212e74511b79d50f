"""``talon discover``: answer a stream of images."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from talon_ocd.cli import choices
from talon_ocd.cli.display import progress_for
from talon_ocd.errors import ConfigError
from talon_ocd.evaluation.protocol import score
from talon_ocd.evaluation.record import Record
from talon_ocd.images import ImageItem, stdin_items, stream
from talon_ocd.talon import Talon


def discover(
    data: Annotated[
        str, typer.Argument(help="Images: a folder, a manifest, a tar, one image, or - for paths on stdin.")
    ],
    model: Annotated[Path, typer.Option("--model", "-m", help="Folder that `talon fit` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for decisions, summary and report.")],
    adapt: Annotated[
        str | None,
        typer.Option("--adapt", help="What keeps learning: prototypes,encoder, one of them, or none."),
    ] = None,
    threshold: Annotated[str | None, typer.Option("--threshold", help="auto (rehearsed by fit) or a number.")] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Shuffle the images first, by the seed.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of --shuffle.")] = 0,
    quiet: choices.QuietOption = False,
) -> None:
    """Answer every image at once: a known class, a category discovered earlier, or a new one."""
    talon = Talon.from_pretrained(model)
    online = talon.stream(threshold, adapt)
    lazy = data == "-"
    if lazy and shuffle:
        raise ConfigError("--shuffle needs all images before the first answer; paths on stdin come one by one.")
    source = None if lazy else stream(data)
    items: Iterable[ImageItem] = stdin_items(sys.stdin) if source is None else _ordered(source.items, shuffle, seed)
    total = None if source is None else len(source.items)
    truth: list[str | None] = []
    started = time.perf_counter()
    with Record(output, len(talon.names)) as record:
        for left_out in source.skipped if source else []:
            record.skip(left_out)
        with progress_for(choices.err, quiet).task("discover", total) as task:
            for decision, item in online.run_items(items, record.skip, batch_size=1 if lazy else None):
                record.add(decision, item)
                truth.append(item.label)
                task.advance(1, categories=online.memory.size - len(talon.names))
                if lazy:
                    typer.echo(f"{decision.source}\t{decision.category}\t{decision.name}\t{decision.verdict}")
        seconds = time.perf_counter() - started
        facts = {
            "threshold": online.discovery.rule.threshold,
            "adapt": ",".join(online.config.adapt) or "none",
            "model": str(model),
            "data": data,
            "seconds": round(seconds, 3),
            "images_per_second": round(len(record.decisions) / seconds, 2) if seconds else 0.0,
            "command": choices.command_line(),
        }
        metrics = _metrics(truth, record, talon)
        summary = record.finish(f"{Path(data).name or data}", facts, talon.config.to_dict(), metrics)
    _tell(summary, output)


def _ordered(items: list[ImageItem], shuffle: bool, seed: int) -> list[ImageItem]:
    return [items[i] for i in np.random.RandomState(seed).permutation(len(items))] if shuffle else items


def _metrics(truth: list[str | None], record: Record, talon: Talon) -> dict[str, Any] | None:
    """Score the answers if all images have labels that speak of the model's classes (folders by date do not)."""
    labels = [label for label in truth if label is not None]
    if not labels or len(labels) < len(truth) or not set(labels) & set(talon.names):
        return None
    return score(labels, record.decisions, talon.names)


def _tell(summary: dict[str, Any], output: Path) -> None:
    verdicts = summary["verdicts"]
    choices.out.print(
        f"[bold]{summary['images']}[/] images: {verdicts['known']} known, "
        f"{verdicts['discovered'] + verdicts['new']} in [bold]{summary['categories_discovered']}[/] discovered "
        f"categories, {summary['skipped']['count']} skipped"
    )
    for skipped in summary["skipped"]["listed"][:10]:
        choices.err.print(f"skipped {skipped['source']}: {skipped['reason']}", markup=False, soft_wrap=True)
    if metrics := summary.get("metrics"):
        strict = metrics["strict"]
        choices.out.print(f"strict accuracy: all {strict['all']:.1%}, old {strict['old']:.1%}, new {strict['new']:.1%}")
    choices.out.print(f"report: {output / 'report.html'}", soft_wrap=True, markup=False)
