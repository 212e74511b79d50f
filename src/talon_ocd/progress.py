"""How long work reports itself: a small protocol that knows no terminal.

Library code takes a ``Progress`` and calls it; the command line passes one that draws bars on a terminal and prints
plain lines elsewhere (``cli/display.py``). The default, ``SILENT``, does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Task(Protocol):
    """One piece of work that is under way."""

    def advance(self, amount: int = 1, **facts: float | str) -> None:
        """Say that ``amount`` more units are done; ``facts`` (a loss, a count) are shown beside the rate."""


class Progress(Protocol):
    """Something that can show the progress of named pieces of work."""

    def task(self, name: str, total: int | None = None, unit: str = "images") -> AbstractContextManager[Task]:
        """Open a piece of work of ``total`` units (``None``: unknown)."""

    def note(self, message: str) -> None:
        """Show one line that a person should read (a warning, a remark)."""


class SilentTask:
    """A task that nobody watches."""

    def advance(self, amount: int = 1, **facts: float | str) -> None:
        """Ignore the news."""


class Silent:
    """A progress that nobody watches."""

    @contextmanager
    def task(self, name: str, total: int | None = None, unit: str = "images") -> Iterator[Task]:
        """Open a piece of work that reports to nobody."""
        yield SILENT_TASK

    def note(self, message: str) -> None:
        """Ignore the remark."""


class StageClock:
    """Adds up the time that stages of some work take.

    Attributes:
        seconds: time spent by stage.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Count the time spent inside towards a stage."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - started


SILENT_TASK = SilentTask()
SILENT: Progress = Silent()
