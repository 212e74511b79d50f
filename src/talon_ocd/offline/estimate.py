"""The two Gaussians of the evidence rule, estimated from labelled features (layer: offline; ``docs/evidence.md``).

Coordinates that are chosen to tell labelled images apart look better on those images than on any other. So the spread
inside a class and the weight of the tails come from folds that the coordinates were not chosen on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from scipy.optimize import brentq
from scipy.special import polygamma
from torch import Tensor

from talon_ocd.config import EvidenceConfig
from talon_ocd.memory import TwoCovariance
from talon_ocd.online import Evidence

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FOLDS = 4
LEAST_PSI = 1e-3
WINDOW = 9
"""Neighbouring coordinates whose held-out variances are averaged."""
IMAGES_PER_DIRECTION, LEAST_DIRECTIONS, MOST_DIRECTIONS = 4, 32, 384
"""Labelled images for each principal direction, and how many of them there are at least and at most."""
FEW_CLASSES, FEW_IMAGES = 6, 5
"""Known classes, and labelled images of one, below which people are warned."""
TOO_COMPACT = 1000.0
"""Mean of ψ above which they are as well: of real images it is below 10."""
MOST_EXAMPLES, MOST_OF_A_CLASS = 8192, 100
"""Labelled images whose coordinates are kept, altogether (or one of each class) and of one class."""
LEAST_UNSEEN = 30
"""Unseen images below which their spread is not believed."""
HEAVIEST, LIGHTEST = 4.0, 1000.0
"""Bounds of ν."""


@dataclass(frozen=True)
class Basis:
    """Coordinates that tell the classes of some images apart: inside a class they vary by 1, class means by ψ."""

    centre: Floats
    transform: Floats
    psi: Floats

    def __call__(self, features: Floats) -> Floats:
        """Return coordinates ``(N, d)`` of features ``(N, D)``."""
        return _unit(features - self.centre) @ self.transform


def settled(config: EvidenceConfig, images: int) -> EvidenceConfig:
    """Return settings that say how many directions are looked at if so many images are labelled.

    Rehearsals look at as many as the model that they are for, with fewer images: α is a matter of all coordinates.
    """
    if not isinstance(config.dimensions, str):
        return config
    return replace(config, dimensions=min(max(images // IMAGES_PER_DIRECTION, LEAST_DIRECTIONS), MOST_DIRECTIONS))


def can_estimate(labels: Tensor) -> bool:
    """Are there two classes, and a class of two images? Less says nothing about spread."""
    return _show_spread(labels.numpy())


def estimate(features: Tensor, labels: Tensor, config: EvidenceConfig) -> Evidence:
    """Estimate the model from unit features ``(N, D)`` of classes 0 .. C-1 ``(N,)``."""
    config = settled(config, len(features))
    rows, classes = features.detach().numpy().astype(np.float64), labels.numpy()
    basis = discriminant_basis(rows, classes, config)
    residuals = held_out_residuals(rows, classes, config)
    size = min(len(basis.psi), residuals.shape[1])
    spread, tail = _shown(residuals[:, :size], config.heavy_tails)
    psi = smoothed(basis.psi[:size] / spread, len(np.unique(classes)), config.smoothing_classes)
    model = TwoCovariance(basis.centre, basis.transform[:, :size] / np.sqrt(spread), psi, tail)
    coordinates = model.coordinates(features)
    counts = np.bincount(classes).astype(np.float64)
    sums = np.zeros((len(counts), size))
    np.add.at(sums, classes, coordinates)
    offset = 0.0 if config.offset == "auto" else config.offset
    chosen = examples(classes)
    return Evidence(
        model, counts, sums, offset, coordinates[chosen], np.bincount(classes[chosen], minlength=len(counts))
    )


def examples(classes: Ints) -> Ints:
    """Return which images of classes ``(N,)`` show what these look like, the first class first: evenly spaced ones."""
    sizes = np.bincount(classes)
    most = min(max(MOST_EXAMPLES // len(sizes), 1), MOST_OF_A_CLASS)
    members = np.split(np.argsort(classes, kind="stable"), sizes.cumsum()[:-1])
    kept = np.minimum(sizes, most)
    return np.concatenate(
        [own[np.arange(few) * len(own) // max(few, 1)] for own, few in zip(members, kept, strict=True)]
    )


def discriminant_basis(features: Floats, labels: Ints, config: EvidenceConfig) -> Basis:
    """Return coordinates of unit features ``(N, D)`` in which S_w is the identity and S_b is diagonal."""
    names, position, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    centre = _class_means(features, position, sizes).mean(axis=0)  # of classes: new ones don't lie around a large one
    rows = _unit(features - centre)
    assert not isinstance(config.dimensions, str)
    projection = _principal(rows, min(config.dimensions, features.shape[1], len(features) - 1))
    rows = rows @ projection
    means = _class_means(rows, position, sizes)
    residuals = rows - means[position]
    within = residuals.T @ residuals / max(len(rows) - len(names), 1)
    size = len(within)
    within = (1.0 - config.shrinkage) * within + config.shrinkage * np.trace(within) / size * np.eye(size)
    within += 1e-9 * max(np.trace(within) / size, 1e-12) * np.eye(size)  # classes without any spread at all
    centred = means - means.mean(axis=0)
    between = centred.T @ centred / max(len(names) - 1, 1) - within * (1.0 / sizes).mean()
    whiten = np.linalg.inv(np.linalg.cholesky(within))
    psi, directions = np.linalg.eigh(whiten @ between @ whiten.T)
    transform: Floats = projection @ (whiten.T @ directions[:, ::-1])
    return Basis(centre, transform, np.maximum(psi[::-1], 0.0))


def held_out_residuals(features: Floats, labels: Ints, config: EvidenceConfig) -> Floats:
    """Return ``(M, d)``: images minus the mean of their class, in coordinates chosen without them.

    Each is scaled to the variance of a member around the true mean. The coordinates of different folds differ, but
    their order is the same: the first tells classes apart best.
    """
    parts = []
    for held in _folds(labels):
        basis = discriminant_basis(features[~held], labels[~held], config)
        names, position, sizes = np.unique(labels[~held], return_inverse=True, return_counts=True)
        means = _class_means(basis(features[~held]), position, sizes)
        known = np.isin(labels[held], names)
        own = np.searchsorted(names, labels[held][known])
        residuals = basis(features[held][known]) - means[own]
        parts.append(residuals / np.sqrt(1.0 + 1.0 / sizes[own])[:, None])
    size = min((part.shape[1] for part in parts), default=features.shape[1])
    return np.concatenate([np.empty((0, size)), *(part[:, :size] for part in parts)])


def unseen_residuals(evidence: Evidence, features: Tensor, labels: Tensor) -> Floats:
    """Return ``(M, d)``: how images of known classes ``(M,)`` that nothing was fitted to lie around their class."""
    coordinates, classes = evidence.model.coordinates(features), labels.numpy()
    means, variances, _ = evidence.model.predictive(evidence.counts, evidence.sums)
    residuals: Floats = (coordinates - means[classes]) / np.sqrt(variances[classes])
    return residuals


def rescaled(evidence: Evidence, residuals: Floats, heavy_tails: bool) -> Evidence:
    """Return the evidence with spread and tail as residuals ``(M, d)`` of unseen images say they are.

    A head makes its own training images more compact than any other; this takes it back. Spread never falls. Rehearsals
    of few images look at fewer coordinates: those that they say nothing of vary as the last one that they saw.
    """
    if len(residuals) < LEAST_UNSEEN:
        return evidence
    model = evidence.model
    spread, tail = _shown(residuals[:, : model.size], heavy_tails, least=1.0)
    spread = np.pad(spread, (0, model.size - len(spread)), mode="edge")
    scale = np.sqrt(spread)
    wider = TwoCovariance(model.centre, model.transform / scale, np.maximum(model.psi / spread, LEAST_PSI), tail)
    shown = None if evidence.examples is None else evidence.examples / scale
    return replace(evidence, model=wider, sums=evidence.sums / scale, examples=shown)


def _shown(residuals: Floats, heavy_tails: bool, least: float = 0.0) -> tuple[Floats, float]:
    """Return the spread ``(d,)`` and the ν that residuals ``(M, d)`` show."""
    if not len(residuals):
        return np.ones(residuals.shape[1]), LIGHTEST if heavy_tails else np.inf
    spread = np.maximum(_smooth((residuals**2).mean(axis=0)), least)
    return spread, tail_weight((residuals**2 / spread).sum(axis=1), len(spread)) if heavy_tails else np.inf


def smoothed(psi: Floats, classes: int, more: float) -> Floats:
    """Return ψ ``(d,)`` found in so many classes, mixed with its mean as if that came from ``more`` of them."""
    mixed = (classes * psi + more * psi.mean()) / (classes + more)
    result: Floats = np.maximum(mixed, LEAST_PSI)
    return result


def tail_weight(distances: Floats, size: int) -> float:
    """Return ν of d-dimensional squared distances ``(M,)``: their logarithms vary by ψ'(d/2) + ψ'(ν/2)."""
    if len(distances) < 2:
        return LIGHTEST
    extra = float(np.log(np.maximum(distances, 1e-12)).var() - polygamma(1, size / 2.0))

    def excess(tail: float) -> float:
        return float(polygamma(1, tail / 2.0)) - extra

    if excess(LIGHTEST) >= 0.0:
        return LIGHTEST
    return HEAVIEST if excess(HEAVIEST) <= 0.0 else float(brentq(excess, HEAVIEST, LIGHTEST))


def support(evidence: Evidence, labels: Tensor) -> dict[str, Any]:
    """Return what was estimated and how sure it is, as plain data; ``warnings`` are for people."""
    model, sizes = evidence.model, np.bincount(labels.numpy())
    return {
        "coordinates": model.size,
        "tail": None if np.isinf(model.tail) else model.tail,
        "psi_mean": float(model.psi.mean()),
        "psi_largest": float(model.psi.max()),
        "psi_uncertainty": float(np.sqrt(2.0 / max(len(sizes) - 1, 1))),
        "offset": evidence.offset,
        "warnings": list(_warnings(model, sizes)),
    }


def _warnings(model: TwoCovariance, sizes: Ints) -> Iterator[str]:
    """Yield what the labelled images, ``sizes`` ``(C,)`` of each class, can't tell."""
    classes, few = len(sizes), int((sizes < FEW_IMAGES).sum())
    if classes < FEW_CLASSES:
        yield (
            f"{classes} known classes say little about how much classes differ: expect a wrong number of new ones; "
            f"{FEW_CLASSES} or more are better."
        )
    if 2 * few >= classes:
        yield (
            f"{few} of {classes} known classes have fewer than {FEW_IMAGES} labelled images, which say little about "
            f"the spread inside a class: give {FEW_IMAGES} or more of each."
        )
    if model.psi.mean() > TOO_COMPACT:
        yield (
            "the labelled images of a class are all but equal (copies?), so that any other image will look new: give "
            "images that differ as those of the stream do."
        )


def _folds(labels: Ints) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield which images are held out: every fourth of a class, the first of each class in another fold."""
    order = np.argsort(labels, kind="stable")
    _, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    within_class = np.arange(len(labels)) - np.repeat(starts, sizes)
    fold = np.empty(len(labels), np.int64)
    fold[order] = (within_class + np.repeat(np.arange(len(sizes)), sizes)) % FOLDS
    for number in range(FOLDS):
        held = fold == number
        if held.any() and _show_spread(labels[~held]):
            yield held


def _show_spread(labels: Ints) -> bool:
    sizes = np.bincount(labels)
    return int((sizes > 0).sum()) >= 2 and int(sizes.max()) >= 2


def _principal(rows: Floats, number: int) -> Floats:
    """Return the ``number`` leading directions ``(D, d)`` of rows ``(N, D)`` that hold any variance."""
    count, size = rows.shape
    small = rows @ rows.T if count < size else rows.T @ rows
    last = len(small) - 1
    values, vectors = eigh(small, subset_by_index=[max(last - number + 1, 0), last])
    values, vectors = values[::-1], vectors[:, ::-1]
    real = values > values[0] * 1e-10
    real[0] = True  # images that are all alike vary in no direction, but coordinates there must be
    vectors = vectors[:, real]
    directions = rows.T @ vectors / np.sqrt(np.maximum(values[real], 1e-300)) if count < size else vectors
    flip = np.sign(directions[np.abs(directions).argmax(axis=0), np.arange(directions.shape[1])])
    result: Floats = directions * flip  # an eigenvector's sign is an accident
    return result


def _class_means(rows: Floats, position: Ints, sizes: Ints) -> Floats:
    sums = np.zeros((len(sizes), rows.shape[1]))
    np.add.at(sums, position, rows)
    return sums / sizes[:, None]


def _smooth(values: Floats) -> Floats:
    """Return running means of neighbours; the first three, which differ most, stay as they are."""
    padded = np.pad(values, WINDOW // 2, mode="edge")
    smooth = np.convolve(padded, np.ones(WINDOW) / WINDOW, "valid")
    smooth[:3] = values[:3]
    return np.maximum(smooth, 1e-6)


def _unit(rows: Floats) -> Floats:
    lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    scaled: Floats = rows / lengths.clip(min=1e-12)[:, None]
    return scaled
