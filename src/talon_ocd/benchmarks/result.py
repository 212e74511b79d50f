"""A measurement and what it should be (room: benchmarks)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Sense = Literal[">=", "<="]


@dataclass(frozen=True)
class Target:
    """A bound that a measurement should keep.

    >>> str(Target(">=", 0.85)), Target(">=", 0.85).met(0.9)
    ('>= 0.85', True)
    """

    sense: Sense
    bound: float

    def met(self, value: float) -> bool:
        """Does the value keep the bound?"""
        return value >= self.bound if self.sense == ">=" else value <= self.bound

    def __str__(self) -> str:
        return f"{self.sense} {self.bound:g}"


@dataclass(frozen=True)
class Result:
    """One measured value; ``None`` where it can't be measured here (``note`` says why)."""

    name: str
    value: float | None
    unit: str
    target: Target
    note: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool | None:
        """Is the target met? ``None`` if nothing was measured."""
        return None if self.value is None else self.target.met(self.value)

    @property
    def verdict(self) -> str:
        """``ok``, ``below`` (the target was not reached) or ``skipped``."""
        return "skipped" if self.ok is None else "ok" if self.ok else "below"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        value = None if self.value is None else float(f"{self.value:.4g}")
        return {
            "name": self.name,
            "value": value,
            "unit": self.unit,
            "target": str(self.target),
            "ok": self.ok,
            "detail": {"note": self.note, **self.detail},
        }
