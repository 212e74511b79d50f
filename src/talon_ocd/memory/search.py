"""The two nearest prototypes of each feature, exactly (layer: memory).

One blocked matrix product finds the two best candidates in float32; both are scored again in float64, so that the shape
of the product (one image or a batch, few prototypes or many) can't change an answer by its rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PRODUCT = 2**21
"""Similarities a product: they stay in the processor's cache, memory stays bounded, and threads meet seldom."""
GROUP = 64
"""Neighbouring similarities of which only the largest is looked at first."""


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
    """Return the two prototypes ``(K, D)`` nearest to each unit feature ``(B, D)``; ties take the smaller id."""
    batch, size = len(features), len(prototypes)
    if size == 0:
        return Neighbours(torch.full((batch, 2), -1), torch.full((batch, 2), -torch.inf, dtype=torch.float64))
    values, ids = [], []
    step = max(PRODUCT // max(batch, 1), 2)
    for start in range(0, size, step):
        value, position = _best_two(features @ prototypes[start : start + step].T)
        values.append(value)
        ids.append(position + start)
    candidates = torch.cat(ids, dim=1)
    if candidates.shape[1] > 2:
        best = torch.cat(values, dim=1).topk(2, dim=1).indices
        candidates = candidates.gather(1, best)
    return _rescore(features, prototypes, candidates)


def _best_two(similarities: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two largest of each row ``(B, N)`` and where they are.

    ``topk`` looks at one number at a time: on a whole row it costs a sixth of the product. The maxima of groups are
    vectorised, and the two largest are in the two groups with the largest maxima, or in the rest that fills no group.
    """
    rows, columns = similarities.shape
    whole = columns // GROUP * GROUP
    if whole < 4 * GROUP:
        value, position = similarities.topk(min(2, columns), dim=1)
        return value, position
    groups = similarities[:, :whole].view(rows, -1, GROUP)
    chosen = groups.amax(dim=2).topk(2, dim=1).indices
    few = groups.gather(1, chosen[:, :, None].expand(-1, -1, GROUP)).flatten(1)
    value, place = torch.cat([few, similarities[:, whole:]], dim=1).topk(2, dim=1)
    inside = chosen.gather(1, (place // GROUP).clamp(max=1)) * GROUP + place % GROUP
    return value, torch.where(place < 2 * GROUP, inside, place - 2 * GROUP + whole)


def _rescore(features: Tensor, prototypes: Tensor, candidates: Tensor) -> Neighbours:
    """Order the candidates ``(B, 1 or 2)`` by their cosine in float64."""
    similarities = torch.einsum("bd,bnd->bn", features.double(), prototypes[candidates].double())
    if candidates.shape[1] == 1:
        missing = torch.full_like(candidates, -1)
        nothing = torch.full_like(similarities, -torch.inf)
        return Neighbours(torch.cat([candidates, missing], 1), torch.cat([similarities, nothing], 1))
    first, second = similarities[:, 0], similarities[:, 1]
    swap = (second > first) | ((second == first) & (candidates[:, 1] < candidates[:, 0]))
    order = torch.stack([swap, ~swap], dim=1).long()
    return Neighbours(candidates.gather(1, order), similarities.gather(1, order))
