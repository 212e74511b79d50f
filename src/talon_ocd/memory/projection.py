"""Products of images with a matrix that stays as it is, row by row the same however images are batched (layer: memory).

float32 products of other sizes may round otherwise, and so how images were batched would show in what is made of them.
So all products have the same number of rows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

ROWS = 64
"""Rows of every product."""
NARROWEST = 16
"""Columns of a plain product, at least: narrower ones round otherwise row by row."""
SMALL = 2**16
"""Numbers in a matrix up to which a product is plain: then oneDNN gains little, and there is nothing to prepare."""


class Projection:
    """A matrix ``(D, d)`` that rows are multiplied with, in float32.

    If it is large, oneDNN multiplies: at twice the speed of a plain product where MKL, which makes those, doesn't use
    all that the processor has. Then the matrix is on the left and rows, which change, are its "weights": so nothing is
    copied. Which of the two it is depends on the matrix and the machine alone, not on the rows.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.size = matrix.shape[1]
        prepared = _prepared(matrix) if matrix.numel() > SMALL else None
        self.by_onednn = prepared is not None
        if prepared is None:
            prepared = F.pad(matrix.float(), (0, max(NARROWEST - self.size, 0))).contiguous()
        self._matrix = prepared

    def __call__(self, rows: Tensor) -> Tensor:
        """Return products ``(ROWS, d)`` of float32 rows ``(ROWS, D)``."""
        return _by_onednn(self._matrix, rows) if self.by_onednn else (rows @ self._matrix)[:, : self.size]


def _prepared(matrix: Tensor) -> Tensor | None:
    """Return the matrix ``(D, d)`` for oneDNN, if torch has it, takes it like this, and rounds all rows alike.

    The last two are tried out: a version or a processor that we don't know must not change answers or end a stream.
    """
    if not torch.backends.mkldnn.is_available():
        return None
    draws = torch.Generator("cpu").manual_seed(0)
    rows = torch.rand(ROWS, len(matrix), generator=draws, dtype=torch.float32, device="cpu") - 0.5
    try:
        prepared = matrix.float().T.contiguous().to_mkldnn()
        alike = torch.equal(_by_onednn(prepared, rows.flip(0)).flip(0), _by_onednn(prepared, rows))
    except RuntimeError:
        return None
    return prepared if alike else None


def _by_onednn(matrix: Tensor, rows: Tensor) -> Tensor:
    if torch.is_autocast_enabled("cpu"):  # a caller's, for the encoder; to ask is a tenth of what switching takes
        with torch.autocast("cpu", enabled=False):
            return _by_onednn(matrix, rows)
    products: Tensor = F.linear(matrix, rows.contiguous()).to_dense().T
    return products
