"""``threshold="auto"``: rehearse discovery on the labelled set and choose the threshold (layer: offline).

Some known classes are held out of training altogether and play the part of new ones. A head trained on the rest meets
them, and images of its own classes that it was not trained on, as a stream; every candidate threshold answers that
stream, and the one with the best mean Strict accuracy over rounds and stream orders is taken. Nothing but the labelled
set is looked at, and the number of new classes is never used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from talon_ocd.config import CalibrationConfig, OnlineConfig
from talon_ocd.errors import DataError
from talon_ocd.memory import PrototypeMemory
from talon_ocd.metrics import strict_accuracy
from talon_ocd.offline.features import class_means
from talon_ocd.online import FeatureStream
from talon_ocd.progress import SILENT, Progress

MOST_STREAMED = 4000
"""Images a rehearsal streams at most: more of them cost time and change nothing."""

Indices = npt.NDArray[np.int64]
EncodeFold = Callable[[Indices, Indices], Tensor]
"""``(train, wanted) -> (len(wanted), D)`` unit features by an encoder that saw the labelled images ``train`` only."""
Prepared = tuple[list[int], Tensor, Tensor, Tensor]
"""Known labels, their prototypes, the features of the stream and its true labels."""


@dataclass(frozen=True)
class Rehearsal:
    """Which labelled images play which part in one rehearsal (indices into the labelled set)."""

    train: Indices
    stream: Indices


@dataclass(frozen=True)
class Trial:
    """What one threshold reached, as means over rounds and orders."""

    threshold: float
    strict_all: float
    strict_old: float
    strict_new: float
    found_ratio: float
    """Categories found over categories present."""


@dataclass(frozen=True)
class Calibration:
    """The chosen threshold and the table it was chosen from."""

    threshold: float
    trials: tuple[Trial, ...]
    rounds: int
    held_out: int
    """Classes held out in each round."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def rehearsals(labels: Tensor, config: CalibrationConfig, seed: int) -> Iterator[Rehearsal]:
    """Yield rounds that hold different classes out; labels are 0 .. C-1 ``(N,)``."""
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
            train += members[: max(len(members) // 2, 1)].tolist()
        rest = np.setdiff1d(np.arange(len(labels)), np.array(train))
        stream = random.permutation(rest)[:MOST_STREAMED]
        if is_novel[stream].any():
            yield Rehearsal(np.sort(np.array(train, dtype=np.int64)), stream)


def calibrate(
    labels: Tensor,
    encode_fold: EncodeFold,
    online: OnlineConfig,
    config: CalibrationConfig,
    seed: int,
    progress: Progress = SILENT,
) -> Calibration:
    """Choose the threshold for labelled images with ``labels`` ``(N,)``."""
    prepared = [_prepare(fold, labels, encode_fold) for fold in rehearsals(labels, config, seed)]
    grid = _grid(prepared, config.grid)
    scores = np.zeros((len(grid), 4))
    random = np.random.default_rng(seed)
    orders = [[random.permutation(len(stream)) for _ in range(config.orders)] for _, _, stream, _ in prepared]
    with progress.task("Rehearsing discovery", len(grid), unit="thresholds") as task:
        for row, threshold in enumerate(grid):
            runs = [
                _score(
                    known,
                    prototypes,
                    stream[order],
                    truth[order],
                    replace(online, threshold=float(threshold)),
                )
                for (known, prototypes, stream, truth), fold_orders in zip(prepared, orders, strict=True)
                for order in fold_orders
            ]
            scores[row] = np.mean(runs, axis=0)
            task.advance()
    trials = tuple(Trial(float(t), *map(float, row)) for t, row in zip(grid, scores, strict=True))
    held_out = len(np.unique(labels.numpy())) - len(prepared[0][0])
    return Calibration(_best(grid, scores[:, 0]), trials, len(prepared), held_out)


def _prepare(fold: Rehearsal, labels: Tensor, encode_fold: EncodeFold) -> Prepared:
    features = encode_fold(fold.train, np.concatenate([fold.train, fold.stream]))
    known, compact = labels[fold.train].unique(return_inverse=True)
    prototypes = class_means(features[: len(fold.train)], compact, len(known))
    return known.tolist(), prototypes, features[len(fold.train) :], labels[fold.stream]


def _grid(prepared: list[Prepared], size: int) -> npt.NDArray[np.float64]:
    """Thresholds between the similarities below and above which no answer changes any more (but for outliers)."""
    nearest = torch.cat([(stream @ prototypes.T).amax(dim=1) for _, prototypes, stream, _ in prepared])
    pairs = torch.cat([(stream[:500] @ stream[:500].T).triu(1).amax(dim=1)[:-1] for _, _, stream, _ in prepared])
    low, high = float(nearest.quantile(0.005)), float(torch.cat([nearest, pairs]).quantile(0.98))
    return np.linspace(min(low, high - 1e-3), high, size)


def _score(known: list[int], prototypes: Tensor, stream: Tensor, truth: Tensor, config: OnlineConfig) -> list[float]:
    discovery = FeatureStream(PrototypeMemory(prototypes), config)
    ids = np.array([decision.category for decision in discovery.observe_many(stream)])
    accuracy = strict_accuracy(truth.numpy(), ids, known)
    return [accuracy.all, accuracy.old, accuracy.new, len(np.unique(ids)) / len(np.unique(truth.numpy()))]


def _best(grid: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> float:
    """The best threshold of a curve smoothed over its neighbours: one lucky point must not win.

    Where many are equally good, as with classes that lie far apart, the middle one keeps clear of both edges.
    """
    padded = np.pad(scores, 1, mode="edge")
    smooth = (padded[:-2] + 2 * padded[1:-1] + padded[2:]) / 4
    best = np.flatnonzero(smooth >= smooth.max() - 1e-12)
    plateau = max(np.split(best, np.flatnonzero(np.diff(best) > 1) + 1), key=len)
    return float(grid[plateau[len(plateau) // 2]])
