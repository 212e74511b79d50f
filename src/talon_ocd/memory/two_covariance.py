"""Two Gaussians that explain every category, known or new (layer: memory; ``docs/evidence.md``).

Class means are drawn from N(0, S_b), members of a class from N(mean, S_w). In the coordinates of this module S_w is the
identity and S_b is diagonal, ψ. Images are not equally clear, so that each has a scale of its own: the predictive
distributions are Student's, with ν degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from talon_ocd.errors import DataError
from talon_ocd.memory.projection import ROWS, Projection

Floats = npt.NDArray[np.float64]
MOST_COUNTED = 50.0
"""Members after which a category counts as well known: no mean of real images gets more certain than that."""


@dataclass(frozen=True)
class TwoCovariance:
    """The model's parameters.

    Attributes:
        centre: mean of the known classes' mean unit features ``(D,)``.
        transform: from centred unit features to coordinates ``(D, d)``.
        psi: ψ, variance of class means in units of the variance inside a class ``(d,)``.
        tail: ν; infinity makes the distributions Gaussian.
    """

    centre: Floats
    transform: Floats
    psi: Floats
    tail: float

    @property
    def size(self) -> int:
        """d, the number of coordinates."""
        return len(self.psi)

    def coordinates(self, features: Tensor) -> Floats:
        """Return coordinates ``(B, d)`` of unit features ``(B, D)``.

        Products are in float32 and all of one size, the last one filled up with zeros: how images are batched must not
        show in the answers (see ``projection.py``).
        """
        centre, projection = self._projection
        result = torch.empty(len(features), self.size, dtype=torch.float64)
        for start in range(0, len(features), ROWS):
            centred = features[start : start + ROWS].detach().float() - centre
            count = len(centred)
            if count < ROWS:
                centred = torch.nn.functional.pad(centred, (0, 0, 0, ROWS - count))
            lengths = torch.linalg.vector_norm(centred, dim=1, keepdim=True).clamp_(min=1e-12)
            result[start : start + ROWS] = projection(centred).div_(lengths)[:count]
        return result.numpy()

    @cached_property
    def _projection(self) -> tuple[Tensor, Projection]:
        """Centre ``(D,)`` in float32, and the product with ``transform``."""
        return torch.from_numpy(self.centre).float(), Projection(torch.from_numpy(self.transform))

    def __getstate__(self) -> dict[str, Any]:
        """Return the parameters alone, for copies: oneDNN's tensors can't be copied, and are soon made again."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def predictive(self, counts: Floats, sums: Floats) -> tuple[Floats, Floats, Floats]:
        """Return mean ``(K, d)``, variance ``(K, d)`` and log-volume ``(K,)`` of categories' next members.

        ``counts`` ``(K,)`` and ``sums`` ``(K, d)`` are over the members so far; no member at all is a new category.
        """
        counted = np.minimum(counts, MOST_COUNTED)[:, None]
        remaining = self.psi / (counted * self.psi + 1.0)
        variances = 1.0 + remaining
        means = counted * remaining * sums / np.maximum(counts, 1.0)[:, None]
        return means, variances, 0.5 * np.log(variances).sum(axis=1)

    @cached_property
    def new_volume(self) -> float:
        """Log-volume of a new category's first member."""
        return float(0.5 * np.log1p(self.psi).sum())

    @cached_property
    def _new_precision(self) -> Floats:
        """One over the variances of a new category's first member ``(d,)``."""
        return 1.0 / (1.0 + self.psi)

    def surprise(self, distances: Floats) -> Floats:
        """Return minus the log-density, but for the volume, at squared distances in units of the variances."""
        if math.isinf(self.tail):
            return 0.5 * distances
        result: Floats = 0.5 * (self.tail + self.size) * np.log1p(distances / self.tail)
        return result

    def new_surprise(self, coordinates: Floats) -> Floats:
        """Return minus the log-density ``(B,)`` of being the first of a new category."""
        return self.surprise((coordinates**2) @ self._new_precision) + self.new_volume

    def log_evidence(self, counts: Floats, sums: Floats) -> Floats:
        """Return the log-density ``(K,)`` of all members of each category, but for what no grouping changes.

        ``counts`` ``(K,)`` and ``sums`` ``(K, d)`` are over its members. By the Gaussian model: images' scales are not
        known.
        """
        counted = counts[:, None] * self.psi
        spread: Floats = self.psi / (counted + 1.0) * sums**2 - np.log1p(counted)
        evidence: Floats = 0.5 * spread.sum(axis=1)
        return evidence

    def state_dict(self) -> dict[str, Tensor]:
        """Return the parameters as tensors, ready for safetensors."""
        parts = {"centre": self.centre, "transform": self.transform, "psi": self.psi, "tail": np.array(self.tail)}
        return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in parts.items()}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor]) -> TwoCovariance:
        """Take saved parameters; those that don't belong together are refused."""
        centre, transform, psi = (state[name].numpy().astype(np.float64) for name in ("centre", "transform", "psi"))
        tail = float(state["tail"])
        fits = transform.shape == (*centre.shape, *psi.shape)
        finite = all(np.isfinite(part).all() for part in (centre, transform, psi))
        if not fits or not finite or (psi < 0).any() or not tail > 0:
            raise DataError(
                f"saved evidence: centre {centre.shape}, transform {transform.shape}, psi {psi.shape} and tail {tail} "
                "do not belong together, are negative or not finite; load another copy of the model."
            )
        return cls(centre, transform, psi, tail)
