"""Which virtual images stay (layer: methods; section 3.10, step 2): those that look like no known class."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Refined(NamedTuple):
    """Indices ``(V',)`` of the images that stay, in their order, and the bound they keep to."""

    chosen: Tensor
    gamma: float


def refine(features: Tensor, centres: Tensor, wanted: int, gamma: float | None = None) -> Refined:
    """Keep virtual images whose mean cosine to all known class centres ``(C, D)`` is at most γ.

    Features ``(V, D)`` and centres have unit length. Without a ``gamma`` it is the one that keeps ``wanted`` images
    (the paper: about as many as there are labelled ones), or all if there are fewer; equal ones stay together.
    """
    closeness = features @ centres.mean(dim=0)  # the mean of products is the product with the mean
    if gamma is None:
        smallest = min(max(wanted, 1), len(closeness))
        gamma = float(closeness.kthvalue(smallest).values) if smallest else -1.0
    return Refined((closeness <= gamma).nonzero().flatten(), gamma)
