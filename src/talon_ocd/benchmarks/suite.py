"""Runs the groups and says what machine they ran on (room: benchmarks)."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from talon_ocd.benchmarks import decisions, memory, rules, stream, training
from talon_ocd.benchmarks.result import Result
from talon_ocd.benchmarks.sizes import Sizes
from talon_ocd.errors import ConfigError, nearest
from talon_ocd.progress import SILENT, Progress

GROUPS: dict[str, Callable[[Sizes, Progress], Iterator[Result]]] = {
    "stream": stream.measure,
    "decisions": decisions.measure,
    "rules": rules.measure,
    "training": training.measure,
    "memory": memory.measure,
}


def run(sizes: Sizes, only: Sequence[str] = (), progress: Progress = SILENT) -> Iterator[Result]:
    """Measure the groups ``only`` (none: all) one after another."""
    for name in only:
        if name not in GROUPS:
            known = ", ".join(GROUPS)
            raise ConfigError(f"--only {name!r} is no group of benchmarks; use {known}.{nearest(name, GROUPS)}")
    for name, measure in GROUPS.items():
        if not only or name in only:
            yield from measure(sizes, progress)


def machine() -> dict[str, Any]:
    """Return what the numbers depend on, without the machine's name."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": _version("transformers"),
    }


def load() -> list[float] | None:
    """Return the load averages (1, 5, 15 minutes): above the number of cores, others were at work too."""
    return [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
