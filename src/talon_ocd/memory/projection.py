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
    copied. Which of the two it is depends on the matrix alone, not on the rows.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.size = matrix.shape[1]
        self.by_onednn = matrix.numel() > SMALL and torch.backends.mkldnn.is_available()
        if self.by_onednn:
            self._matrix = matrix.float().T.contiguous().to_mkldnn()
        else:
            self._matrix = F.pad(matrix.float(), (0, max(NARROWEST - self.size, 0))).contiguous()

    def __call__(self, rows: Tensor) -> Tensor:
        """Return products ``(ROWS, d)`` of float32 rows ``(ROWS, D)``."""
        if not self.by_onednn:
            return (rows @ self._matrix)[:, : self.size]
        products: Tensor = F.linear(self._matrix, rows.contiguous()).to_dense().T
        return products
