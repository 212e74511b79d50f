"""What PHE minimises (layer: methods; section 3.9): prototype logits, hash centres, and how far apart these must lie.

Pure functions of tensors. Letters: B images, C known classes, P prototypes a class, D feature size, L bits.
"""

from __future__ import annotations

from itertools import accumulate
from math import comb
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

DistanceKind = Literal["unit", "squared"]
BoundKind = Literal["single", "cumulative"]
ACTIVATION_FLOOR = 1e-4
SMALLEST_SQUARE = 1e-12
"""The root of a squared distance has no gradient at 0; below this the pull of a prototype has nothing left to do."""
OTHERS_WEIGHT = -0.5
SHARPNESS = 3.0


def activations(features: Tensor, prototypes: Tensor, kind: DistanceKind = "unit") -> Tensor:
    """Return ``log((d + 1) / (d + 1e-4))`` of features ``(B, D)`` and prototypes ``(K, D)`` as ``(B, K)``.

    ``unit``: d is the distance of unit vectors (released code); ``squared``: the squared one of raw vectors (paper).

    >>> [round(value, 7) for value in activation(torch.tensor([1.0, 0.5], dtype=torch.float64)).tolist()]
    [0.6930472, 1.0984123]
    """
    if kind == "unit":
        cosine = F.normalize(features, dim=1) @ F.normalize(prototypes, dim=1).T
        return activation((2.0 - 2.0 * cosine).clamp(min=SMALLEST_SQUARE).sqrt())
    lengths = features.square().sum(dim=1)[:, None] + prototypes.square().sum(dim=1)[None, :]
    return activation((lengths - 2.0 * features @ prototypes.T).clamp(min=0.0))


def activation(distance: Tensor) -> Tensor:
    """Return what a distance is worth: much when small, nothing when large."""
    return ((distance + 1.0) / (distance + ACTIVATION_FLOOR)).log()


def class_logits(active: Tensor) -> Tensor:
    """Return ``(B, C)`` of activations ``(B, C, P)``: a class's own ones, less half of all others."""
    own = active.sum(dim=2)
    return own + OTHERS_WEIGHT * (own.sum(dim=1, keepdim=True) - own)


def centre_loss(codes: Tensor, centres: Tensor, labels: Tensor) -> Tensor:
    """Return L_f: the cross-entropy of the cosines between codes ``(B, L)`` and centres ``(C, L)``."""
    return F.cross_entropy(F.normalize(codes, dim=1) @ F.normalize(centres, dim=1).T, labels)


def soft_centres(centres: Tensor) -> Tensor:
    """Return ĥ = tanh(3 h): nearly the sign, with a gradient."""
    return torch.tanh(SHARPNESS * centres)


def separation_loss(soft: Tensor, d_max: int, share: float = 0.95) -> Tensor:
    """Return L_sep of soft centres ``(C, L)``: what each lacks, over all others, to a distance of ``d_max`` bits.

    ``½ (share · L - ĥ_c · ĥ_c')`` is the distance; ``share`` 0.95 (released code; paper: 1) asks for a little more.
    """
    distance = 0.5 * (share * soft.shape[1] - soft @ soft.T)
    others = ~torch.eye(len(soft), dtype=torch.bool, device=soft.device)
    return (F.relu(d_max - distance) * others).sum() / len(soft)


def quantisation_loss(soft: Tensor) -> Tensor:
    """Return L_q: how far soft centres ``(C, L)`` are from being bits."""
    return (1.0 - soft.abs()).mean()


def largest_distance(bits: int, classes: int, bound: BoundKind = "single") -> int:
    """Return d_max: how many of ``bits`` bits the centres of ``classes`` classes can hope to differ in.

    The smallest d >= 2 with ``2^L / classes <= C(L, d - 1)`` (released code and the paper's table), or with the sum
    ``C(L, 0) + ... + C(L, d - 1)`` on the right (the paper's formula, after Gilbert and Varshamov). Where no single
    binomial is that large (few classes), it is the largest binomial's: ``L // 2 + 1``.

    >>> [largest_distance(bits, classes=200) for bits in (12, 16, 32, 64)]
    [3, 4, 10, 24]
    """
    room = [comb(bits, number) for number in range(bits + 1)]
    if bound == "cumulative":
        room = list(accumulate(room))
    enough = [d for d in range(2, bits + 2) if 2**bits <= room[d - 1] * classes]
    return enough[0] if enough else bits // 2 + 1


def radius(d_max: int) -> int:
    """Return ρ, the radius of a Hamming ball: balls of two centres that are ``d_max`` apart hardly meet."""
    return max(d_max // 2, 1)
