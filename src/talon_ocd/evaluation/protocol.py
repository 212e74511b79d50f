"""The protocol of the field: split, fit, stream, score; mean and spread over seeds (layer: evaluation; section 6)."""

from __future__ import annotations

import copy
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from talon_ocd import __version__
from talon_ocd.backbones import Backbone
from talon_ocd.config import TalonConfig
from talon_ocd.evaluation.datasets import Dataset
from talon_ocd.evaluation.splits import SamplingRule, Split, split
from talon_ocd.images import ImageItem, Skipped
from talon_ocd.metrics import category_counts, fragmentation, greedy_accuracy, strict_accuracy
from talon_ocd.offline import TrunkCache, TrunkOutputs
from talon_ocd.online import Decision, DiscoveryStream
from talon_ocd.progress import SILENT, Progress
from talon_ocd.talon import Talon

STREAMING = "Streaming"
"""What the progress calls the stream."""
OnDecision = Callable[[Decision, ImageItem, DiscoveryStream], None]


@dataclass(frozen=True)
class Run:
    """One seed: the fitted model, what it answered, and the scores as plain data."""

    talon: Talon
    split: Split
    decisions: list[Decision]
    truth: list[str]
    scores: dict[str, Any]
    skipped: list[Skipped]
    """Images of the data set that could not be used."""


def run_protocol(
    dataset: Dataset,
    backbone: Backbone,
    config: TalonConfig,
    seed: int,
    cache: TrunkCache,
    progress: Progress = SILENT,
    rule: SamplingRule = "gcd",
    on_decision: OnDecision = lambda decision, item, stream: None,
) -> Run:
    """Run one seed: it draws the labelled half, the training, the rehearsal and the order of the stream."""
    outputs = cache.outputs(dataset.items, 0, progress)
    items = [dataset.items[i] for i in outputs.kept]
    parts = split(items, dataset.known, seed, rule)
    talon = Talon(copy.deepcopy(backbone), replace(config, seed=seed))
    started = time.perf_counter()
    talon.fit([items[i] for i in parts.labelled], cache=cache, progress=progress)
    fitted = time.perf_counter()
    decisions = _stream(talon, items, outputs, parts.stream, progress, on_decision)
    timings = {"fit_seconds": fitted - started, "stream_seconds": time.perf_counter() - fitted}
    truth = [str(items[i].label) for i in parts.stream]
    scores = {"seed": seed, **score(truth, decisions, dataset.known)}
    scores["categories"]["memory"] = len(talon.names) + sum(decision.verdict == "new" for decision in decisions)
    scores["threshold"] = talon.threshold
    scores["epochs"] = talon.report["training"]["epochs"]  # 0 where rehearsals kept the pre-trained features
    scores["sizes"] = _sizes(parts, truth, dataset, len(dataset.items) - len(items))
    scores["timings"] = timings
    scores["angles"] = {when: talon.report[f"angles_{when}"] for when in ("before", "after")}
    if "calibration" in talon.report:
        scores["timings"]["rehearsal_seconds"] = talon.report["calibration"]["seconds"]
    return Run(talon, parts, decisions, truth, scores, [*dataset.skipped, *outputs.skipped])


def score(truth: Sequence[str], decisions: Sequence[Decision], known: Sequence[str]) -> dict[str, Any]:
    """Return both protocols, the number of categories and the fragmentation of answers with known truth."""
    ids = np.array([decision.category for decision in decisions], dtype=np.int64)
    labels = np.array(truth)
    return {
        "strict": asdict(strict_accuracy(labels, ids, known)),
        "greedy": asdict(greedy_accuracy(labels, ids, known)),
        "categories": asdict(category_counts(labels, ids)),
        "fragmentation": asdict(fragmentation(labels, ids)),
    }


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and sample standard deviation over runs, in the shape of a run.

    >>> summarise([{"strict": {"all": 0.5}}, {"strict": {"all": 0.7}}])["mean"]
    {'strict': {'all': 0.6}}
    """
    return {
        "mean": _reduce(runs, lambda values: float(np.round(np.mean(values), 10))),
        "std": _reduce(runs, lambda values: float(np.std(values, ddof=1)) if len(values) > 1 else 0.0),
    }


def results(
    dataset: Dataset,
    backbone: Backbone,
    config: TalonConfig,
    runs: Sequence[Run],
    command: str,
    commit: str | None,
) -> dict[str, Any]:
    """Return everything that a reader of the figures needs, as plain data: the content of ``results.json``."""
    scores = [run.scores for run in runs]
    return {
        "dataset": {"name": dataset.name, "images": len(dataset.items), "known": list(dataset.known)},
        "backbone": {"name": backbone.name, "preprocessing": backbone.preprocessing.to_dict()},
        "preset": config.preset,
        "seeds": [run["seed"] for run in scores],
        "runs": scores,
        **summarise(scores),
        "units": "accuracies are fractions between 0 and 1; std is the sample standard deviation over runs",
        "config": config.to_dict(),
        "command": command,
        "commit": commit,
        "versions": {
            "talon-ocd": __version__, "torch": str(torch.__version__), "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }  # fmt: skip


def _stream(
    talon: Talon,
    items: Sequence[ImageItem],
    outputs: TrunkOutputs,
    order: npt.NDArray[np.int64],
    progress: Progress,
    on_decision: OnDecision,
) -> list[Decision]:
    stream, every = talon.stream(), talon.config.online.adapt_every
    decisions: list[Decision] = []
    with progress.task(STREAMING, len(order)) as task:
        for start in range(0, len(order), every):
            part = order[start : start + every]
            answers = stream.observe_hidden(outputs.take(torch.from_numpy(part), 0), [items[i].source for i in part])
            for decision, i in zip(answers, part, strict=True):
                on_decision(decision, items[i], stream)
            decisions += answers
            task.advance(len(part), categories=stream.memory.size)
    stream.flush()
    return decisions


def _sizes(parts: Split, truth: Sequence[str], dataset: Dataset, skipped: int) -> dict[str, float]:
    known = set(dataset.known)
    old = sum(label in known for label in truth)
    return {
        "labelled": len(parts.labelled),
        "stream": len(truth),
        "stream_old": old,
        "old_share": old / len(truth) if truth else 0.0,
        "known_classes": len(known),
        "skipped": skipped + len(dataset.skipped),
    }


def _reduce(runs: Sequence[Any], function: Callable[[list[float]], float]) -> Any:
    first = runs[0]
    if isinstance(first, dict):
        kept = {name: _reduce([run[name] for run in runs], function) for name in first if name != "seed"}
        return {name: value for name, value in kept.items() if value is not None}
    if isinstance(first, int | float) and not isinstance(first, bool):
        return function([float(run) for run in runs])
    return None


def default_cache_directory() -> Path:
    """Return where trunk outputs are kept between runs: ``$TALON_CACHE``, or the user's cache folder."""
    if chosen := os.environ.get("TALON_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "talon-ocd"
