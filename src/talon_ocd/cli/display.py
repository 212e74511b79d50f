"""What the command line shows: bars with rate and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.progress import Task as BarTask

from talon_ocd.progress import SILENT, Progress, Task

LINE_EVERY = 10.0
"""Seconds between two plain lines of one piece of work."""


def progress_for(console: Console, quiet: bool = False) -> Progress:
    """Return bars for a terminal, plain lines for anything else, nothing when quiet."""
    if quiet:
        return SILENT
    return BarProgress(console) if console.is_terminal else LineProgress(console)


class RateColumn(TextColumn):
    """Units a second."""

    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: BarTask) -> str:  # type: ignore[override]
        """Return the rate as text."""
        speed = task.finished_speed or task.speed
        return "" if speed is None else f"{speed:.1f} {task.fields['unit']}/s"


class BarProgress:
    """Bars on a terminal; finished ones leave a line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Bars | None = None
        self._open = 0

    @contextmanager
    def task(self, name: str, total: int | None = None, unit: str = "images") -> Iterator[Task]:
        """Show a bar for the length of the work."""
        if self._bars is None:
            self._bars = Bars(
                TextColumn("{task.description}"), BarColumn(bar_width=30), MofNCompleteColumn(), RateColumn(),
                TimeRemainingColumn(), TextColumn("{task.fields[facts]}"), console=self._console,
            )  # fmt: skip
            self._bars.start()
        self._open += 1
        bars = self._bars
        identity = bars.add_task(name, total=total, unit=unit, facts="")
        try:
            yield _BarTask(bars, identity)
        finally:
            bars.stop_task(identity)
            self._open -= 1
            if self._open == 0:
                bars.stop()
                self._bars = None

    def note(self, message: str) -> None:
        """Print a remark above the bars."""
        self._console.print(f"note: {message}", markup=False, highlight=False)


class _BarTask:
    def __init__(self, bars: Bars, identity: TaskID) -> None:
        self._bars, self._identity = bars, identity

    def advance(self, amount: int = 1, **facts: float | str) -> None:
        if facts:
            self._bars.update(self._identity, advance=amount, facts=facts_text(facts))
        else:
            self._bars.update(self._identity, advance=amount)


class LineProgress:
    """Plain lines, at most one every few seconds and one at the end: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def task(self, name: str, total: int | None = None, unit: str = "images") -> Iterator[Task]:
        """Print how the work goes."""
        line = _LineTask(self._console, name, total, unit)
        yield line
        line.close()

    def note(self, message: str) -> None:
        """Print a remark."""
        self._console.print(f"note: {message}", markup=False, highlight=False, soft_wrap=True)


class _LineTask:
    def __init__(self, console: Console, name: str, total: int | None, unit: str) -> None:
        self._console, self._name, self._total, self._unit = console, name, total, unit
        self._started = self._printed = time.monotonic()
        self._done = 0
        self._facts = ""

    def advance(self, amount: int = 1, **facts: float | str) -> None:
        self._done += amount
        self._facts = facts_text(facts) or self._facts
        if time.monotonic() - self._printed >= LINE_EVERY:
            self._print()

    def close(self) -> None:
        self._print(last=True)

    def _print(self, last: bool = False) -> None:
        self._printed = time.monotonic()
        seconds = self._printed - self._started
        rate = self._done / seconds if seconds > 0 else 0.0
        of = "" if self._total is None else f"/{self._total}"
        left = ""
        if last:
            left = f", {seconds:.1f} s"
        elif self._total is not None and rate > 0:
            left = f", {(self._total - self._done) / rate:.0f} s left"
        line = f"{self._name}: {self._done}{of} {self._unit}, {rate:.1f}/s{left} {self._facts}"
        self._console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)


def facts_text(facts: dict[str, float | str]) -> str:
    """Return facts as ``loss 1.23  categories 7``.

    >>> facts_text({"loss": 1.23456, "categories": 7})
    'loss 1.235  categories 7'
    """
    return "  ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in facts.items()
    )
