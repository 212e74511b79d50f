"""Evidence of single images and pairs of categories, one formula each; the package works them out for many at once."""

from __future__ import annotations

import numpy as np

from talon_ocd.memory import TwoCovariance
from talon_ocd.memory.merges import MOST_COMPARED
from talon_ocd.memory.two_covariance import Floats


def log_odds(model: TwoCovariance, coordinates: Floats, counts: Floats, sums: Floats) -> Floats:
    """Return L ``(B,)``: evidence for a category each, ``(B,)`` counts and ``(B, d)`` sums, against a new one."""
    means, variances, volume = model.predictive(counts, sums)
    distances = ((coordinates - means) ** 2 / variances).sum(axis=1)
    return model.new_surprise(coordinates) - model.surprise(distances) - volume


def same(model: TwoCovariance, counts: Floats, sums: Floats, other_counts: Floats, other_sums: Floats) -> Floats:
    """Return the log-odds ``(P,)`` that pairs of categories are one, given ``(P,)`` counts and ``(P, d)`` sums."""
    first, second = np.minimum(counts, MOST_COMPARED), np.minimum(other_counts, MOST_COMPARED)
    one = sums / np.maximum(counts, 1.0)[:, None] * first[:, None]
    two = other_sums / np.maximum(other_counts, 1.0)[:, None] * second[:, None]
    return _marginal(model, first + second, one + two) - _marginal(model, first, one) - _marginal(model, second, two)


def _marginal(model: TwoCovariance, counts: Floats, sums: Floats) -> Floats:
    """Return the part of log p(members) that depends on which of them share a mean."""
    grown = counts[:, None] * model.psi + 1.0
    result: Floats = 0.5 * (sums**2 * model.psi / grown - np.log(grown)).sum(axis=1)
    return result
