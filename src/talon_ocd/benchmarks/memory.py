"""Resident memory (room: benchmarks), measured in a process of its own so that nothing else is counted."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn import functional as F

from talon_ocd.benchmarks.decisions import queries
from talon_ocd.benchmarks.result import Result, Target
from talon_ocd.benchmarks.sizes import Sizes
from talon_ocd.config import OnlineConfig
from talon_ocd.memory import PrototypeMemory
from talon_ocd.online import FeatureStream
from talon_ocd.progress import SILENT, Progress

GROWTH = Target("<=", 2.2)
STEADY = Target("<=", 16.0)
"""MB between the second and the last fifth of a long stream (medians): nothing but the allocator's noise."""
MB = 1e6
UNKNOWN = "this system doesn't say how much memory is resident"
CHUNK = 8192


def measure(sizes: Sizes, progress: Progress = SILENT) -> Iterator[Result]:
    """Measure a memory of many prototypes and a stream of many features."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
        apart.submit(torch.set_num_threads, torch.get_num_threads()).result()
        with progress.task(f"Memory, {sizes.stored} prototypes", sizes.stored, "prototypes") as task:
            facts = apart.submit(stored, sizes.stored, sizes.feature_size, sizes.batch).result()
            task.advance(sizes.stored)
        growth = facts["peak_growth_bytes"]
        value = None if growth is None else growth / facts["prototype_bytes"]
        note = "of the prototypes' bytes" if value is not None else UNKNOWN
        yield Result(f"memory/{sizes.stored // 1000}k/growth", value, "x resident", GROWTH, note, facts)
        with progress.task(f"Memory, {sizes.streamed} features", sizes.streamed, "features") as task:
            facts = apart.submit(streamed, sizes.streamed, sizes.streamed_size, sizes.streamed_classes).result()
            task.advance(sizes.streamed)
    growth = facts["growth_bytes"]
    value = None if growth is None else growth / MB
    note = f"in {sizes.streamed:,} features" if value is not None else UNKNOWN
    yield Result("memory/long-stream/growth", value, "MB", STEADY, note, facts)


def stored(number: int, size: int, batch: int) -> dict[str, Any]:
    """Append ``number`` prototypes batch by batch, answer some queries, and return how far memory rose."""
    config = OnlineConfig(threshold=0.7, adapt=("prototypes",), adapt_every=batch)
    generator = torch.Generator().manual_seed(0)
    small = PrototypeMemory(F.normalize(torch.randn(batch, size, generator=generator), dim=1))
    _answer(small, config)  # libraries allocate their own buffers at the first use
    before = resident()
    memory = small.copy()
    while memory.size < number:
        rows = min(batch, number - memory.size)
        memory.append(F.normalize(torch.randn(rows, size, generator=generator), dim=1))
    after, bytes_needed = resident(), 4 * memory.size * size
    _answer(memory, config)
    peak = highest()
    return {
        "prototypes": number,
        "prototype_bytes": bytes_needed,
        "resident_before": before,
        "resident_after": after,
        "growth_after_bytes": None if before is None or after is None else after - before,
        "peak_growth_bytes": None if before is None or peak is None else peak - before,
    }


def _answer(memory: PrototypeMemory, config: OnlineConfig, batches: int = 3) -> None:
    stream = FeatureStream(memory, config)
    for seed in range(batches):
        stream.place(queries(memory, config.adapt_every, seed))
        stream.adapt()


def streamed(number: int, size: int, classes: int) -> dict[str, Any]:
    """Answer ``number`` clustered features, half of their classes unknown, and return what memory did."""
    torch.set_num_threads(1)  # the products are small: on a busy machine threads would wait for each other
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(classes, size, generator=generator), dim=1)
    stream = FeatureStream(PrototypeMemory(centres[: classes // 2]), OnlineConfig(threshold=0.7, adapt=("prototypes",)))
    start, marks = resident(), list[int]()
    answered, seconds = 0, 0.0
    while answered < number:
        rows = min(CHUNK, number - answered)
        place = torch.randint(classes, (rows,), generator=generator)
        features = centres[place] + torch.randn(rows, size, generator=generator) * (0.4 / size**0.5)
        started = time.perf_counter()
        stream.observe_many(features)
        seconds += time.perf_counter() - started
        answered += rows
        marks.append(resident() or 0)
    fifth = max(len(marks) // 5, 1)
    settled, end = median(marks[fifth : 2 * fifth] or marks), median(marks[-fifth:])
    return {
        "features": number,
        "resident_start": start,
        "resident_settled": settled,
        "resident_end": end,
        "resident_most": max(marks),
        "growth_bytes": None if start is None else end - settled,
        "categories": stream.memory.size,
        "known": stream.memory.known,
        "features_per_second": number / seconds,
    }


def resident() -> int | None:
    """Return the bytes of this process that are in memory now; ``None`` where the system doesn't say."""
    now = _status("VmRSS")
    return now if now is not None else highest()


def highest() -> int | None:
    """Return the most bytes that were ever in memory."""
    peak = _status("VmHWM")
    if peak is not None or sys.platform == "win32":
        return peak
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _status(field: str) -> int | None:
    """Read a field of Linux's description of this process."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(found[0]) * 1024 if found else None
