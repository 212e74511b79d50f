"""Choose by rehearsals what statistics alone can't (layer: offline).

That is the threshold of TALON's rule or the offset of the evidence rule, and how much training helps. Of thresholds
whose mean Strict accuracy is within one standard error of the best, the one whose number of categories comes nearest to
the truth is taken: a rehearsal is shorter than a real stream, which opens more. Of offsets it is their mean, the better
counting more. Nothing but the labelled set is looked at, and the number of new classes is never used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from talon_ocd.config import TalonConfig
from talon_ocd.offline.distributed import ALONE, Processes
from talon_ocd.offline.estimate import can_estimate, settled
from talon_ocd.offline.rehearse import (
    EncodeFold,
    Floats,
    Rehearsal,
    Rehearsed,
    Trial,
    encoded,
    rehearsals,
    try_thresholds,
)
from talon_ocd.progress import SILENT, Progress

FEWEST = 0.95
"""Categories found over present up to which an offset counts nothing, as a mean over rehearsals; from 1 on, fully."""
OFFSETS = tuple(float(offset) for offset in range(-4, 7))
"""Offsets of the evidence rule that are rehearsed, in nats: a rehearsal is too noisy to take the model back by more."""
FARTHER = tuple(float(offset) for offset in range(8, 33, 4))
"""Those that follow if the best seems to be beyond the largest, or even that finds too few categories: the more classes
there are, the better the best of many wrong ones explains an image."""
POINT = 0.01
"""Accuracy that lets an offset count e times as much."""
NEARLY = 0.05
"""What the best of the offsets that find enough categories must count, as a share of the best of all: three points."""
UNTOLD = 5
"""Classes that would have said 0, besides the known ones: a few of those don't tell the offset."""
ORDERS = (4, 12)
"""Orders in which a stream is answered, at least and at most, if no more are wanted: they cost less than training."""
DOUBTFUL = 0.5
"""Accuracy in rehearsals below which people are warned: a real stream is harder."""
ANSWERS = 2000
"""What a rehearsal should answer altogether: short streams tell little, so that they are answered in more orders."""


@dataclass(frozen=True)
class Calibration:
    """The chosen candidate and the table it was chosen from."""

    rule: Literal["evidence", "cosine"]
    """The rule that was rehearsed: TALON's if that is wanted, or if there are too few images to estimate anything."""
    threshold: float
    """A cosine, or the offset of the evidence rule."""
    epochs: int
    trials: tuple[Trial, ...]
    rounds: int
    held_out: int
    """Classes held out in each round."""
    residuals: Floats
    """How unseen images of known classes lay around them ``(M, d)``, if evidence was rehearsed; else empty."""

    @property
    def nearest(self) -> Trial:
        """The trial that comes nearest to what was chosen: what may be expected, as far as rehearsals can tell."""
        own = [trial for trial in self.trials if trial.epochs == self.epochs]
        return min(own, key=lambda trial: abs(trial.threshold - self.threshold))

    def warnings(self, by_evidence: bool) -> Iterator[str]:
        """Yield what people should know before they trust what was chosen, if evidence was to decide."""
        if by_evidence and self.rule == "cosine":
            yield (
                "too few labelled images to rehearse the evidence rule: TALON's rule decides, with a rehearsed "
                "threshold. Give 3 classes or more, with 3 images or more each."
            )
        if by_evidence and self.nearest.strict_all < DOUBTFUL:
            yield (
                f"only {self.nearest.strict_all:.0%} of the images were answered right in rehearsals: known and new "
                "classes are hard to tell apart by these features, and many answers will be wrong; label more images, "
                "or try another encoder."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, without the residuals."""
        plain = {name: getattr(self, name) for name in ("rule", "threshold", "epochs", "rounds", "held_out")}
        near = self.nearest
        expected = {"all": near.strict_all, "old": near.strict_old, "new": near.strict_new}
        return {**plain, "expected": expected, "trials": [trial.to_dict() for trial in self.trials]}


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
    folds, orders = _folds(labels, settings, seed)
    by_evidence = settings.online.by_evidence and all(can_estimate(labels[fold.train]) for fold in folds)
    evidence = settled(settings.evidence, len(labels)) if by_evidence else None
    trials: list[Trial] = []
    residuals: dict[int, Floats] = {}
    for epochs, encode_fold in encoders.items():
        rehearsed = [encoded(fold, labels, encode_fold, evidence) for fold in folds]
        rehearse = partial(
            try_thresholds, rehearsed, settings=settings, epochs=epochs, orders=orders, seed=seed, progress=progress,
            processes=processes,
        )  # fmt: skip
        trials += try_offsets(rehearse) if by_evidence else rehearse(_grid(rehearsed, settings.calibration.grid))
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


def _folds(labels: Tensor, settings: TalonConfig, seed: int) -> tuple[list[Rehearsal], int]:
    """Return the rehearsals, and in how many orders each is streamed; evidence holds nearly each class out once."""
    config = settings.calibration
    if not settings.online.by_evidence:
        return list(rehearsals(labels, config, seed)), config.orders
    share, classes = settings.evidence.rehearse_new, len(labels.unique())
    turns = min(round(1 / share), -(-classes // max(round(classes * share), 1)))
    config = replace(config, held_out=share, rounds=max(config.rounds, turns))
    folds = list(rehearsals(labels, config, seed, settings.evidence.rehearse_trained))
    fewest, most = ORDERS
    enough = ANSWERS // min(len(fold.stream) for fold in folds)
    return folds, max(config.orders, min(max(enough, fewest), most))


def try_offsets(rehearse: Callable[[Sequence[float]], list[Trial]]) -> list[Trial]:
    """Rehearse the offsets, and those farther away if the best may be among them; to count, one of these must be.

    Two names of one kind make rehearsals find too few categories as well, and no offset helps there.
    """
    trials = rehearse(OFFSETS)
    if trials[-1].found_ratio >= 1.0 and weighed(trials)[1] <= OFFSETS[-1] - 1.0:
        return trials
    farther = rehearse(FARTHER)
    gain = max(trial.strict_all for trial in farther) - max(trial.strict_all for trial in trials)
    return trials + farther if gain > POINT else trials


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
