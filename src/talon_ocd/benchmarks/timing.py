"""Medians of interleaved repeats (room: benchmarks): A B C A B C ..., so that noise hits all alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from talon_ocd.progress import SILENT_TASK, Task

Contender = Callable[[], Callable[[], object]]
"""Prepares one repeat, and returns what is timed."""
FEWEST = 3
"""Repeats that are made whatever they cost."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one contender, one for each repeat.

    ``cpu`` are the seconds that processors worked on it: on a busy machine they vary less than those of the clock.
    """

    seconds: tuple[float, ...]
    cpu: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        """The middle one."""
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Distance from the smallest to the largest, as a share of the median."""
        return (max(self.seconds) - min(self.seconds)) / self.median


def interleaved(
    contenders: Mapping[str, Contender], repeats: int, seconds: float = float("inf"), task: Task = SILENT_TASK
) -> dict[str, Timing]:
    """Time the contenders in turns; no new turn starts after ``seconds``, once there were a few.

    >>> sorted(interleaved({"a": lambda: int, "b": lambda: str}, repeats=3))
    ['a', 'b']
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    ends = time.perf_counter() + seconds
    with no_collector():
        for turn in range(repeats):
            if turn >= FEWEST and time.perf_counter() > ends:
                break
            for name, contender in contenders.items():
                found[name].append(timed(contender))
                task.advance()
    return {name: collected(times) for name, times in found.items()}


def collected(times: Sequence[tuple[float, float]]) -> Timing:
    """Turn pairs of seconds (clock, processors) into a timing."""
    clock, cpu = zip(*times, strict=True)
    return Timing(clock, cpu)


@contextmanager
def no_collector() -> Iterator[None]:
    """Collect garbage before the measurement, not in it."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def timed(contender: Contender) -> tuple[float, float]:
    """Return the seconds of one repeat: by the clock, and of the processors."""
    work = contender()
    started, worked = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - worked


def ratio(above: Timing, below: Timing) -> float:
    """Return the ratio of two medians."""
    return above.median / below.median


def details(timings: Mapping[str, Timing], above: str, below: str) -> dict[str, Any]:
    """Return what a reader needs to judge the ratio ``above`` / ``below``: medians, spreads, ratios turn by turn."""
    turns = [a / b for a, b in zip(timings[above].seconds, timings[below].seconds, strict=True)]
    facts: dict[str, Any] = {
        "repeats": len(turns),
        "median_seconds": {name: _short(timing.median) for name, timing in timings.items()},
        "spread": {name: _short(timing.spread) for name, timing in timings.items()},
        "ratio_by_turn": {
            "smallest": _short(min(turns)),
            "median": _short(median(turns)),
            "largest": _short(max(turns)),
        },
    }
    if timings[above].cpu and timings[below].cpu:
        facts["cpu_ratio"] = _short(median(timings[above].cpu) / median(timings[below].cpu))
    return facts


def _short(value: float) -> float:
    return float(f"{value:.4g}")
