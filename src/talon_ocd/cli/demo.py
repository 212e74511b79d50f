"""``talon demo``: the main job on embedded data, with a table of categories that grows while one watches."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from talon_ocd.backbones import get_backbone
from talon_ocd.cli import choices
from talon_ocd.cli.display import progress_for
from talon_ocd.config import TalonConfig
from talon_ocd.evaluation.datasets import load_dataset
from talon_ocd.evaluation.protocol import STREAMING, Experiment
from talon_ocd.evaluation.record import Record
from talon_ocd.evaluation.splits import Indices
from talon_ocd.images import ImageItem
from talon_ocd.methods import get_method
from talon_ocd.online import Assignment, Decision
from talon_ocd.progress import SILENT, Progress, Task
from talon_ocd.saved import write_files
from talon_ocd.talon import cache_for

ROWS = 18
"""Categories that the live table shows."""
LINE_EVERY = 200
"""Images between two plain lines where there is no terminal."""
GLIMPSE = 0.05
"""Seconds between two states of the live table, so that eyes can follow."""
IMAGE_SIZE = 48
"""Pixels a side: plenty for digits of 8 x 8, and twenty times faster than 224."""


class LiveTable:
    """Categories as they appear: a live table on a terminal, a line for each discovery elsewhere."""

    def __init__(self, known: int, total: int) -> None:
        self._known, self._total = known, total
        self._seen: Counter[int] = Counter()
        self._names: dict[int, str] = {}
        self._truth: dict[int, Counter[str]] = {}
        self._first: dict[int, int] = {}
        self._live = (
            Live(console=choices.out, refresh_per_second=8, transient=False) if choices.out.is_terminal else None
        )

    def __enter__(self) -> LiveTable:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live and self._live.is_started:
            self._live.update(self._table(), refresh=True)
            self._live.stop()

    def add(self, decision: Decision, item: ImageItem) -> None:
        """Count one answer."""
        category = decision.category
        self._seen[category] += 1
        self._names[category] = decision.name
        self._first.setdefault(category, decision.index)
        self._truth.setdefault(category, Counter())[str(item.label)] += 1
        answered = decision.index + 1
        if self._live and answered % 16 == 0:
            if not self._live.is_started:  # not before: a terminal has room for one moving thing
                self._live.start()
            self._live.update(self._table())
            time.sleep(GLIMPSE)
        elif not self._live and (answered % LINE_EVERY == 0 or answered == self._total):
            found = sum(category >= self._known for category in self._seen)
            choices.out.print(f"{answered}/{self._total} images, {found} categories discovered", highlight=False)

    def _table(self) -> Table:
        table = Table(title=f"{sum(self._seen.values())} of {self._total} images answered")
        for column in ("category", "images", "first seen at", "mostly shows", "share"):
            table.add_column(column, justify="left" if column == "category" else "right")
        known = [c for c in sorted(self._seen) if c < self._known]
        new = sorted((c for c in self._seen if c >= self._known), key=lambda c: -self._seen[c])
        for category in (known + new)[:ROWS]:
            label, number = self._truth[category].most_common(1)[0]
            style = "" if category < self._known else "bold green"
            table.add_row(
                self._names[category], str(self._seen[category]), str(self._first[category]), label,
                f"{number / self._seen[category]:.0%}", style=style,
            )  # fmt: skip
        hidden = len(known + new) - ROWS
        if hidden > 0:
            table.caption = f"and {hidden} smaller categories"
        return table


class BeforeTheStream:
    """Shows all work but the stream itself, which the table shows."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def task(self, name: str, total: int | None = None, unit: str = "images") -> AbstractContextManager[Task]:
        """Pass all work on but the stream."""
        return (SILENT if name == STREAMING else self._progress).task(name, total, unit)

    def note(self, message: str) -> None:
        """Pass a remark on."""
        self._progress.note(message)


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for metrics and report.")] = Path("runs/demo"),
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of the split, the training and the order.")
    ] = 0,
    quiet: choices.QuietOption = False,
) -> None:
    """Learn six handwritten digits, then meet all ten: watch the other four being discovered."""
    started = time.perf_counter()
    data = load_dataset("digits")
    backbone = get_backbone("efficientnet-lite0", image_size=IMAGE_SIZE)
    config = TalonConfig.from_preset("default", backbone.family)
    choices.out.print(
        f"known digits: {', '.join(data.known)}. The stream also shows others; nobody says which or how many.",
        highlight=False,
    )
    method = get_method("evidence", config)
    progress = BeforeTheStream(progress_for(choices.err, quiet))
    with (
        cache_for(backbone, replace(config, seed=seed)) as cache,
        Record(output, len(data.known)) as record,
    ):
        experiment = Experiment(data, backbone, config.offline, seed, cache, progress=progress)
        trained = experiment.fit(method.recipe, progress)
        order, opened = experiment.order(), method.stream(trained)
        threshold, unit = opened.threshold, opened.unit
        with LiveTable(len(data.known), len(order)) as table:

            def show(assignment: Assignment, positions: Indices) -> None:
                made = experiment.decisions(assignment, positions, len(record.decisions), threshold, unit)
                for decision, position in zip(made, positions, strict=True):
                    record.add(decision, experiment.items[position])
                    table.add(decision, experiment.items[position])

            answers = experiment.run(method, trained, order, progress=progress, on_answers=show)
        scores = experiment.score(answers)
        seconds = round(time.perf_counter() - started, 1)
        metrics = {"seed": seed, **scores, "unit": unit, "threshold": threshold, "seconds": seconds}
        metrics["command"] = choices.command_line()
        write_files(output, {"metrics.json": json.dumps(metrics, indent=2).encode()})
        facts = {"data": "scikit-learn digits", "unit": unit, "threshold": threshold, "seconds": seconds}
        record.finish("talon demo: handwritten digits", facts, config.to_dict(), scores)
    _tell(scores, output, seconds)


def _tell(scores: dict[str, Any], output: Path, seconds: float) -> None:
    strict, found = scores["strict"], scores["categories"]
    choices.out.print(
        f"strict accuracy {strict['all']:.1%} (known digits {strict['old']:.1%}, new digits {strict['new']:.1%}); "
        f"{found['found']} categories for {found['true']} digits; {seconds:.0f} s",
        highlight=False,
        soft_wrap=True,
    )
    choices.out.print(f"look at {output / 'report.html'}", markup=False, highlight=False)
    commands = ("fit KNOWN -o MODEL", "discover INCOMING -m MODEL -o OUT", "serve -m MODEL --stream STREAM   (a page)")
    for line in ("your own photos:", *(f"  talon {command}" for command in commands)):
        choices.out.print(line, markup=False, highlight=False)
