"""How long does learning hold answers up? No longer than one step of the head, and never for a snapshot.

    python benchmarks/stops.py -o benchmarks/results/stops.json

A stream with a folder answers images (embedded digits through lite0, both updates of TALON, a snapshot at every other
adaptation): what a batch that ends with an adaptation takes longer than one that does not, beside the step alone.
Then the evidence rule with many made-up categories: its second thoughts beside the same step.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from months import World

from talon_ocd import Talon, TalonConfig
from talon_ocd.cli import choices
from talon_ocd.durable import stream as durable_stream
from talon_ocd.embeddings import feature_stream
from talon_ocd.images.digits import digits
from talon_ocd.online import FeatureStream

KNOWN = ("0", "1", "2", "3", "4")
HALF = 32
"""Images of a batch: half of what comes between two adaptations."""


FINER = 6.0
"""Nats: made-up clusters are less clear than real ones."""


class Stopwatch:
    """Collects how long calls of a function take."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.seconds: list[float] = []
        self._function = function

    def __call__(self, *words: Any, **named: Any) -> Any:
        """Call it."""
        began = time.perf_counter()
        result = self._function(*words, **named)
        self.seconds.append(time.perf_counter() - began)
        return result


def main() -> None:
    """Measure both, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adaptations", type=int, default=40)
    parser.add_argument("--categories", type=int, nargs="+", default=[200, 2_000, 10_000])
    parser.add_argument("--output", "-o", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        rows = [of_images(Path(scratch) / str(guard), chosen.adaptations, guard) for guard in (False, True)]
    step = rows[0]["head_step_median_ms"]  # forward, backward, update; with a guard the forward pass is made before
    for row in rows:
        row["held_up_median_in_head_steps"] = round(row["held_up_median_ms"] / step, 2)
    rows += [of_second_thoughts(categories, step) for categories in chosen.categories]
    facts = {"command": shlex.join(["python", *sys.argv]), "commit": choices.commit(), "threads": 1, "rows": rows}
    sys.stdout.write(json.dumps(facts, indent=1) + "\n")
    if chosen.output:
        chosen.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def of_images(folder: Path, adaptations: int, guard: bool) -> dict[str, Any]:
    """Return how long batches of images take, with and without what is learned after them."""
    durable_stream.SNAPSHOT_EVERY = 4 * HALF
    changes = {"epochs": 0, "views": 0, "threshold": 0.6, "adapt": "prototypes,encoder", "guard.enabled": guard}
    config = TalonConfig.from_preset("official", "efficientnet-lite0").override(**changes)
    talon = Talon("efficientnet-lite0", config)
    items = digits()
    talon.fit([item for item in items if item.label in KNOWN][:100])
    backbone = talon.backbone
    canvases = [backbone.preprocessing.canvas(item.load()) for item in items[-4 * HALF :]]
    with torch.no_grad():
        hidden = backbone.trunk(backbone.preprocessing.pixels(canvases))
    plain, learning = [], []
    with talon.stream(folder) as stream:
        step = Stopwatch(stream.adapter.step)
        stream.adapter.step = step  # type: ignore[method-assign]
        for number in range(2 * adaptations):
            part = slice(number % 4 * HALF, number % 4 * HALF + HALF)
            began = time.perf_counter()
            stream.observe_hidden(hidden[part], [f"{number}-{at}" for at in range(HALF)])
            (learning if number % 2 else plain).append(time.perf_counter() - began)
        stream.wait_until_saved()
        snapshots = len(stream.snapshots.all())
    extra = np.array(learning) - np.median(plain)
    return {
        "what": f"{HALF} images, every second time with an adaptation, every fourth time with a snapshot",
        "guard": guard,
        "snapshots_kept": snapshots,
        "plain_median_ms": ms(np.median(plain)),
        "head_step_median_ms": ms(np.median(step.seconds)),
        "head_step_longest_ms": ms(max(step.seconds)),
        "held_up_median_ms": ms(np.median(extra)),
        "held_up_longest_ms": ms(extra.max()),
    }


def of_second_thoughts(categories: int, head_step: float) -> dict[str, Any]:
    """Return how long the evidence rule's second thoughts take beside a head step, in milliseconds."""
    world = World(256, 100, seed=0)
    labels = np.repeat(np.arange(100), 10)
    stream: FeatureStream = feature_stream(world.draw(labels), labels)
    stream.rule.offset += FINER
    while len(world.weights) < categories:
        world.grow(1.0)
    stream.observe_many(world.draw(np.arange(100, categories)))
    for _ in range(8):
        stream.observe_many(world.draw(world.random.integers(0, categories, 1024)))
    think = Stopwatch(stream.rule.think_again)
    stream.rule.think_again = think  # type: ignore[method-assign]
    stream.observe_many(world.draw(world.random.integers(0, categories, 2048)))
    return {
        "what": "second thoughts of the evidence rule",
        "categories": stream.memory.size,
        "median_ms": ms(np.median(think.seconds)),
        "longest_ms": ms(max(think.seconds)),
        "median_in_head_steps": round(float(np.median(think.seconds)) * 1000 / head_step, 2),
    }


def ms(seconds: float) -> float:
    """Return milliseconds."""
    return round(float(seconds) * 1000, 1)


if __name__ == "__main__":
    main()
