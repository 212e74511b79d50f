"""Things that take a moment to work out: suggestions, what-if, the map (layer: service).

They read the journal only, so the stream goes on meanwhile; one of a kind is worked out at a time and then kept.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from talon_ocd.catalog import Catalog, grid, what_if
from talon_ocd.durable import DurableStream, Journal
from talon_ocd.online import FeatureStream
from talon_ocd.service import schemas
from talon_ocd.service.examples import AXES
from talon_ocd.service.views import Views
from talon_ocd.talon import Talon

Floats = npt.NDArray[np.float32]
SUPPOSED = 2000
"""Newest images that a what-if answers anew."""
ROUNDS = 12
"""Steps of the power iteration that finds the axes of the map."""


class Insight:
    """Works out what is shown beside the categories."""

    def __init__(self, catalog: Catalog, journal: Journal, talon: Talon, stream: DurableStream) -> None:
        self._catalog, self._journal, self._talon, self._stream = catalog, journal, talon, stream
        self._mapping, self._supposing = threading.Lock(), threading.Lock()
        self._axes: tuple[int, Floats, Floats] | None = None
        self._supposed: tuple[int, schemas.WhatIf] | None = None

    def suggestions(self, limit: int, views: Views) -> schemas.Suggestions:
        """Return pairs of categories that look like one, by the cosine of their centres, the surest first."""
        found = self._catalog.suggestions(limit)
        return schemas.Suggestions(
            items=[
                schemas.Suggestion(
                    first=views.category(pair.first),
                    second=views.category(pair.second),
                    score=pair.score,
                    unit=pair.unit,
                )
                for pair in found
            ]
        )

    def what_if(self) -> schemas.WhatIf:
        """Return how many categories there would be at other thresholds; worked out again when a tenth has come."""
        answered = self._stream.answered
        with self._supposing:
            if self._supposed is None or answered > 1.1 * self._supposed[0]:
                finer = float(self._journal.meta("settings", {}).get("finer", 0.0))
                unit, current, values = grid(self._journal.meta("rule"), finer)
                found = what_if(self._journal, lambda value: self._fresh(unit, value), values, unit, current, SUPPOSED)
                self._supposed = answered, schemas.WhatIf.model_validate(found.to_dict())
            return self._supposed[1]

    def _fresh(self, unit: str, value: float) -> FeatureStream:
        """Return a stream of the same model that has seen nothing; its encoder can't learn from stored features."""
        adapt = "prototypes" if "prototypes" in self._stream.config.adapt else "none"
        if unit == "cosine":
            return self._talon.stream(threshold=value, adapt=adapt).discovery
        return self._talon.stream(finer=value, adapt=adapt).discovery

    def map(self, limit: int) -> schemas.Map:
        """Return the newest images, projected."""
        rows = self._journal.query("SELECT idx FROM features ORDER BY idx DESC LIMIT ?", (limit,))
        indices, features = self._journal.features([int(row["idx"]) for row in rows])
        if not indices:
            return schemas.Map(points=[], axes=AXES)
        values = features.numpy()
        with self._mapping:
            mean, axes = self._axes_for(values)
        homes = self._homes(indices)
        places = ((values - mean) @ axes.T).astype(np.float64).round(4).tolist()
        points = zip(indices, places, strict=True)
        return schemas.Map(
            points=[schemas.MapPoint(index=index, x=x, y=y, category=homes[index]) for index, (x, y) in points],
            axes=AXES,
        )

    def _axes_for(self, values: Floats) -> tuple[Floats, Floats]:
        """Return mean and axes; those of a while ago as long as the stream has not grown much: the map stays calm."""
        answered = self._stream.answered
        if self._axes is None or answered > 1.5 * self._axes[0] or values.shape[1] != self._axes[2].shape[1]:
            mean = values.mean(0)
            self._axes = answered, mean, principal_axes(values - mean)
        return self._axes[1], self._axes[2]

    def _homes(self, indices: Sequence[int]) -> dict[int, int]:
        rows = self._journal.query_in("SELECT idx, home FROM decisions WHERE idx IN (*)", indices)
        homes = {int(row["idx"]): int(row["home"]) for row in rows}
        ends = {home: self._catalog.resolve(home) if home >= 0 else -1 for home in set(homes.values())}
        return {index: ends[home] for index, home in homes.items()}


def principal_axes(centred: Floats) -> Floats:
    """Return the two directions ``(2, D)`` in which centred points ``(N, D)`` differ most; always the same ones.

    >>> points = np.array([[3.0, 0.0, 0.0], [-3.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, -1.0, 0.0]], np.float32)
    >>> np.abs(principal_axes(points)).round(2).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    size = centred.shape[1]
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((size, min(4, size))))[0]
    for _ in range(ROUNDS):  # two spare directions make the first two converge fast
        basis = np.linalg.qr(centred.T @ (centred @ basis))[0]
    order = np.argsort(-np.square(centred @ basis).sum(0), kind="stable")[:2]
    axes = basis[:, order].T
    signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])
    axes = axes * np.where(signs == 0, 1, signs)[:, None]
    return np.pad(axes, ((0, 2 - len(axes)), (0, 0))).astype(np.float32)
