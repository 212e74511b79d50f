"""How many categories there would be at another threshold, from stored features (layer: catalog).

Nothing is encoded anew and nothing learned: a fresh stream of the same rule answers the newest stored features, once
for every value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from talon_ocd.durable.journal import Journal
from talon_ocd.online import FeatureStream

MOST_IMAGES = 5000
"""Newest images that are answered for every value."""
NATS = (-8.0, -6.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
"""What evidence may be asked for besides what was rehearsed: more nats give more categories."""
AROUND = (-0.2, -0.15, -0.1, -0.05, -0.025, 0.0, 0.025, 0.05, 0.1, 0.15, 0.2)
"""Steps around a cosine threshold."""


@dataclass(frozen=True, slots=True)
class Point:
    """A value, the categories that there would be with the known classes, and those that would be discovered."""

    value: float
    categories: int
    discovered: int


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What a slider shows.

    Attributes:
        unit: of the values: ``nats`` (``finer``, where evidence decides) or ``cosine`` (the threshold).
        current: the value that the stream has.
        images: how many were answered for every value.
        points: smallest value first.
    """

    unit: str
    current: float
    images: int
    points: tuple[Point, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def grid(rule: Mapping[str, Any], finer: float = 0.0) -> tuple[str, float, list[float]]:
    """Return unit, current value and values worth trying for a stream with this rule (``journal.meta("rule")``).

    >>> grid({"unit": "cosine", "threshold": 0.9})[2]
    [0.7, 0.75, 0.8, 0.85, 0.875, 0.9, 0.925, 0.95]
    """
    if rule["unit"] != "cosine":
        return "nats", finer, sorted({*NATS, finer})
    threshold = float(rule["threshold"])
    return "cosine", threshold, [round(threshold + step, 6) for step in AROUND if -1.0 < threshold + step < 0.999]


def what_if(
    journal: Journal,
    stream: Callable[[float], FeatureStream],
    values: Sequence[float],
    unit: str,
    current: float,
    most: int = MOST_IMAGES,
) -> WhatIf:
    """Answer the newest stored features with a fresh ``stream(value)`` for every value."""
    rows = journal.query("SELECT idx FROM features ORDER BY idx DESC LIMIT ?", (most,))
    indices, features = journal.features([row["idx"] for row in reversed(rows)])
    points = []
    for value in sorted(values):
        fresh = stream(value)
        answers = fresh.observe_many(features) if indices else []
        discovered = sum(answer.verdict == "new" for answer in answers)
        points.append(Point(value, fresh.memory.known + discovered, discovered))
    return WhatIf(unit, current, len(indices), tuple(points))
