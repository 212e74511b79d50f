"""Which of a stream's newest answers were discovered categories (layer: online).

What a stream brings changes: after a season of known kinds comes a new one. So its share of known classes is that of
its newest answers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]


class Lately:
    """The last answers of a stream: ``window`` of them are counted, up to ``waiting`` others are not yet.

    Attributes:
        discovered: whether each was a discovered category ``(N,)``, oldest first.
    """

    def __init__(self, window: int, waiting: int) -> None:
        self.window, self._held = window, window + waiting
        self.discovered: Bools = np.empty(0, np.bool_)

    def add(self, discovered: Bools) -> None:
        """Take in the next answers ``(B,)``."""
        held = np.concatenate([self.discovered, discovered])
        self.discovered = held[max(len(held) - self._held, 0) :]

    def counts(self, waiting: int) -> tuple[int, int]:
        """Return how many answers count, and how many of them were discovered categories; the newest still wait."""
        end = max(len(self.discovered) - waiting, 0)
        counted = self.discovered[max(end - self.window, 0) : end]
        return len(counted), int(np.count_nonzero(counted))

    def found(self, newest: int) -> int:
        """Return how many of the newest answers were discovered categories."""
        return int(np.count_nonzero(self.discovered[max(len(self.discovered) - newest, 0) :]))
