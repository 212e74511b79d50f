"""Rehearse discovery on the labelled set, and choose what statistics alone can't (layer: offline).

That is the threshold of TALON's rule or the offset of the evidence rule, and how much training helps.

Some known classes are held out of training altogether and play the part of new ones. A head trained on the rest meets
them, and images of its own classes that it was not trained on, as a stream; every candidate answers that stream. Of
thresholds whose mean Strict accuracy is within one standard error of the best, the one whose number of categories comes
nearest to the truth is taken: a rehearsal is shorter than a real stream, which opens more. Of offsets it is their mean,
the better counting more, and only the second half of a rehearsal counts: a real stream has its beginning behind it
soon. Nothing but the labelled set is looked at, and the number of new classes is never used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import log
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from talon_ocd.config import CalibrationConfig, EvidenceConfig, TalonConfig
from talon_ocd.errors import DataError
from talon_ocd.memory import PrototypeMemory
from talon_ocd.metrics import strict_accuracy
from talon_ocd.offline.distributed import ALONE, Processes
from talon_ocd.offline.estimate import can_estimate, estimate, rescaled, settled, unseen_residuals
from talon_ocd.offline.features import class_means
from talon_ocd.online import Evidence, EvidenceRule, FeatureStream
from talon_ocd.progress import SILENT, Progress

MOST_STREAMED = 4000
"""Images a rehearsal streams at most: more of them cost time and change nothing."""
FEWEST = 0.95
"""Categories found over present up to which an offset counts nothing, as a mean over rehearsals; from 1 on, fully."""
OFFSETS = tuple(float(offset) for offset in range(-4, 7))
"""Offsets of the evidence rule that are rehearsed, in nats: a rehearsal is too noisy to take the model back by more."""
POINT = 0.01
"""Accuracy that lets an offset count e times as much."""
FARTHER = tuple(float(offset) for offset in range(8, 33, 4))
"""Those that follow if the best seems to be beyond the largest, or even that finds too few categories: the more classes
there are, the better the best of many wrong ones explains an image."""
NEARLY = 0.05
"""What the best of the offsets that find enough categories must count, as a share of the best of all: three points."""
UNTOLD = 5
"""Classes that would have said 0, besides the known ones: a few of those don't tell the offset."""
ORDERS = 4
"""Orders in which they are, at least: streams cost little beside the training of a rehearsal."""

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
    """What one candidate reached, as means over rounds and orders; by evidence, in the second half of its streams."""

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


@dataclass(frozen=True)
class Calibration:
    """The chosen candidate and the table it was chosen from."""

    rule: Literal["evidence", "cosine"]
    """The rule that was rehearsed: TALON's if there are too few images to estimate anything."""
    threshold: float
    """A cosine, or the offset of the evidence rule."""
    epochs: int
    trials: tuple[Trial, ...]
    rounds: int
    held_out: int
    """Classes held out in each round."""
    residuals: Floats
    """How unseen images of known classes lay around them ``(M, d)``, if evidence was rehearsed; else empty."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, without the residuals."""
        plain = {name: getattr(self, name) for name in ("rule", "threshold", "epochs", "rounds", "held_out")}
        return {**plain, "trials": [trial.to_dict() for trial in self.trials]}


def rehearsals(labels: Tensor, config: CalibrationConfig, seed: int, trained: float = 0.5) -> Iterator[Rehearsal]:
    """Yield rounds that hold different classes out; labels are 0 .. C-1 ``(N,)``.

    ``trained`` is the share of the other classes' images that is trained on; the rest is streamed as well.
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
        train: list[int] = []
        for known in np.setdiff1d(classes, novel):
            members = random.permutation(np.flatnonzero(labels.numpy() == known))
            train += members[: max(int(len(members) * trained), 1)].tolist()
        rest = np.setdiff1d(np.arange(len(labels)), np.array(train))
        stream = random.permutation(rest)[:MOST_STREAMED]
        if is_novel[stream].any():
            yield Rehearsal(np.sort(np.array(train, dtype=np.int64)), stream)


def calibrate(
    labels: Tensor,
    encoders: Mapping[int, EncodeFold],
    settings: TalonConfig,
    seed: int,
    progress: Progress = SILENT,
    processes: Processes = ALONE,
) -> Calibration:
    """Choose threshold (or offset) and how much training for labelled images with ``labels`` ``(N,)``.

    ``encoders`` gives the features of a rehearsal for every training that is worth a try.
    With several processes, each tries some of the thresholds, and all come to the same choice.
    """
    config = settings.calibration
    if settings.online.by_evidence:
        share = settings.evidence.rehearse_new
        rounds, orders = max(config.rounds, round(1 / share)), max(config.orders, ORDERS)
        config = replace(config, held_out=share, rounds=rounds, orders=orders)
        folds = list(rehearsals(labels, config, seed, settings.evidence.rehearse_trained))
    else:
        folds = list(rehearsals(labels, config, seed))
    by_evidence = settings.online.by_evidence and all(can_estimate(labels[fold.train]) for fold in folds)
    trials: list[Trial] = []
    residuals: dict[int, Floats] = {}
    evidence = settled(settings.evidence, len(labels)) if by_evidence else None
    for epochs, encode_fold in encoders.items():
        rehearsed = [_rehearsed(fold, labels, encode_fold, evidence) for fold in folds]
        rehearse = partial(
            try_thresholds, rehearsed, settings=settings, epochs=epochs, orders=config.orders, seed=seed,
            progress=progress, processes=processes,
        )  # fmt: skip
        trials += try_offsets(rehearse) if by_evidence else rehearse(_grid(rehearsed, config.grid))
        residuals[epochs] = _together([fold.residuals for fold in rehearsed if fold.residuals is not None])
    classes = len(labels.unique())
    if by_evidence:
        trained, offset = weighed(trials)
        threshold = offset * classes / (classes + UNTOLD)
    else:
        best = choose(trials)
        trained, threshold = best.epochs, best.threshold
    held_out = classes - len(labels[folds[0].train].unique())
    rule: Literal["evidence", "cosine"] = "evidence" if by_evidence else "cosine"
    return Calibration(rule, threshold, trained, tuple(trials), len(folds), held_out, residuals[trained])


def try_offsets(rehearse: Callable[[Sequence[float]], list[Trial]]) -> list[Trial]:
    """Rehearse the offsets, and those farther away if the best may be among them."""
    trials = rehearse(OFFSETS)
    too_few = trials[-1].found_ratio < 1.0
    return trials + rehearse(FARTHER) if too_few or weighed(trials)[1] > OFFSETS[-1] - 1.0 else trials


def choose(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the truest number of categories among those as good as the best, give or take its error.

    Of equals, as there are many when classes lie far apart, the middle one keeps clear of both edges.
    """
    best = max(trials, key=lambda trial: trial.strict_all)
    good = [trial for trial in trials if trial.strict_all >= best.strict_all - best.standard_error]
    ranks = [(abs(log(trial.found_ratio)), -trial.strict_all, trial.epochs) for trial in good]
    equals = [trial for trial, rank in zip(good, ranks, strict=True) if rank == min(ranks)]
    return equals[len(equals) // 2]


def weighed(trials: Sequence[Trial]) -> tuple[int, float]:
    """Return how many epochs of training pay, and the mean of the offsets, the better counting more.

    ``POINT`` more accuracy counts e times as much. Accuracy is noisy and its top is flat, most of all with few known
    classes, so that no offset is the best one; it falls faster on one side of the top than on the other, which a mean
    heeds. Offsets that find fewer categories than there are count less, or nothing if others are nearly as good: below
    some offset everything joins known classes, which few new images can make look fair.
    """
    chosen: tuple[int, float, Floats] | None = None
    for epochs in sorted({trial.epochs for trial in trials}):
        own = [trial for trial in trials if trial.epochs == epochs]
        weights = _weights(own)
        runs = weights @ np.array([trial.runs for trial in own])
        if chosen is None or pays(runs - chosen[2]):
            chosen = epochs, float(weights @ np.array([trial.threshold for trial in own])), runs
    assert chosen is not None
    return chosen[:2]


def _weights(trials: Sequence[Trial]) -> Floats:
    """Return how much each offset counts ``(T,)``, 1 altogether."""
    accuracy, found = np.array([(trial.strict_all, trial.found_ratio) for trial in trials]).T
    good: Floats = np.exp((accuracy - accuracy.max()) / POINT)
    weights = good * np.clip((found - FEWEST) / (1.0 - FEWEST), 0.0, 1.0)
    kept: Floats = weights if weights.max() >= NEARLY else good
    kept /= kept.sum()
    return kept


def pays(gains: Floats) -> bool:
    """Do gains ``(R,)`` of the same rounds and orders say that something helps, by more than a standard error?

    Rounds differ far more from each other than what is compared does, so that each is compared with itself.
    """
    error = gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return bool(gains.mean() > error)


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


def _rehearsed(
    fold: Rehearsal, labels: Tensor, encode_fold: EncodeFold, by_evidence: EvidenceConfig | None
) -> Rehearsed:
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


def _together(parts: Sequence[Floats]) -> Floats:
    """Return residuals of several rehearsals, cut to the coordinates that all have."""
    size = min((part.shape[1] for part in parts), default=0)
    return np.concatenate([part[:, :size] for part in parts]) if parts else np.empty((0, 0))


def _grid(folds: Sequence[Rehearsed], size: int) -> list[float]:
    """Thresholds between the similarities below and above which no answer changes any more (but for outliers)."""
    nearest = torch.cat([(fold.stream @ fold.means.T).amax(dim=1) for fold in folds])
    samples = [fold.stream[:500] for fold in folds]
    pairs = torch.cat([(sample @ sample.T).triu(1).amax(dim=1)[:-1] for sample in samples])
    low, high = float(nearest.quantile(0.005)), float(torch.cat([nearest, pairs]).quantile(0.98))
    return [float(value) for value in np.linspace(min(low, high - 1e-3), high, size)]


def _score(fold: Rehearsed, order: Indices, settings: TalonConfig, threshold: float, from_means: bool) -> list[float]:
    memory = PrototypeMemory(fold.means if from_means else fold.means[:0])
    if fold.evidence is None:
        discovery = FeatureStream(memory, replace(settings.online, threshold=threshold))
    else:
        learns = "prototypes" in settings.online.adapt
        rule = EvidenceRule(fold.evidence.with_offset(threshold), settings.evidence, learns)
        discovery = FeatureStream(memory, settings.online, rule=rule)
    ids = np.array([decision.category for decision in discovery.observe_many(fold.stream[order])])
    truth = fold.truth.numpy()[order]
    scored = slice(0 if fold.evidence is None else len(ids) // 2, None)
    accuracy = strict_accuracy(truth[scored], ids[scored], fold.known)
    return [accuracy.all, accuracy.old, accuracy.new, len(np.unique(ids)) / len(np.unique(truth))]
