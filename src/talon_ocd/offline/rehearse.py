"""Rehearse discovery on the labelled set: hold known classes out, stream them, score (layer: offline).

Some known classes are held out of training altogether and play the part of new ones. A head trained on the rest meets
them, and images of its own classes that it was not trained on, as a stream; every candidate answers that stream. By
evidence only the second half of a stream counts: a real one has its beginning behind it soon. Nothing but the labelled
set is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from talon_ocd.config import CalibrationConfig, EvidenceConfig, TalonConfig
from talon_ocd.errors import DataError
from talon_ocd.memory import PrototypeMemory
from talon_ocd.metrics import strict_accuracy, strict_matches
from talon_ocd.offline.distributed import ALONE, Processes
from talon_ocd.offline.estimate import estimate, rescaled, unseen_residuals
from talon_ocd.offline.features import class_means
from talon_ocd.online import Evidence, EvidenceRule, FeatureStream
from talon_ocd.progress import SILENT, Progress

MOST_STREAMED = 4000
"""Images a rehearsal streams at most: more of them cost time and change nothing."""
MOST_TRAINED = 8000
"""Images a rehearsal trains on at most, as many of each class: rehearsing is bounded, however much is labelled."""
LEAST_TRAINED = 5
"""But so many of each class that has them, however many classes there are."""

Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
EncodeFold = Callable[[Indices, Indices], Tensor]
"""``(train, wanted) -> (len(wanted), D)`` unit features by an encoder that saw the labelled images ``train`` only."""


@dataclass(frozen=True)
class Rehearsal:
    """Which labelled images play which part in one rehearsal (indices into the labelled set)."""

    train: Indices
    stream: Indices


@dataclass(frozen=True)
class Rehearsed:
    """One rehearsal, encoded by a network that saw its training part only.

    Attributes:
        known: labels that the network was trained on.
        means: their class means ``(C', D)``.
        stream: unit features ``(N, D)``.
        truth: labels of the stream ``(N,)``.
        evidence: what the evidence rule makes of the training part, if it is the one that decides.
        residuals: how unseen images of the known classes lie around them ``(M, d)``, if evidence decides.
    """

    known: list[int]
    means: Tensor
    stream: Tensor
    truth: Tensor
    evidence: Evidence | None = None
    residuals: Floats | None = None


@dataclass(frozen=True)
class Trial:
    """What one candidate reached, as means over rounds and orders.

    By evidence, in the second half of its streams, and an image that founds a category never counts as right: it is by
    itself, which is most of what a short stream can tell about images that all found their own.
    """

    epochs: int
    """Of training; 0 is the pre-trained encoder."""
    threshold: float
    """A cosine, or the offset of the evidence rule."""
    strict_all: float
    strict_old: float
    strict_new: float
    found_ratio: float
    """Categories found over categories present, in the whole stream."""
    standard_error: float
    """Of ``strict_all`` over rounds and orders."""
    runs: tuple[float, ...] = ()
    """``strict_all`` of every round and order; those of all candidates are in the same order."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def rehearsals(labels: Tensor, config: CalibrationConfig, seed: int, trained: float = 0.5) -> Iterator[Rehearsal]:
    """Yield rounds that hold different classes out; labels are 0 .. C-1 ``(N,)``.

    ``trained`` is the share of the other classes' images that is trained on; the rest is streamed as well. What of that
    share is more than ``MOST_TRAINED`` is left out: in the stream, it would make known classes too common.
    """
    classes = np.unique(labels.numpy())
    if len(classes) < 2:
        raise DataError(f"rehearsal needs at least 2 known classes, got {len(classes)}; give a threshold as a number.")
    held = min(max(round(len(classes) * config.held_out), 1), len(classes) - 1)
    random = np.random.default_rng(seed)
    order = random.permutation(classes)
    for round_number in range(config.rounds):
        novel = np.roll(order, -round_number * held)[:held]
        is_novel = np.isin(labels.numpy(), novel)
        train, spent = list[int](), list[int]()
        known = np.setdiff1d(classes, novel)
        most = max(MOST_TRAINED // len(known), LEAST_TRAINED)
        for label in known:
            members = random.permutation(np.flatnonzero(labels.numpy() == label))
            share = members[: max(int(len(members) * trained), 1)].tolist()
            train += share[:most]
            spent += share
        rest = np.setdiff1d(np.arange(len(labels)), np.array(spent))
        stream = random.permutation(rest)[:MOST_STREAMED]
        if is_novel[stream].any():
            yield Rehearsal(np.sort(np.array(train, dtype=np.int64)), stream)


def encoded(fold: Rehearsal, labels: Tensor, encode_fold: EncodeFold, by_evidence: EvidenceConfig | None) -> Rehearsed:
    """Encode a rehearsal of labelled images with ``labels`` ``(N,)``, and estimate from it what evidence needs."""
    features = encode_fold(fold.train, np.concatenate([fold.train, fold.stream]))
    known, compact = labels[fold.train].unique(return_inverse=True)
    trained = features[: len(fold.train)]
    means = class_means(trained, compact, len(known))
    stream, truth = features[len(fold.train) :], labels[fold.stream]
    if by_evidence is None:
        return Rehearsed(known.tolist(), means, stream, truth)
    evidence = estimate(trained, compact, by_evidence)
    unseen = torch.isin(truth, known)
    residuals = unseen_residuals(evidence, stream[unseen], torch.searchsorted(known, truth[unseen]))
    evidence = rescaled(evidence, residuals, by_evidence.heavy_tails)
    return Rehearsed(known.tolist(), means, stream, truth, evidence, residuals)


def try_thresholds(
    folds: Sequence[Rehearsed],
    grid: Sequence[float],
    settings: TalonConfig,
    epochs: int,
    orders: int,
    seed: int,
    progress: Progress = SILENT,
    from_means: bool = True,
    processes: Processes = ALONE,
) -> list[Trial]:
    """Let every threshold of ``grid`` answer every rehearsal in every order, from class means or from nothing."""
    random = np.random.default_rng(seed)
    runs = [(fold, random.permutation(len(fold.stream))) for fold in folds for _ in range(orders)]
    with progress.task("Rehearsing discovery", len(grid), unit="thresholds") as task:

        def trial(threshold: float) -> Trial:
            scores = np.array([_score(fold, order, settings, threshold, from_means) for fold, order in runs])
            error = float(scores[:, 0].std(ddof=1) / np.sqrt(len(scores))) if len(scores) > 1 else 0.0
            strict_all, strict_old, strict_new, found = scores.mean(axis=0).tolist()
            task.advance(processes.size)
            each = tuple(scores[:, 0].tolist())
            return Trial(epochs, threshold, strict_all, strict_old, strict_new, found, error, each)

        return processes.map(trial, grid)


def _score(fold: Rehearsed, order: Indices, settings: TalonConfig, threshold: float, from_means: bool) -> list[float]:
    memory = PrototypeMemory(fold.means if from_means else fold.means[:0])
    if fold.evidence is None:
        discovery = FeatureStream(memory, replace(settings.online, threshold=threshold))
    else:
        learns = "prototypes" in settings.online.adapt
        rule = EvidenceRule(fold.evidence.with_offset(threshold), settings.evidence, learns)
        discovery = FeatureStream(memory, settings.online, rule=rule)
    found = discovery.observe_many(fold.stream[order])
    ids, truth = np.array([decision.category for decision in found]), fold.truth.numpy()[order]
    ratio = len(np.unique(ids)) / len(np.unique(truth))
    if fold.evidence is None:
        accuracy = strict_accuracy(truth, ids, fold.known)
        return [accuracy.all, accuracy.old, accuracy.new, ratio]
    half = slice(len(ids) // 2, None)
    founded = np.array([decision.verdict == "new" for decision in found])
    right, old = strict_matches(truth[half], ids[half], fold.known) & ~founded[half], np.isin(truth[half], fold.known)
    return [*(float(right[part].mean()) if part.any() else 0.0 for part in (old | ~old, old, ~old)), ratio]
