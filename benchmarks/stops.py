"""How long does learning hold answers up? No longer than one step of the head, and never for a snapshot.

    python benchmarks/stops.py -o benchmarks/results/stops.json

A stream with a folder answers images (embedded digits through lite0, both updates of TALON, a snapshot at every other
adaptation): what a batch that ends with an adaptation takes longer than the batch before, which does not. Then the
evidence rule with many made-up categories: its second thoughts. Last, both rules with a guard and many made-up
categories in memory: all that an adaptation does, by whose turn it is. Machines have moods: right before each of these,
a copy of the same head takes one step on as many images, and every stop is divided by the step beside it.
"""

from __future__ import annotations

import argparse
import copy
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from months import World
from torch import Tensor

from talon_ocd import Talon, TalonConfig
from talon_ocd.cli import choices
from talon_ocd.durable import DurableStream
from talon_ocd.durable import stream as durable_stream
from talon_ocd.embeddings import feature_stream
from talon_ocd.images.digits import digits
from talon_ocd.online import DiscoveryStream, EvidenceRule, FeatureStream
from talon_ocd.online.guard import QUICKLY_READ

KNOWN = ("0", "1", "2", "3", "4")
HALF = 32
"""Images of a batch: half of what comes between two adaptations."""
FINER = 6.0
"""Nats: made-up clusters are less clear than real ones."""
WAYS = {"no guard": False, "guard": True}
NEVER = 1e6
"""Nats that no category reaches: everything founds one."""
EVERY_STEP: dict[str, Any] = {"guard.enabled": True, "most_new": 1.0, "most_of_one": 1.0, "patience": 1000}
"""A guard that leaves no batch out, so that every turn is what it is called."""
RULES: dict[str, dict[str, Any]] = {
    "cosine": {"preset": "official", "threshold": 0.6},
    "evidence": {"preset": "default", "rounds": 1, "orders": 1, "try_untrained": False},
}


class HeadStep:
    """One step of a copy of a stream's head on the images between two adaptations: forward, backward and update."""

    def __init__(self, stream: DiscoveryStream, hidden: Tensor) -> None:
        self._adapter = copy.deepcopy(stream.adapter)
        self._start = self._adapter.state_dict()
        self._hidden, self._prototypes = hidden, stream.memory.prototypes.clone()
        self._slots = torch.arange(len(hidden)) % stream.memory.known

    def seconds(self) -> float:
        """Take it, always from the same place, and return how long that was."""
        self._adapter.load_state_dict(self._start)
        return seconds_of(self._adapter.step, self._hidden, self._slots, self._prototypes)


def main() -> None:
    """Measure all, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adaptations", type=int, default=60)
    parser.add_argument("--categories", type=int, nargs="+", default=[200, 2_000, 10_000])
    parser.add_argument("--crowds", type=int, nargs="+", default=[2_000, 10_000, 20_000], help="with a guard")
    parser.add_argument("--output", "-o", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    durable_stream.SNAPSHOT_EVERY = 4 * HALF
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, guarded in WAYS.items():
            talon, hidden = fitted("official", threshold=0.6, **{"guard.enabled": guarded})
            with talon.stream(Path(scratch) / name) as stream:
                head_step = HeadStep(stream, hidden[: 2 * HALF])
                rows += of_images(stream, hidden, head_step, chosen.adaptations)
    rows += [of_second_thoughts(categories, head_step) for categories in chosen.categories]
    rows.append(of_grouping_anew(200, head_step))
    for rule, changes in RULES.items():
        talon, hidden = fitted(**changes, **EVERY_STEP)
        for categories in chosen.crowds:
            rows += of_crowd(rule, crowded(talon, categories), hidden, chosen.adaptations)
    facts = {"command": shlex.join(["python", *sys.argv]), "commit": choices.commit(), "threads": 1, "rows": rows}
    sys.stdout.write(json.dumps(facts, indent=1) + "\n")
    if chosen.output:
        chosen.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def fitted(preset: str, **changes: Any) -> tuple[Talon, Tensor]:
    """Return a model, and trunk outputs of what it will be asked."""
    both = {"epochs": 0, "views": 0, "adapt": "prototypes,encoder"}
    config = TalonConfig.from_preset(preset, "efficientnet-lite0").override(**both, **changes)
    talon = Talon("efficientnet-lite0", config)
    items = digits()
    talon.fit([item for item in items if item.label in KNOWN][:150])
    preprocessing = talon.backbone.preprocessing
    canvases = [preprocessing.canvas(item.load()) for item in items[-4 * HALF :]]
    with torch.no_grad():
        return talon, talon.backbone.trunk(preprocessing.pixels(canvases))


def of_images(stream: DurableStream, hidden: Tensor, head_step: HeadStep, adaptations: int) -> list[dict[str, Any]]:
    """Return how long adaptations hold answers up: all of them, or those with a step and those with a look apart."""
    stops: dict[str, list[tuple[float, float]]] = {}
    for number in range(adaptations):
        first, second = hidden.split(HALF)[number % 2 * 2 :][:2]
        names = [f"{number}, {at}" for at in range(2 * HALF)]
        plain = seconds_of(stream.observe_hidden, first, names[:HALF])
        beside, kind = head_step.seconds(), _next(stream)
        learning = seconds_of(stream.observe_hidden, second, names[HALF:])
        stops.setdefault(kind, []).append((learning - plain, beside))
    stream.wait_until_saved()
    snapshots = {"snapshots_kept": len(stream.snapshots.all())}
    return [{"what": kind, **snapshots, **figures(measured)} for kind, measured in stops.items()]


def crowded(talon: Talon, categories: int) -> DiscoveryStream:
    """Return a stream in memory that has met so many made-up images, each of which founded a category."""
    stream, random = talon.stream(), torch.Generator().manual_seed(0)
    whole = categories // stream.config.adapt_every * stream.config.adapt_every
    made_up = torch.randn(whole, stream.memory.feature_size, generator=random)
    rule = stream.discovery.rule
    if isinstance(rule, EvidenceRule):
        usual, rule.offset = rule.offset, NEVER
        stream.discovery.observe_many(made_up)
        rule.offset = usual
    else:  # they are far from each other
        stream.discovery.observe_many(made_up)
    return stream


def of_crowd(rule: str, stream: DiscoveryStream, hidden: Tensor, adaptations: int) -> list[dict[str, Any]]:
    """Return how long adaptations with many categories in memory take, by whose turn it is."""
    facts = {"rule": rule, "categories": stream.memory.size}
    head_step, stops = HeadStep(stream, hidden[: 2 * HALF]), dict[str, list[tuple[float, float]]]()
    for number in range(adaptations):
        first, second = hidden.split(HALF)[number % 2 * 2 :][:2]
        stream.observe_hidden(first, [""] * HALF)
        beside, kind, before = head_step.seconds(), _next(stream), stream.clock.seconds.get("adapt", 0.0)
        stream.observe_hidden(second, [""] * HALF)
        stops.setdefault(kind, []).append((stream.clock.seconds["adapt"] - before, beside))
    return [{"what": kind, **facts, **figures(measured)} for kind, measured in stops.items()]


def _next(stream: DiscoveryStream) -> str:
    """Say what the next adaptation of a stream will do."""
    if stream.discovery.thinks_alone:
        return "second thoughts, and nothing else"
    if stream.guard is None:
        return "no guard: a step"
    if stream.guard.pause:
        return "guard: nothing, in a pause"
    seen, probe = stream.guard.state_dict().get("candidate.features"), len(stream.guard.probe)
    if seen is None:
        return "guard: a step aside"
    if len(seen) == probe:
        return "guard: the verdict"
    return f"guard: a look at {probe} images" + (", and the verdict" if stream.memory.size <= QUICKLY_READ else "")


def of_second_thoughts(categories: int, head_step: HeadStep) -> dict[str, Any]:
    """Return how long the evidence rule's second thoughts take."""
    world = World(256, 100, seed=0)
    labels = np.repeat(np.arange(100), 10)
    stream: FeatureStream = feature_stream(world.draw(labels), labels)
    rule = stream.rule
    assert isinstance(rule, EvidenceRule)
    rule.offset += FINER
    while len(world.weights) < categories:
        world.grow(1.0)
    stream.observe_many(world.draw(np.arange(100, categories)))
    for _ in range(8):
        stream.observe_many(world.draw(world.random.integers(0, categories, 1024)))
    measured: list[tuple[float, float]] = []
    think = rule.think_again

    def measured_thought(*words: Any, **named: Any) -> Any:
        beside, began = head_step.seconds(), time.perf_counter()
        result = think(*words, **named)
        if not words:  # those about the newest images are shorter
            measured.append((time.perf_counter() - began, beside))
        return result

    rule.think_again = measured_thought  # type: ignore[method-assign]
    stream.observe_many(world.draw(world.random.integers(0, categories, 4096)))
    return {"what": "second thoughts of the evidence rule", "categories": stream.memory.size, **figures(measured)}


def of_grouping_anew(categories: int, head_step: HeadStep) -> dict[str, Any]:
    """Return how long the evidence rule takes to group images anew, which it does at answers 256, 512, 1,024, ..."""
    world = World(256, 100, seed=0)
    labels = np.repeat(np.arange(100), 10)
    stream: FeatureStream = feature_stream(world.draw(labels), labels)
    assert isinstance(stream.rule, EvidenceRule)
    stream.rule.offset += FINER
    while len(world.weights) < categories:
        world.grow(1.0)
    stream.observe_many(world.draw(world.random.integers(0, categories, 2047)))  # the next one groups anew
    twins = [copy.deepcopy(stream.rule) for _ in range(8)]
    measured = [(seconds_of(twin.regroup), head_step.seconds()) for twin in twins]
    return {"what": "grouping anew", "categories": stream.memory.size, **figures(measured)}


def seconds_of(function: Callable[..., Any], *words: Any) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    function(*words)
    return time.perf_counter() - began


def figures(measured: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return what stops and the head steps beside them come to; ratios are of neighbours."""
    stops, steps = np.array(measured).T
    ratios = stops / steps
    return {
        "stops": len(measured),
        "held_up_median_ms": round(float(np.median(stops)) * 1000, 1),
        "held_up_longest_ms": round(float(stops.max()) * 1000, 1),
        "head_step_median_ms": round(float(np.median(steps)) * 1000, 1),
        "head_step_longest_ms": round(float(steps.max()) * 1000, 1),
        "in_head_steps_quartiles": [round(float(ratio), 2) for ratio in np.quantile(ratios, (0.25, 0.5, 0.75))],
    }


if __name__ == "__main__":
    main()
