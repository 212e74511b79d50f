"""MKEE, LTC's generator of pseudo-unknown images (layer: methods; section 3.11).

Two images are mixed, then moved one step towards where the classifier is unsure and real features are rare:

    J = mean softmax entropy - w ρ,  ρ = mean over pairs of exp(-||z - z_ref||² / (2 σ²)),  x <- x + s ∇J / ||∇J||

Images are trunk outputs here. The step keeps the share of an image's length that the released step has in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

PIXEL_LENGTH = math.sqrt(3 * 224 * 224)
"""Length of a picture whose pixels are normalised to variance 1: the yardstick of the released step."""

Encode = Callable[[Tensor], tuple[Tensor, Tensor]]
"""``hidden (B, *hidden_shape) -> unit features (B, D) and logits (B, C)``."""


@dataclass(frozen=True)
class Mkee:
    """Settings of MKEE.

    Attributes:
        mixing: a of ``λ ~ Beta(a, a)``, one λ a batch.
        step: length of the ascent step in normalised pixels of a 224 x 224 picture.
        density_weight: w, weight of ρ in J.
        bandwidth: σ over the median distance between real features.
    """

    mixing: float = 0.4
    step: float = 0.05
    density_weight: float = 0.1
    bandwidth: float = 1.0

    def generate(self, hidden: Tensor, references: Tensor, encode: Encode, random: np.random.Generator) -> Tensor:
        """Return pseudo-unknowns ``(B, *hidden_shape)`` of real ``hidden``, whose unit features are ``references``."""
        order = torch.from_numpy(random.permutation(len(hidden))).to(hidden.device)
        start = mix(hidden, order, random.beta(self.mixing, self.mixing))
        references = references.detach()
        width = self.bandwidth * median_distance(references)

        def objective(images: Tensor) -> Tensor:
            features, logits = encode(images)
            return entropy(logits) - self.density_weight * density(features, references, width)

        return ascend(start, objective, self.step / PIXEL_LENGTH)


def mix(hidden: Tensor, order: Tensor, share: float) -> Tensor:
    """Return ``λ x + (1 - λ) x[order]`` of images ``(B, *hidden_shape)``.

    >>> mix(torch.tensor([[0.0], [1.0]]), torch.tensor([1, 0]), 0.25)
    tensor([[0.7500],
            [0.2500]])
    """
    return torch.lerp(hidden[order], hidden, share)


def ascend(images: Tensor, objective: Callable[[Tensor], Tensor], share: float) -> Tensor:
    """Return images ``(B, ...)`` after one step up the gradient; each step is ``share`` of its image's length.

    An image whose gradient is zero stays where it is.
    """
    start = images.detach().requires_grad_(True)
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(objective(start).sum(), start)
    directions = F.normalize(gradient.flatten(1), dim=1)
    lengths = images.flatten(1).norm(dim=1, keepdim=True)
    moved: Tensor = images.detach() + (share * lengths * directions).view_as(images)
    return moved


def entropy(logits: Tensor) -> Tensor:
    """Return the mean entropy of the softmax of logits ``(B, C)``.

    >>> round(entropy(torch.zeros(1, 4)).item(), 5) == round(math.log(4), 5)
    True
    """
    logs = logits.log_softmax(dim=1)
    entropies = -(logs.exp() * logs).sum(dim=1)
    return entropies.mean()


def density(features: Tensor, references: Tensor, width: Tensor) -> Tensor:
    """Return ρ: the mean of Gaussian kernels between features ``(B, D)`` and references ``(R, D)``, all of length 1."""
    squares = (2.0 - 2.0 * features @ references.T).clamp(min=0.0)
    return torch.exp(-squares / (2.0 * width.square())).mean()


def median_distance(references: Tensor) -> Tensor:
    """Return the median distance between distinct unit features ``(R, D)``; 1 where there is none above 0.

    >>> round(median_distance(torch.eye(3)).item(), 5)
    1.41421
    """
    squares = (2.0 - 2.0 * references @ references.T).clamp(min=0.0)
    above = torch.ones_like(squares, dtype=torch.bool).triu(1)
    middle = squares[above].sqrt().median() if len(references) > 1 else squares.new_zeros(())
    return torch.where(middle > 0, middle, torch.ones_like(middle))
