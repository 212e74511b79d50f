"""The two nearest prototypes of each feature, exactly (layer: memory).

One blocked matrix product finds the two best candidates in float32; both are scored again in float64, so that the shape
of the product (one image or a batch, few prototypes or many) doesn't change an answer by its rounding. Only where three
or more prototypes lie within float32 rounding of each other can another one of them win.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

PRODUCT = 2**21
"""Similarities a product: they stay in the processor's cache, memory stays bounded, and threads meet seldom."""
WIDENED = 2**13
"""Prototypes in half precision that are float32 at a time."""
GROUP = 32
"""Neighbouring prototypes of which only the nearest is looked at first."""

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Neighbours:
    """The two nearest prototypes of B features, best first.

    Attributes:
        ids: ``(B, 2)`` int64; -1 where there is no such prototype.
        similarities: ``(B, 2)`` float64 cosines; ``-inf`` where there is no such prototype.
    """

    ids: Tensor
    similarities: Tensor


def nearest_two(features: Tensor, prototypes: Tensor) -> Neighbours:
    """Return the two prototypes ``(K, D)`` nearest to each unit feature ``(B, D)``; ties take the smaller id.

    Prototypes may be in half precision; they count as what they are rounded to.
    """
    batch, size = len(features), len(prototypes)
    if size == 0:
        return Neighbours(torch.full((batch, 2), -1), torch.full((batch, 2), -torch.inf, dtype=torch.float64))
    features = features.detach()
    step = max(PRODUCT // max(batch, 1), 2)
    if prototypes.dtype != features.dtype:  # half precision: a product takes a float32 copy of its block
        step = min(step, WIDENED)
    starts = range(0, size, step)
    found = [_two_nearest(prototypes[start : start + step].to(features.dtype) @ features.T) for start in starts]
    candidates = np.concatenate([places + start for start, (_, places) in zip(starts, found, strict=True)], axis=1)
    if candidates.shape[1] > 2:
        _, best = two_largest(np.concatenate([values for values, _ in found], axis=1))
        candidates = np.take_along_axis(candidates, best, axis=1)
    return best_two(features.numpy(), prototypes.numpy(), candidates)


def two_largest(values: Floats) -> tuple[Floats, Ints]:
    """Return the two largest of each row ``(B, N)`` and where they are, the first of equal ones; spoils ``values``.

    Two passes of numpy's vectorised ``argmax``: ``torch.topk`` looks at one number after another and makes no promise
    about equal ones.
    """
    rows = np.arange(len(values))
    first = values.argmax(axis=1)
    largest = values[rows, first]
    if values.shape[1] == 1:
        return largest[:, None], first[:, None]
    values[rows, first] = -np.inf
    second = values.argmax(axis=1)
    return np.stack([largest, values[rows, second]], axis=1), np.stack([first, second], axis=1)


def _two_nearest(similarities: Tensor) -> tuple[Floats, Ints]:
    """Return the two largest of each column ``(N, B)`` and where they are, as ``two_largest`` does: ``(B, 2)``.

    The two largest are in the two groups of rows with the largest maxima, or in the rest that fills no group; maxima
    of groups are the fastest pass over all numbers that there is.
    """
    count, batch = similarities.shape
    whole = count // GROUP * GROUP
    if whole < 4 * GROUP:
        return two_largest(similarities.T.contiguous().numpy())
    grouped = similarities[:whole].view(-1, GROUP, batch)
    _, groups = two_largest(grouped.amax(dim=1).T.contiguous().numpy())
    groups.sort(axis=1)  # the smaller id first: it wins among equal ones
    few = grouped.numpy()[groups, :, np.arange(batch)[:, None]].reshape(batch, 2 * GROUP)
    values, places = two_largest(np.concatenate([few, similarities[whole:].numpy().T], axis=1))
    inside = np.take_along_axis(groups, np.minimum(places // GROUP, 1), axis=1) * GROUP + places % GROUP
    return values, np.where(places < 2 * GROUP, inside, places - 2 * GROUP + whole)


def best_two(features: Floats, prototypes: Floats, candidates: Ints) -> Neighbours:
    """Return the two best of each feature's candidates ``(B, N)`` by their cosine in float64.

    A candidate of -1 is nobody, one that occurs twice counts once, and ties take the smaller id.
    """
    candidates = np.sort(candidates, axis=1)  # the smaller id first: it wins among equal ones
    chosen = prototypes.take(candidates, axis=0, mode="clip").astype(np.float64)
    similarities = np.einsum("bd,bnd->bn", features.astype(np.float64), chosen)
    nobody = candidates < 0
    nobody[:, 1:] |= candidates[:, 1:] == candidates[:, :-1]
    similarities[nobody] = -np.inf
    similarities, places = two_largest(similarities)
    found = np.take_along_axis(candidates, places, axis=1)
    found[np.isneginf(similarities)] = -1
    if found.shape[1] == 1:
        found = np.pad(found, ((0, 0), (0, 1)), constant_values=-1)
        similarities = np.pad(similarities, ((0, 0), (0, 1)), constant_values=-np.inf)
    return Neighbours(torch.from_numpy(found), torch.from_numpy(similarities))
