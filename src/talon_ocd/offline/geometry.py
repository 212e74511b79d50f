"""Angles of the feature space (layer: offline), as in the paper's figure: to prototypes, and between them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.errors import DataError

BINS = 90
"""Histogram bins between 0 and 180 degrees."""


@dataclass(frozen=True)
class Angles:
    """Angle statistics in degrees; ``between_*`` is NaN when there is a single prototype.

    Attributes:
        own_mean, own_std: from each sample to the prototype of its class (compactness).
        between_mean, between_std: between all distinct pairs of prototypes (separation).
        own_histogram, between_histogram: counts in ``BINS`` equal bins from 0 to 180 degrees.
    """

    own_mean: float
    own_std: float
    between_mean: float
    between_std: float
    own_histogram: tuple[int, ...]
    between_histogram: tuple[int, ...]

    @property
    def edges(self) -> tuple[float, ...]:
        """Bin edges of the histograms, in degrees."""
        return tuple(180.0 * edge / BINS for edge in range(BINS + 1))


def angles(features: Tensor, labels: Tensor, prototypes: Tensor) -> Angles:
    """Return the angles of features ``(N, D)`` with labels ``(N,)`` and prototypes ``(C, D)``.

    >>> angles(torch.eye(2), torch.tensor([0, 1]), torch.eye(2)).between_mean
    90.0
    """
    if len(features) == 0 or labels.shape != features.shape[:1]:
        shapes = f"{tuple(features.shape)} and {tuple(labels.shape)}"
        raise DataError(f"features and labels have shapes {shapes}; give (N, D) and (N,) with N of 1 or more.")
    if int(labels.min()) < 0 or int(labels.max()) >= len(prototypes):
        found = f"{int(labels.min())} to {int(labels.max())}"
        raise DataError(f"labels go from {found} but there are {len(prototypes)} prototypes; give one a class.")
    rows = F.normalize(features.double(), dim=1)
    centres = F.normalize(prototypes.double(), dim=1)
    own = _degrees((rows * centres[labels]).sum(dim=1))
    above = torch.ones(len(centres), len(centres), dtype=torch.bool, device=centres.device).triu(1)
    between = _degrees((centres @ centres.T)[above])
    return Angles(*_spread(own), *_spread(between), _histogram(own), _histogram(between))


def _degrees(cosine: Tensor) -> Tensor:
    return torch.rad2deg(torch.arccos(cosine.clamp(-1.0, 1.0)))


def _spread(values: Tensor) -> tuple[float, float]:
    if len(values) == 0:
        return float("nan"), float("nan")
    return values.mean().item(), values.std(correction=0).item()


def _histogram(values: Tensor) -> tuple[int, ...]:
    return tuple(int(count) for count in torch.histc(values.cpu(), BINS, 0.0, 180.0).tolist())
