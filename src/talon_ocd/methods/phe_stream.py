"""Hamming ball inference of PHE (layer: methods; sections 3.9 and 5.1).

A list of codes, known classes first. An image joins the listed code that differs in the fewest bits if these are at
most ρ, else its own code is listed as a new category. The first of equals wins, an exact match always.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from talon_ocd.methods.streams import Match, OneByOneStream, Vector

Alphabet = Literal["same", "legacy"]
Bits = npt.NDArray[np.float32]
FIRST_ROOM = 256


class CodeList:
    """Codes to compare with: agreements of a code q in {0, 1}^L with all of them are ``W q + o``, one product.

    A listed code r agrees in ``q·r + (1 - q)·(1 - r)`` bits, so its row of W is ``2 r - 1`` and its o the number of
    its zeros. In the ``legacy`` alphabet the first codes are signs -1 and +1, which a bit 0 never equals: W is ``r``
    and o is 0. All of it is small whole numbers, which float32 adds exactly.
    """

    def __init__(self, known: Bits, alphabet: Alphabet = "same") -> None:
        self.bits = int(known.shape[1])
        self.size = 0
        self._weights = np.zeros((FIRST_ROOM, self.bits), np.float32)
        self._offsets = np.zeros(FIRST_ROOM, np.float32)
        for code in known:
            if alphabet == "legacy":
                self._append(code, 0.0)
            else:
                self.append(code)

    def append(self, code: Bits) -> None:
        """List a code ``(L,)`` of zeros and ones."""
        self._append(2.0 * code - 1.0, self.bits - float(code.sum()))

    def distances(self, code: Bits) -> Bits:
        """Return in how many bits a code ``(L,)`` differs from each listed one."""
        away: Bits = self.bits - (self._weights[: self.size] @ code + self._offsets[: self.size])
        return away

    def since(self, first: int) -> Bits:
        """Return the codes from number ``first`` on; all of them must have been appended."""
        codes: Bits = (self._weights[first : self.size] + 1.0) / 2.0
        return codes

    def _append(self, weights: Bits, offset: float) -> None:
        if self.size == len(self._weights):
            self._weights = np.concatenate([self._weights, np.zeros_like(self._weights)])
            self._offsets = np.concatenate([self._offsets, np.zeros_like(self._offsets)])
        self._weights[self.size], self._offsets[self.size] = weights, offset
        self.size += 1


class HammingStream(OneByOneStream):
    """Joins the nearest code within ρ bits. Similarity is the share of equal bits, the threshold ``1 - ρ / L``.

    Known classes keep their ids even if two have the same code: images then join the first of them.
    """

    unit = "share of equal bits"

    def __init__(self, network: nn.Module, centres: Tensor, radius: int, alphabet: Alphabet = "same") -> None:
        """Start with the codes of centres ``(C, L)``: their signs."""
        self._known: Bits = (centres > 0).float().cpu().numpy()
        super().__init__(network, len(centres), 1.0 - radius / centres.shape[1])
        self._alphabet = alphabet
        self.codes = CodeList(self._known, alphabet)

    @property
    def size(self) -> int:
        """Codes in the list."""
        return self.codes.size

    def match(self, feature: Vector) -> Match:
        """Return the two nearest codes to a raw code ``(L,)``; its bits are 1 where it is positive."""
        away = self.codes.distances(_code(feature))
        if not len(away):
            return Match(-1, -1.0)
        best = int(away.argmin())
        similarity = self._similarity(away[best])
        if len(away) == 1:
            return Match(best, similarity)
        away[best] = np.inf
        second = int(away.argmin())
        return Match(best, similarity, second, self._similarity(away[second]))

    def found(self, feature: Vector, match: Match) -> None:
        """List the code."""
        self.codes.append(_code(feature))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the codes of the new categories."""
        return {"new_codes": torch.from_numpy(self.codes.since(self.known)).to(torch.uint8)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take the codes of new categories over."""
        self.codes = CodeList(self._known, self._alphabet)
        for code in state["new_codes"].float().numpy():
            self.codes.append(code)

    def _similarity(self, away: Any) -> float:
        return 1.0 - float(away) / self.codes.bits


def _code(raw: Vector) -> Bits:
    bits: Bits = (raw > 0).astype(np.float32)
    return bits
