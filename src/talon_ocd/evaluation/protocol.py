"""The protocol of the field: split, fit, stream, score (layer: evaluation; section 6).

An ``Experiment`` is one data set with one labelled half. Every method is given the same: trunk outputs of the labelled
images with their labels, then those of the stream without. Truth and file names stay here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from talon_ocd.backbones import Backbone
from talon_ocd.config import OfflineConfig
from talon_ocd.evaluation.datasets import Dataset
from talon_ocd.evaluation.splits import (
    Indices,
    SamplingRule,
    Scenario,
    StreamOrder,
    scenario_order,
    split,
    stream_order,
)
from talon_ocd.images import ImageItem, Skipped
from talon_ocd.methods import FrozenStream, Method, MethodStream, Recipe, Trained
from talon_ocd.metrics import category_counts, fragmentation, greedy_accuracy, strict_accuracy, strict_matches
from talon_ocd.offline import Labelled, TrunkCache
from talon_ocd.online import Assignment, Decision, SecondThoughts, decisions
from talon_ocd.progress import SILENT, Progress

STREAMING = "Streaming"
"""What the progress calls the stream."""
BATCH = 64
"""Images that a stream is handed at a time; the answers don't depend on it, but whole adaptation intervals are fast."""
POINTS = 20
"""Points of the curves along the stream."""
OnAnswers = Callable[[Assignment, Indices], None]
"""Told every batch of answers with the positions of its images among the items of the experiment."""


@dataclass(frozen=True)
class Answers:
    """What a stream answered: ``order`` ``(N,)`` are the positions of its images among the items."""

    assignment: Assignment
    order: Indices
    memory: int
    """Categories in memory at the end."""
    threshold: float
    seconds: dict[str, float]
    unit: str = "cosine"
    """Unit of similarities and threshold."""
    rethought: SecondThoughts | None = None
    """What the stream would answer differently at its end."""


@dataclass(frozen=True)
class Features:
    """What a method's streams decide on: one row for each image of the stream, in data set order."""

    values: Tensor
    seconds: float
    """Time that encoding them took."""


class Experiment:
    """One data set with one labelled half.

    Attributes:
        items: the images of the data set that can be used.
        labelled: what methods learn from.
        rest: positions of the stream's images among the items, in data set order.
        truth: the class of every item.
        skipped: images that can't be used.
    """

    def __init__(
        self,
        dataset: Dataset,
        backbone: Backbone,
        offline: OfflineConfig,
        seed: int,
        cache: TrunkCache,
        rule: SamplingRule = "gcd",
        progress: Progress = SILENT,
        virtual: Sequence[ImageItem] = (),
        most: int | None = None,
    ) -> None:
        self.dataset, self.backbone, self.seed = dataset, backbone, seed
        self._outputs = cache.outputs(dataset.items, 0, progress)
        self.items: list[ImageItem] = [dataset.items[i] for i in self._outputs.kept]
        parts = split(self.items, dataset.known, seed, rule, most)
        self.rest: Indices = parts.rest
        chosen = [self.items[i] for i in parts.labelled]
        self.labelled = Labelled.from_items(chosen, backbone, offline, cache, progress)
        if virtual:
            made = cache.outputs(virtual, self.labelled.outputs.views, progress)
            self.labelled = replace(self.labelled, virtual=made)
        self.truth = np.array([str(item.label) for item in self.items])
        self.skipped: list[Skipped] = [*dataset.skipped, *self._outputs.skipped]

    def fit(self, recipe: Recipe, progress: Progress = SILENT) -> Trained:
        """Train a recipe on the labelled half; its report says how long it took."""
        started = time.perf_counter()
        trained = recipe.fit(self.backbone, self.labelled, self.seed, progress)
        trained.report["fit_seconds"] = time.perf_counter() - started
        return trained

    def order(self, kind: StreamOrder | Scenario = "shuffled", number: int = 0) -> Indices:
        """Return the stream in one of its orders, or as a scenario has it."""
        if kind == "shuffled" or kind == "dataset":
            return stream_order(self.rest, kind, self.seed, number)
        return scenario_order(self.rest, self.truth[self.rest], self.dataset.known, kind, self.seed, number)

    def features(self, method: Method, trained: Trained) -> Features | None:
        """Return what a method's streams decide on: the same for all orders, so that it is computed once.

        There is none if the method's network learns from the stream.
        """
        stream = method.stream(trained)
        if not isinstance(stream, FrozenStream):
            return None
        parts = torch.from_numpy(self.rest).split(4 * BATCH)
        values = torch.cat([stream.encode(self._outputs.take(part)) for part in parts])
        return Features(values, stream.clock.seconds["encode"])

    def run(
        self,
        method: Method,
        trained: Trained,
        order: Indices,
        features: Features | None = None,
        progress: Progress = SILENT,
        on_answers: OnAnswers = lambda assignment, positions: None,
    ) -> Answers:
        """Stream images in ``order``; ``features`` are those of ``features``, computed once for all orders."""
        stream = method.stream(trained)
        parts: list[Assignment] = []
        started = time.perf_counter()
        with progress.task(STREAMING, len(order)) as task:
            for start in range(0, len(order), BATCH):
                positions = order[start : start + BATCH]
                parts.append(self._answer(stream, positions, features))
                on_answers(parts[-1], positions)
                task.advance(len(positions), categories=stream.size)
        stream.flush()
        seconds = {f"{stage}_seconds": spent for stage, spent in stream.clock.seconds.items()}
        seconds["stream_seconds"] = time.perf_counter() - started
        if features is not None:
            seconds["encode_seconds"] = features.seconds
            seconds["stream_seconds"] += features.seconds
        answers = Assignment.joined(parts)
        rethought = stream.second_thoughts()
        return Answers(answers, order, stream.size, stream.threshold, seconds, stream.unit, rethought)

    def _answer(self, stream: MethodStream, positions: Indices, features: Features | None) -> Assignment:
        if features is None:
            return stream.observe(self._outputs.take(torch.from_numpy(positions)))
        assert isinstance(stream, FrozenStream)
        with stream.clock("decide"):
            return stream.place(features.values[torch.from_numpy(np.searchsorted(self.rest, positions))])

    def score(self, answers: Answers) -> dict[str, Any]:
        """Return every figure of a stream's answers, as plain data."""
        truth, ids, known = self.truth[answers.order], answers.assignment.ids, self.dataset.known
        scores = score(truth, ids, known)
        scores["categories"]["memory"] = answers.memory
        old = np.isin(truth, known)
        scores["sizes"] = {
            "labelled": len(self.labelled),
            "stream": len(truth),
            "stream_old": int(old.sum()),
            "old_share": float(old.mean()) if len(old) else 0.0,
            "known_classes": len(known),
            "skipped": len(self.skipped),
        }
        sent = ids >= len(self.dataset.known)
        scores["sent_to_new"] = {
            name: float(sent[part].mean()) if part.any() else 0.0 for name, part in (("old", old), ("new", ~old))
        }
        scores["along"] = along(truth, ids, known)
        if answers.rethought is not None:
            scores["rethought"] = {**score(truth, rethought_ids(answers), known), "moved": len(answers.rethought.moves)}
        return scores

    def decisions(
        self, assignment: Assignment, positions: Indices, first: int, threshold: float, unit: str = "cosine"
    ) -> list[Decision]:
        """Turn answers into decisions with names and sources."""
        sources = [self.items[i].source for i in positions]
        return decisions(assignment, sources, first, self.labelled.names, threshold, unit)


def rethought_ids(answers: Answers) -> Indices:
    """Return the ids ``(N,)`` that a stream would give at its end to the images it remembers; others keep theirs."""
    ids: Indices = answers.assignment.ids.copy()
    for move in answers.rethought.moves if answers.rethought else ():
        ids[move.index] = move.now
    return ids


def score(truth: Any, ids: Any, known: Sequence[str]) -> dict[str, Any]:
    """Return both protocols, the number of categories and the fragmentation of ids ``(N,)`` with known truth."""
    return {
        "strict": asdict(strict_accuracy(truth, ids, known)),
        "greedy": asdict(greedy_accuracy(truth, ids, known)),
        "categories": asdict(category_counts(truth, ids)),
        "fragmentation": asdict(fragmentation(truth, ids)),
    }


def along(truth: Any, ids: Any, known: Sequence[str]) -> dict[str, list[float]]:
    """Return how accuracy went along the stream, under the matching of its end: of the first n answers, 20 times."""
    right, old = strict_matches(truth, ids, known), np.isin(truth, known)
    ends = np.unique(np.linspace(0, len(ids), POINTS + 1).astype(int)[1:])
    curves: dict[str, list[float]] = {"answered": ends.tolist(), "categories": []}
    for end in ends.tolist():
        curves["categories"].append(len(np.unique(ids[:end])))
    for name, part in (("all", np.ones_like(old)), ("old", old), ("new", ~old)):
        seen, hits = part.cumsum(), (right & part).cumsum()
        curves[f"strict_{name}"] = [float(hits[end - 1] / max(seen[end - 1], 1)) for end in ends.tolist()]
    return curves


def default_cache_directory() -> Path:
    """Return where trunk outputs are kept between runs: ``$TALON_CACHE``, or the user's cache folder."""
    if chosen := os.environ.get("TALON_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "talon-ocd"
