"""How local features vary together inside an image (layer: backbones).

A mean over all places of an image says what is in it; their covariance says what goes with what, which tells kinds
apart that are made of the same parts. The square root of the covariance is what the literature settled on (Li et al.,
"Is Second-order Information Helpful for Large-scale Visual Recognition?", 2017).
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WITHOUT_DOUBLE = frozenset({"mps"})
"""Kinds of devices that know no float64."""


class Texture(nn.Module):
    """Square root of the covariance of local features: ``(B, P, C)`` -> ``(B, R(R+1)/2)``, centred, of unit length.

    Attributes:
        directions: the R directions of local features that are looked at ``(C, R)``; ``learn`` finds them.
        mean: mean of the unit square roots ``(R(R+1)/2,)``.
    """

    directions: Tensor
    mean: Tensor

    def __init__(self, channels: int, rank: int) -> None:
        super().__init__()
        self.size = rank * (rank + 1) // 2
        self.register_buffer("directions", torch.eye(channels, rank))
        self.register_buffer("mean", torch.zeros(self.size))

    def forward(self, local: Tensor) -> Tensor:
        """Describe images by their local features, in full precision whatever the rest of the head has."""
        with torch.autocast(local.device.type, enabled=False):
            return F.normalize(self._roots(local) - self.mean, dim=1)

    def learn(self, local: Tensor) -> None:
        """Look at the directions in which the local features ``(N, P, C)`` of some images vary most."""
        rows = _double(local.flatten(0, 1))
        rows = rows - rows.mean(dim=0)
        _, vectors = torch.linalg.eigh(rows.T @ rows)  # ascending
        self.directions.copy_(vectors[:, -self.directions.shape[1] :])
        self.mean.copy_(self._roots(local).mean(dim=0))

    def _roots(self, local: Tensor) -> Tensor:
        """Return unit rows ``(B, R(R+1)/2)``: upper triangles whose products are those of the whole matrices.

        In float64, because roots of eigenvalues that should be 0 show the square root of the rounding.
        """
        places = _double(local.float() @ self.directions)
        places = places - places.mean(dim=1, keepdim=True)
        values, vectors = torch.linalg.eigh(places.transpose(1, 2) @ places)
        roots = (vectors * values.clamp(min=0.0).sqrt().unsqueeze(1)) @ vectors.transpose(1, 2)
        row, column = torch.triu_indices(*roots.shape[1:], device=roots.device)
        twice = torch.where(row == column, 1.0, sqrt(2.0))
        return F.normalize(roots[:, row, column] * twice, dim=1).float().to(local.device)


def _double(values: Tensor) -> Tensor:
    """Return values in float64; on the CPU if their device has no such numbers."""
    return (values.cpu() if values.device.type in WITHOUT_DOUBLE else values).double()
