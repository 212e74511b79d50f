"""Months of a stream in minutes: does memory, disk or latency drift over a million answers?

    python benchmarks/months.py --answers 1000000 -o benchmarks/results/months.json

Features are made up (clusters on a sphere, new ones arriving all the time, most of them small), because a million
images would take hours; everything after the encoder is real: evidence rule, second thoughts, journal, snapshots,
retirement, tidying. Features have no pictures, so there are no thumbnails.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from talon_ocd.backbones import Vectors
from talon_ocd.cli import choices
from talon_ocd.durable import DurableStream, Identity, Keep, settings_of
from talon_ocd.embeddings import feature_stream
from talon_ocd.images import ImageItem
from talon_ocd.online import Bounds

BATCH = 64
SPREAD = 0.06
"""Standard deviation of members around their centre, in each of the dimensions."""


class World:
    """Clusters, known ones first; the chance of a new one falls as in a Chinese restaurant."""

    def __init__(self, size: int, known: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.size, self.known = size, known
        self.centres = np.empty((0, size))
        self.weights: list[float] = []
        for _ in range(known):
            self.grow(2.0)

    def grow(self, weight: float) -> None:
        """Add a cluster."""
        centre = self.random.normal(size=(1, self.size))
        self.centres = np.concatenate([self.centres, centre / np.linalg.norm(centre)])
        self.weights.append(weight)

    def draw(self, classes: np.ndarray) -> Tensor:
        """Return unit members ``(N, D)`` of classes ``(N,)``."""
        raw = self.centres[classes] + SPREAD * self.random.normal(size=(len(classes), self.size))
        return torch.from_numpy((raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32))

    def arrive(self, number: int) -> Tensor:
        """Return the next features ``(N, D)``."""
        if self.random.random() < 0.5:
            self.grow(float(self.random.pareto(1.2)) + 0.05)
        chance = np.array(self.weights)
        return self.draw(self.random.choice(len(chance), number, p=chance / chance.sum()))


def main() -> None:
    """Run, and print a line for every tenth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=256, help="dimensions of the features")
    parser.add_argument("--most-categories", type=int, default=2_000)
    parser.add_argument("--retire-after", type=int, default=100_000)
    parser.add_argument("--keep", type=int, default=50_000, help="newest features, thumbnails and originals kept")
    parser.add_argument("--finer", type=float, default=6.0, help="nats: made-up clusters are less clear than real ones")
    parser.add_argument("--output", "-o", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = run(chosen, Path(scratch) / "stream")
    if chosen.output:
        facts = {"command": shlex.join(["python", *sys.argv]), "commit": choices.commit(), "rows": rows}
        chosen.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def run(chosen: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Answer everything; returns a row for every tenth."""
    world = World(chosen.size, 20, seed=0)
    labels = np.repeat(np.arange(20), 20)
    begun = feature_stream(world.draw(labels), labels)
    bounds = Bounds(most_categories=chosen.most_categories, retire_after=chosen.retire_after)
    rule = begun.rule
    if rule.name == "evidence":
        rule.offset += chosen.finer
    settings = settings_of(rule.threshold, rule.name, 0.0, begun.config.adapt, bounds)
    names = tuple(str(number) for number in range(20))
    parts = {"backbone": Vectors(size=chosen.size), "memory": begun.memory, "config": begun.config, "names": names}
    if rule.name == "evidence":
        parts["rule"] = rule
    stream = DurableStream(folder, Identity("made up", "", names, settings), bounds=bounds, **parts)
    stream.keep = Keep(chosen.keep, chosen.keep, chosen.keep)
    canvas = torch.zeros(3, 64, 64, dtype=torch.uint8)
    rows: list[dict[str, Any]] = []
    tenth = max(chosen.answers // 10, BATCH)
    while stream.answered < chosen.answers:
        times = []
        until = min(stream.answered + tenth, chosen.answers)
        began = time.perf_counter()
        while stream.answered < until:
            features = world.arrive(BATCH)
            first = stream.answered
            items = [ImageItem(f"made-up/{first + at}", None, f"made-up/{first + at}", b"") for at in range(BATCH)]
            at = time.perf_counter()
            stream.observe_loaded(items, [canvas] * BATCH, hidden=features)
            times.append(time.perf_counter() - at)
        rows.append(row_of(stream, world, times, time.perf_counter() - began))
        sys.stdout.write(json.dumps(rows[-1]) + "\n")
        sys.stdout.flush()
    stream.close()
    return rows


def row_of(stream: DurableStream, world: World, times: list[float], seconds: float) -> dict[str, Any]:
    """Return what is measured at one moment."""
    sizes = {name: 0 for name in ("stream", "pictures", "snapshots")}
    for file in stream.folder.rglob("*"):
        if file.is_file():
            part = file.relative_to(stream.folder).parts[0].split(".")[0]
            sizes[part] = sizes.get(part, 0) + file.stat().st_size
    return {
        "answered": stream.answered,
        "clusters": len(world.weights),
        "categories_ever": stream.memory.next_id,
        "categories_in_memory": stream.memory.size,
        "answers_a_second": round(len(times) * BATCH / seconds),
        "batch_ms_median": round(1e3 * float(np.median(times)), 2),
        "batch_ms_p99": round(1e3 * float(np.quantile(times, 0.99)), 2),
        "resident_mb": round(_resident() / 1e6),
        "most_resident_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
        "disk_mb": {name: round(size / 1e6, 1) for name, size in sizes.items()},
    }


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
