"""The centre of each category, from the stored features of its newest images (layer: catalog)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from talon_ocd.catalog.totals import Bools, Ints
from talon_ocd.durable.journal import Journal

Floats32 = NDArray[np.float32]

USED = 16
"""Features that a centre is the mean of: the newest ones, in the encoder's present shape."""
GROWN = 0.125
"""A centre is worked out again when its category has become larger or smaller by this share."""


class Centres:
    """Unit centres ``(size, D)`` of all categories; only those that have changed are worked out again.

    Attributes:
        rows: the centres; zeros where there is none.
        there: which categories have one.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.rows: Floats32 = np.zeros((0, 0), np.float32)
        self.there: Bools = np.zeros(0, np.bool_)
        self._members: Ints = np.zeros(0, np.int64)
        self._moved: Ints = np.zeros(0, np.int64)

    def refresh(self, members: Ints, moved: Ints) -> Ints:
        """Work out what has changed, given sizes ``(size,)`` and the last corrections ``(size,)``; returns the ids."""
        more = len(members) - len(self._members)
        self._members, self._moved = np.pad(self._members, (0, more)), np.pad(self._moved, (0, more))
        self.there = np.pad(self.there, (0, more))
        self.rows = np.pad(self.rows, ((0, more), (0, 0)))
        change = np.abs(members - self._members)
        stale = (change > GROWN * self._members) | ((change > 0) & (self._members < USED)) | (moved != self._moved)
        changed = np.flatnonzero(stale)
        if len(changed):
            kept_from = int(self._journal.meta("tidied", {}).get("features", 0))
            for category in changed.tolist():
                self._work_out(category, kept_from)
            self._members[changed], self._moved[changed] = members[changed], moved[changed]
        return changed

    def _work_out(self, category: int, kept_from: int) -> None:
        rows = self._journal.query(  # what is older has no feature any more: it is not even looked for
            "SELECT feature FROM decisions JOIN features USING (idx) WHERE home = ? AND idx >= ? "
            "ORDER BY idx DESC LIMIT ?",
            (category, kept_from, USED),
        )
        if not rows:  # only the image that began it keeps its feature for ever
            rows = self._journal.query(
                "SELECT feature FROM categories JOIN decisions ON idx = first_idx AND home = id "
                "JOIN features USING (idx) WHERE id = ?",
                (category,),
            )
        self.there[category] = bool(rows)
        if not rows:
            return
        features = np.frombuffer(b"".join(row["feature"] for row in rows), np.float16).reshape(len(rows), -1)
        if not self.rows.shape[1]:
            self.rows = np.zeros((len(self.there), features.shape[1]), np.float32)
        mean = features.astype(np.float32).mean(axis=0)
        self.rows[category] = mean / max(float(np.sqrt(mean @ mean)), 1e-12)
