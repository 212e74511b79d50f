"""Streams of exact descriptors (layer: methods; section 3.8): images with the same code are one category.

There is no distance between codes: a descriptor is in the dictionary, or it founds a category. The dictionary starts
empty, so known classes are found anew and get ids from C on; the ids 0 to C - 1 stay unused. Scores match ids to
classes, and do not mind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from talon_ocd.methods.streams import FrozenStream
from talon_ocd.online import Assignment

Values = npt.NDArray[Any]
Codes = npt.NDArray[np.uint8]
Describe = Callable[[Values], Codes]
"""``values (B, L) -> descriptors (B, W)``: whole numbers below 256, equal where the category is the same."""
Placed = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]

SAME = 1.0
"""Similarity of a descriptor that is in the dictionary; any other has 0."""


class CodeStream(FrozenStream):
    """Numbers descriptors by their first appearance; memory holds one row a descriptor.

    Attributes:
        describe: makes descriptors of what the network returns.
    """

    unit = "equality"

    def __init__(self, network: nn.Module, known: int, describe: Describe) -> None:
        super().__init__(network, known, SAME)
        self.describe = describe
        self._ids: dict[bytes, int] = {}

    @property
    def size(self) -> int:
        """The known classes, which have no code here, and the descriptors so far."""
        return self.known + len(self._ids)

    def place(self, features: Tensor) -> Assignment:
        """Look every descriptor up; new ones enter the dictionary in the order of the images."""
        if not len(features):
            return Assignment.from_rows([])
        codes, first, inverse = self._distinct(features)
        ids, new = np.empty(len(codes), np.int64), np.zeros(len(codes), np.bool_)
        for at in first.argsort():
            key = codes[at].tobytes()
            new[at] = key not in self._ids
            ids[at] = self._ids.setdefault(key, self.size)
        founded = np.zeros(len(features), np.bool_)
        founded[first[new]] = True
        return _answers(ids[inverse], founded)

    def look(self, features: Tensor) -> Assignment:
        """Look every descriptor up; each new one would get the next id."""
        if not len(features):
            return Assignment.from_rows([])
        codes, _, inverse = self._distinct(features)
        ids = np.array([self._ids.get(code.tobytes(), self.size) for code in codes], np.int64)[inverse]
        return _answers(ids, ids == self.size)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the dictionary: ``codes`` ``(K, W)`` in the order of their ids."""
        rows = np.frombuffer(bytearray().join(self._ids), np.uint8)
        return {"codes": torch.from_numpy(rows.reshape(len(self._ids), -1 if self._ids else 0))}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take a dictionary over."""
        codes = state["codes"].numpy()
        self._ids = {code.tobytes(): self.known + number for number, code in enumerate(codes)}

    def _distinct(self, features: Tensor) -> tuple[Codes, npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Return the distinct descriptors, where each appears first, and which one every row has."""
        codes = self.describe(features.numpy())
        distinct, first, inverse = np.unique(codes, axis=0, return_index=True, return_inverse=True)
        return distinct, first, inverse.reshape(-1)  # numpy 2.0 returned a column


def _answers(ids: npt.NDArray[np.int64], founded: npt.NDArray[np.bool_]) -> Assignment:
    nobody = np.full(len(ids), -1, np.int64)
    return Assignment(ids, founded, np.where(founded, 0.0, SAME), nobody, nobody.astype(np.float64))
