"""Vectors as whole numbers in 8 bits, and how to part many of them in two (layer: memory).

Products of such vectors are sums that float32 holds exactly up to a thousand dimensions, and float64 always: the shape
of a product, the number of threads and the machine change nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from talon_ocd.memory.search import Floats, Ints

TURNS = 6
"""Most steps of 2-means."""

Codes = npt.NDArray[np.int8]


def whole_numbers(vectors: npt.NDArray[np.integer | np.floating]) -> tuple[Codes, npt.NDArray[np.float32]]:
    """Return vectors ``(N, D)`` as whole numbers up to 127, and one over their lengths ``(N,)``."""
    largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True, initial=0), np.finfo(np.float32).tiny)
    codes: Codes = np.rint(vectors * (127 / largest)).astype(np.int8)
    squares = np.einsum("nd,nd->n", codes, codes, dtype=np.int32)
    return codes, (1 / np.sqrt(np.maximum(squares, 1))).astype(np.float32)


def two_centres(codes: Codes) -> Ints | None:
    """Return two directions ``(2, D)`` that divide ``(N, D)`` by 2-means, ``None`` if they are all alike.

    It starts from the direction in which they differ most.
    """
    wide = codes.astype(np.float64)
    middle = wide.sum(axis=0)
    apart = wide[np.abs(len(wide) * wide - middle).max(axis=1).argmax()] * len(wide) - middle
    for _ in range(3):  # powers of the covariance, in whole numbers
        along = _along(wide, middle, apart)
        apart = _whole(along) @ wide * len(wide) - _whole(along).sum() * middle
    one = _along(wide, middle, apart) > 0
    for _ in range(TURNS):
        if one.all() or not one.any():
            return None
        sums = np.stack([wide[one].sum(axis=0), wide[~one].sum(axis=0)])
        centres, scales = whole_numbers(sums)
        products = wide @ centres.T.astype(np.float64) * scales
        before, one = one, products[:, 0] > products[:, 1]
        if (one == before).all():
            break
    return sums.astype(np.int64)


def _along(wide: Floats, middle: Floats, direction: Floats) -> Floats:
    """Return how far vectors ``(N, D)`` are from their middle along a direction, in whole numbers ``(N,)``."""
    direction = _whole(direction)
    along: Floats = wide @ direction * len(wide) - middle @ direction
    return along


def _whole(vector: Floats) -> Floats:
    """Return a vector as whole numbers up to 127."""
    whole: Floats = whole_numbers(vector[None])[0][0].astype(np.float64)
    return whole
