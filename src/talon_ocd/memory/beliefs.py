"""What is believed of every category: number and sum of its members (layer: memory).

Known classes come first, discovered categories follow in order of creation; ids are positions and are never reused. A
category that lost all its members to others is *empty*: it keeps its id, and no image joins it any more.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from talon_ocd.errors import DataError
from talon_ocd.memory.two_covariance import Floats, TwoCovariance

Ints = npt.NDArray[np.int64]
GROWTH = 1.5


class Beliefs:
    """Counts ``(K,)`` and sums ``(K, d)`` of members in the coordinates of a model.

    Attributes:
        model: the two Gaussians.
        known: C, the number of known classes.
        size: K, the number of categories, empty ones included.
    """

    def __init__(self, model: TwoCovariance, counts: Floats, sums: Floats) -> None:
        if sums.shape != (len(counts), model.size):
            raise DataError(f"{len(counts)} counts and sums {sums.shape} don't fit {model.size} coordinates.")
        self.model, self.known, self.size = model, len(counts), len(counts)
        self._counts, self._sums = counts.astype(np.float64), sums.astype(np.float64)
        width = 2 * model.size + 1
        self._screen = np.empty((len(counts), width), np.float32)
        self.refresh(np.arange(self.size))

    @property
    def counts(self) -> Floats:
        """Members of each category ``(K,)``, a view."""
        return self._counts[: self.size]

    @property
    def sums(self) -> Floats:
        """Sums of members' coordinates ``(K, d)``, a view."""
        return self._sums[: self.size]

    @property
    def living(self) -> int:
        """Categories with members."""
        return int(np.count_nonzero(self.counts))

    def found(self, member: Floats) -> int:
        """Make a category of one member ``(d,)``; returns its id."""
        if self.size == len(self._counts):
            self._grow(max(int(self.size * GROWTH), 16))
        category, self.size = self.size, self.size + 1
        self._counts[category], self._sums[category] = 1.0, member
        self.refresh(np.array([category]))
        return category

    def join(self, category: int, member: Floats) -> None:
        """Add a member ``(d,)`` to a category: the conjugate update."""
        self._counts[category] += 1.0
        self._sums[category] += member
        self.refresh(np.array([category]))

    def replace(self, counts: Floats, sums: Floats) -> None:
        """Put other counts ``(K,)`` and sums ``(K, d)`` in place."""
        self.counts[:], self.sums[:] = counts, sums
        self.refresh(np.arange(self.size))

    def refresh(self, categories: Ints) -> None:
        """Prepare ``screen`` after the members of distinct categories ``(L,)`` changed."""
        means, variances, volume = self.model.predictive(self._counts[categories], self._sums[categories])
        if np.isinf(self.model.tail):
            weight, base = np.ones(len(categories)), 2.0 * volume
        else:
            # Density falls with (ν + distance) e^(2 volume / (ν + d)): a product that is linear in z and z².
            weight = np.exp(2.0 * volume / (self.model.tail + self.model.size))
            base = self.model.tail * weight
        size = self.model.size
        rows = np.empty((len(categories), 2 * size + 1))
        rows[:, :size] = weight[:, None] * -2.0 * means / variances
        rows[:, size:-1] = weight[:, None] / variances
        rows[:, -1] = base + weight * (means**2 / variances).sum(axis=1)
        rows[self._counts[categories] == 0.0] = 0.0
        rows[self._counts[categories] == 0.0, -1] = np.inf  # nobody joins an empty category
        self._screen[categories] = rows

    def screen(
        self, squares: npt.NDArray[np.float32], categories: Ints | slice = slice(None)
    ) -> npt.NDArray[np.float32]:
        """Return float32 ``(B, L)`` that are the smaller, the better a category explains an image.

        ``squares`` are rows ``z, z²`` ``(B, 2d)``; one product for all categories.
        """
        rows = self._screen[: self.size][categories]
        result: npt.NDArray[np.float32] = squares @ rows[:, :-1].T + rows[:, -1]
        return result

    def log_odds(self, coordinates: Floats, categories: Ints) -> Floats:
        """Return the exact evidence ``(B,)`` of a category each against a new one; -inf for an empty one."""
        found = self.model.log_odds(coordinates, self._counts[categories], self._sums[categories])
        return np.where(self._counts[categories] > 0.0, found, -np.inf)

    def copy(self) -> Beliefs:
        """Return an independent copy."""
        return self.from_state_dict(self.model, self.state_dict())

    def state_dict(self) -> dict[str, Tensor]:
        """Return counts, sums and the number of known classes, ready for safetensors."""
        return {
            "counts": torch.from_numpy(self.counts.copy()),
            "sums": torch.from_numpy(self.sums.copy()),
            "known": torch.tensor(self.known),
        }

    @classmethod
    def from_state_dict(cls, model: TwoCovariance, state: Mapping[str, Tensor]) -> Beliefs:
        """Go on with saved counts and sums."""
        beliefs = cls(model, state["counts"].numpy(), state["sums"].numpy())
        beliefs.known = int(state["known"])
        return beliefs

    def _grow(self, capacity: int) -> None:
        for name in ("_counts", "_sums", "_screen"):
            old = getattr(self, name)
            new = np.zeros((capacity, *old.shape[1:]), old.dtype)
            new[: self.size] = old[: self.size]
            setattr(self, name, new)
