"""Two Gaussians that explain every category, known or new (layer: memory; ``docs/evidence.md``).

Class means are drawn from N(0, S_b), members of a class from N(mean, S_w). In the coordinates of this module S_w is the
identity and S_b is diagonal, ψ. Images are not equally clear, so that each has a scale of its own: the predictive
distributions are Student's, with ν degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from talon_ocd.errors import DataError

Floats = npt.NDArray[np.float64]
MOST_COUNTED = 50.0
"""Members after which a category counts as well known: no mean of real images gets more certain than that."""
TOGETHER = 64
"""Images whose coordinates are one product."""
NARROWEST = 16
"""Columns of that product, at least."""


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

        Products are in float32 and all of one size, the last one filled up with zeros: float32 products of other sizes
        may round otherwise, and so how images are batched would show in the answers. Narrow ones round otherwise row by
        row, so that they are filled up as well.
        """
        centre, transform = self._projection
        result = torch.empty(len(features), self.size, dtype=torch.float64)
        for start in range(0, len(features), TOGETHER):
            centred = features[start : start + TOGETHER].detach().float() - centre
            count = len(centred)
            if count < TOGETHER:
                centred = torch.nn.functional.pad(centred, (0, 0, 0, TOGETHER - count))
            lengths = torch.linalg.vector_norm(centred, dim=1, keepdim=True).clamp_(min=1e-12)
            result[start : start + TOGETHER] = (centred @ transform).div_(lengths)[:count, : self.size]
        return result.numpy()

    @cached_property
    def _projection(self) -> tuple[Tensor, Tensor]:
        """Centre ``(D,)`` and transform ``(D, d)`` in float32, with zeros up to ``NARROWEST`` columns."""
        transform = torch.from_numpy(self.transform).float()
        missing = max(NARROWEST - self.size, 0)
        return torch.from_numpy(self.centre).float(), torch.nn.functional.pad(transform, (0, missing)).contiguous()

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

    def surprise(self, distances: Floats) -> Floats:
        """Return minus the log-density, but for the volume, at squared distances in units of the variances."""
        if np.isinf(self.tail):
            return 0.5 * distances
        result: Floats = 0.5 * (self.tail + self.size) * np.log1p(distances / self.tail)
        return result

    def new_surprise(self, coordinates: Floats) -> Floats:
        """Return minus the log-density ``(B,)`` of being the first of a new category."""
        return self.surprise((coordinates**2) @ (1.0 / (1.0 + self.psi))) + self.new_volume

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
