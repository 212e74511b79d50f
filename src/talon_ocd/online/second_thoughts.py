"""What a stream would say differently by now (layer: online): proposals, never a change of an answer or an id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Move:
    """An image that would be answered differently: its place in the stream, what was said, what would be said now."""

    index: int
    answered: int
    now: int


@dataclass(frozen=True, slots=True)
class Merge:
    """Two categories that are rather one; ``log_odds`` says how much rather, in nats."""

    first: int
    second: int
    log_odds: float


@dataclass(frozen=True, slots=True)
class SecondThoughts:
    """Proposals for people: merges surest first, moves in the order of the stream.

    Attributes:
        remembered: images that could still be thought over; older ones keep their answers.
    """

    moves: tuple[Move, ...]
    merges: tuple[Merge, ...]
    remembered: int

    def to_dict(self, name: Callable[[int], str], source: Callable[[int], str]) -> dict[str, Any]:
        """Return plain data with the names of categories and the sources of images."""
        return {
            "remembered": self.remembered,
            "merges": [
                {
                    "categories": [merge.first, merge.second],
                    "names": [name(merge.first), name(merge.second)],
                    "log_odds": merge.log_odds,
                }
                for merge in self.merges
            ],
            "moves": [
                {
                    "index": move.index,
                    "source": source(move.index),
                    "answered": move.answered,
                    "answered_name": name(move.answered),
                    "now": move.now,
                    "now_name": name(move.now),
                }
                for move in self.moves
            ],
        }
