"""Models of two Gaussians and members of their categories, drawn at random; what the tests of the evidence share."""

from __future__ import annotations

import numpy as np

from talon_ocd.memory import TwoCovariance
from talon_ocd.memory.two_covariance import Floats

TAILS = (np.inf, 4.0, 25.0)


def drawn_model(size: int, seed: int, tail: float = np.inf, feature_size: int | None = None) -> TwoCovariance:
    """ψ between 0.1 and 10; unit features of ``feature_size`` dimensions come out as coordinates of about that size."""
    random = np.random.default_rng(seed)
    wide = size + 2 if feature_size is None else feature_size
    psi = np.sort(10.0 ** random.uniform(-1.0, 1.0, size))[::-1].copy()
    transform = random.normal(size=(wide, size)) * np.sqrt(1.0 + psi)
    return TwoCovariance(random.normal(size=wide) * 0.1, transform, psi, tail)


def drawn_members(model: TwoCovariance, sizes: list[int], seed: int) -> list[Floats]:
    """Coordinates ``(n, d)`` of n members of a category each."""
    random = np.random.default_rng(seed)
    means = random.normal(size=(len(sizes), model.size)) * np.sqrt(model.psi)
    return [mean + random.normal(size=(n, model.size)) for n, mean in zip(sizes, means, strict=True)]


def counts_and_sums(members: list[Floats]) -> tuple[Floats, Floats]:
    """What is kept of categories' members: ``(K,)`` and ``(K, d)``."""
    return np.array([float(len(rows)) for rows in members]), np.stack([rows.sum(axis=0) for rows in members])
