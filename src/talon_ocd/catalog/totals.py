"""How many images each category has, and since when (layer: catalog).

The journal keeps these totals with every answer; here they are columns, so that ten thousand categories are filtered
and sorted by a few array operations. Decisions are never counted.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from talon_ocd.durable.journal import Journal

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

COLUMNS = "id, answers, members, first_idx, first_at, last_idx, last_at"


class Totals:
    """Columns by category id; a category without an image has index -1 and time NaN.

    Attributes:
        known: number of known classes, which are there from the beginning.
        size: ids 0 .. size - 1 may exist.
    """

    def __init__(self, known: int) -> None:
        self.known = self.size = known
        self._counts: Ints = np.zeros((2, known), np.int64)
        self._places: Ints = np.full((2, known), -1, np.int64)
        self._times: Floats = np.full((2, known), np.nan)
        self._exists: Bools = np.ones(known, np.bool_)
        self._seen = -1

    @property
    def answers(self) -> Ints:
        """Images answered with each category."""
        return self._counts[0, : self.size]

    @property
    def members(self) -> Ints:
        """Images at home in each category."""
        return self._counts[1, : self.size]

    @property
    def first(self) -> Ints:
        """Index of the first image of each category."""
        return self._places[0, : self.size]

    @property
    def last(self) -> Ints:
        """Index of the last image of each category."""
        return self._places[1, : self.size]

    @property
    def times(self) -> Floats:
        """When the first and the last image of each category came ``(2, size)``."""
        return self._times[:, : self.size]

    @property
    def exists(self) -> Bools:
        """Which ids are categories."""
        return self._exists[: self.size]

    def refresh(self, journal: Journal, touched: Collection[int] = ()) -> None:
        """Read what answers have changed since, and the categories whose images people have moved."""
        if self._seen < 0:
            rows = journal.query(f"SELECT {COLUMNS} FROM categories")
        else:
            rows = journal.query(f"SELECT {COLUMNS} FROM categories WHERE last_idx >= ?", (self._seen,))
        rows += journal.query_in(f"SELECT {COLUMNS} FROM categories WHERE id IN (*)", sorted(touched))
        if not rows:
            return
        ids_read, *columns = zip(*rows, strict=True)
        self._reserve(max(ids_read) + 1)
        places = np.array(ids_read, np.int64)
        self._exists[places] = True
        self._counts[:, places] = columns[0], columns[1]
        for row, (index, time) in enumerate((columns[2:4], columns[4:6])):
            self._places[row, places] = [-1 if value is None else value for value in index]
            self._times[row, places] = [np.nan if value is None else value for value in time]
        self._seen = max(self._seen, int(self._places[1, places].max()), 0)

    def _reserve(self, size: int) -> None:
        self.size = max(self.size, size)
        more = size - len(self._exists)
        if more > 0:
            more = max(more, len(self._exists), 64)
            self._counts = np.pad(self._counts, ((0, 0), (0, more)))
            self._places = np.pad(self._places, ((0, 0), (0, more)), constant_values=-1)
            self._times = np.pad(self._times, ((0, 0), (0, more)), constant_values=np.nan)
            self._exists = np.pad(self._exists, (0, more))
