"""Which of a stream's newest answers were discovered categories (layer: online).

What a stream brings changes: after a season of known kinds comes a new one. So its share of known classes is that of
its newest answers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Lately:
    """The last ``window`` answers.

    Attributes:
        discovered: whether each was a discovered category ``(N,)``, oldest first.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.discovered: Bools = np.empty(0, np.bool_)
        self._found = 0
        self._leaving: Ints = np.zeros(window + 1, np.int64)

    def add(self, discovered: Bools) -> None:
        """Take in the next answers ``(B,)``."""
        held = np.concatenate([self.discovered, discovered])
        self.discovered = held[max(len(held) - self.window, 0) :]
        self._found = int(np.count_nonzero(self.discovered))
        # Of the i oldest that make room for i more, so many were discovered; nobody leaves while there is room.
        room = self.window - len(self.discovered)
        self.discovered.cumsum(out=self._leaving[room + 1 :])

    def counts(self, answers: Ints, discovered: Ints) -> tuple[Ints, Ints]:
        """Return how many answers there are ``(B,)``, and how many of them were discovered categories ``(B,)``.

        That is when so many more have come ``(B,)``, at most ``window``, so many of them ``discovered``.
        """
        held = np.minimum(len(self.discovered) + answers, self.window)
        return held, self._found - self._leaving.take(answers) + discovered
