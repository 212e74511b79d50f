"""Second thoughts about recent images (layer: memory): whose members are they, given all that came since?

Answers are given once and stay. But the categories that later images meet need not be made of early mistakes: the last
images are kept as coordinates, and now and then each is offered to all categories again, its own one without it. An
image that is pushed out leaves what it added where it was.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from talon_ocd.memory.beliefs import Beliefs, Ints
from talon_ocd.memory.two_covariance import Floats


class Recent:
    """The last ``capacity`` images: coordinates ``(N, d)``, what was answered, and where they belong by now.

    Attributes:
        pushed_out: images that are no longer kept.
    """

    def __init__(self, capacity: int, size: int) -> None:
        self._coordinates = np.empty((0, size))
        self._answers = np.empty(0, np.int64)
        self._homes = np.empty(0, np.int64)
        self.capacity, self._next, self.pushed_out = capacity, 0, 0

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, coordinates: Floats, categories: Ints) -> None:
        """Keep images ``(B, d)`` with their answers ``(B,)``; the oldest make room."""
        room = max(self.capacity - len(self), 0)
        self._coordinates = np.concatenate([self._coordinates, coordinates[:room]])
        self._answers = np.concatenate([self._answers, categories[:room]])
        self._homes = np.concatenate([self._homes, categories[:room]])
        for row, category in zip(coordinates[room:], categories[room:].tolist(), strict=True):
            if self.capacity:
                place = self._next
                self._coordinates[place], self._answers[place], self._homes[place] = row, category, category
                self._next = (place + 1) % self.capacity
            self.pushed_out += 1

    def rethink(self, beliefs: Beliefs, hurdle: float, sweeps: int) -> int:
        """Let images move to the category that explains them best, ``sweeps`` times; returns how many moved.

        ``hurdle`` is what the evidence must reach against a new category: an image that is alone in its own stays
        unless another one passes it.
        """
        moves = 0
        squares = np.concatenate([self._coordinates, self._coordinates**2], axis=1).astype(np.float32)
        for _ in range(sweeps):
            homes = self._best(beliefs, squares, hurdle)
            moved = homes != self._homes
            if not moved.any():
                break
            counts, sums = beliefs.counts.copy(), beliefs.sums.copy()
            for sign, where in ((-1.0, self._homes[moved]), (1.0, homes[moved])):
                np.add.at(counts, where, sign)
                np.add.at(sums, where, sign * self._coordinates[moved])
            sums[counts == 0.0] = 0.0
            beliefs.replace(counts, sums)
            self._homes = homes
            moves += int(moved.sum())
        return moves

    def _best(self, beliefs: Beliefs, squares: np.ndarray, hurdle: float) -> Ints:
        """Return the best category of each image ``(N,)``, its own one judged without it."""
        screened = beliefs.screen(squares)
        rows = np.arange(len(self))
        screened[rows, self._homes] = np.inf
        others = screened.argmin(axis=1)
        there = beliefs.log_odds(self._coordinates, others)
        alone = beliefs.counts[self._homes] - 1.0 < 0.5
        here = beliefs.model.log_odds(
            self._coordinates, beliefs.counts[self._homes] - 1.0, beliefs.sums[self._homes] - self._coordinates
        )
        here = np.where(alone, hurdle, here)
        return np.where((there > here) & (there >= hurdle), others, self._homes)

    def thoughts(self) -> tuple[Ints, Ints, Ints]:
        """Return position ``(N,)`` in the stream, answer ``(N,)`` and present category ``(N,)``, oldest first."""
        order = np.roll(np.arange(len(self)), -self._next)
        return self.pushed_out + np.arange(len(self)), self._answers[order], self._homes[order]

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything, ready for safetensors."""
        return {
            "coordinates": torch.from_numpy(self._coordinates.copy()),
            "answers": torch.from_numpy(self._answers.copy()),
            "homes": torch.from_numpy(self._homes.copy()),
            "next": torch.tensor(self._next),
            "pushed_out": torch.tensor(self.pushed_out),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on with saved images."""
        self._coordinates = state["coordinates"].numpy().copy()
        self._answers, self._homes = state["answers"].numpy().copy(), state["homes"].numpy().copy()
        self._next, self.pushed_out = int(state["next"]), int(state["pushed_out"])
