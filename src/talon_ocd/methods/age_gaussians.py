"""Gaussians of AGE (layer: methods; section 3.15): soft covariances, and log densities under many of them at once.

    Σ_k = (1 - a_k) Σ_LW + a_k Σ_all + ε I,  a_k = 2 / (N_k + 2)

Σ_LW is the Ledoit-Wolf estimate of the N_k members of a cluster. A log density is a quadratic function of x, so it is
kept as its coefficients: one product gives the log densities under all Gaussians, and a change of one changes one row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

Floats = npt.NDArray[np.float64]

GROWTH = 1.5


class Gaussians:
    """A growing list of Gaussians in d dimensions.

    >>> gaussians = Gaussians(2)
    >>> gaussians.append(np.zeros(2), np.eye(2))
    >>> gaussians.log_densities(np.zeros(2)).round(5).tolist()
    [-1.83788]
    """

    def __init__(self, dimensions: int) -> None:
        self._upper = np.triu_indices(dimensions)
        self._rows = np.empty((0, len(self._upper[0]) + dimensions + 1))
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, mean: Floats, covariance: Floats) -> None:
        """Add a Gaussian with the next number."""
        if self._size == len(self._rows):
            room = np.empty((max(int(self._size * GROWTH), self._size + 16), self._rows.shape[1]))
            room[: self._size] = self._rows
            self._rows = room
        self._size += 1
        self.replace(self._size - 1, mean, covariance)

    def replace(self, number: int, mean: Floats, covariance: Floats) -> None:
        """Put another Gaussian in the place of one."""
        factor = cho_factor(covariance)
        precision = cho_solve(factor, np.eye(len(mean)))
        linear = precision @ mean
        log_determinant = 2.0 * np.log(np.diag(factor[0])).sum()
        constant = -0.5 * (mean @ linear + log_determinant + len(mean) * np.log(2.0 * np.pi))
        twice = precision + precision.T - np.diag(np.diag(precision))  # pairs off the diagonal occur twice
        self._rows[number] = np.concatenate([-0.5 * twice[self._upper], linear, [constant]])

    def log_densities(self, point: Floats) -> Floats:
        """Return the log density of a point ``(d,)`` under every Gaussian ``(K,)``."""
        rows, columns = self._upper
        densities: Floats = self._rows[: self._size] @ np.concatenate([point[rows] * point[columns], point, [1.0]])
        return densities


def soft_covariance(members: Floats, shared: Floats, floor: float) -> Floats:
    """Return Σ_k ``(d, d)`` of a cluster's members ``(N, d)``; a single member has no spread of its own, only Σ_all."""
    own: Floats = shared
    if len(members) > 1:
        share = 2.0 / (len(members) + 2.0)
        own = (1.0 - share) * _ledoit_wolf(members) + share * shared
    mixed: Floats = own + floor * np.eye(len(shared))
    return mixed


def pooled_covariance(residuals: Floats) -> Floats:
    """Return Σ_all ``(d, d)``: the Ledoit-Wolf covariance of points ``(N, d)`` around the centres of their classes."""
    return _ledoit_wolf(residuals, centred=True)


def _ledoit_wolf(points: Floats, centred: bool = False) -> Floats:
    from sklearn.covariance import ledoit_wolf  # here: only this method needs it, and every command would wait for it

    covariance: Floats = ledoit_wolf(points, assume_centered=centred)[0]
    return covariance
