"""How fast the stages of a stream are, and what happened on the way (layer: scale)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from talon_ocd.scale.encoder import Work
from talon_ocd.scale.owner import Answers

OWNER = -1
"""The owner, among the numbers of encoders."""


@dataclass
class Rates:
    """Adds up work.

    Attributes:
        encoders: how many there are.
        most_behind: versions by which the oldest head that decided was behind.
        encoded_anew: batches whose head was too old, so that the owner ran it again.
    """

    encoders: int
    most_behind: int = 0
    encoded_anew: int = 0
    _began: float = field(default_factory=time.perf_counter)
    _images: dict[str, int] = field(default_factory=dict)
    _seconds: dict[str, float] = field(default_factory=dict)
    _lives: dict[int, set[str]] = field(default_factory=dict)

    def begun(self, life: str, actor: int) -> None:
        """Hear of a life: one that ends before it has done anything counts, too."""
        self._lives.setdefault(actor, set()).add(life)

    def add(self, work: Work, actor: int) -> None:
        """Count a piece of work of an encoder, by its number, or of ``OWNER``."""
        self._images[work.stage] = self._images.get(work.stage, 0) + work.images
        self._seconds[work.stage] = self._seconds.get(work.stage, 0.0) + work.seconds
        self.begun(work.life, actor)

    def answered(self, answers: Answers) -> None:
        """Count answers of the owner."""
        self.add(answers.work, OWNER)
        self.encoded_anew += answers.encoded_anew
        if not answers.encoded_anew:
            self.most_behind = max(self.most_behind, answers.behind)

    def per_second(self) -> dict[str, float]:
        """Return the images a second of each stage: of one process while it is at work."""
        return {stage: round(self._images[stage] / seconds, 1) for stage, seconds in self._seconds.items() if seconds}

    def facts(self) -> dict[str, Any]:
        """Return all that is worth a place in a summary."""
        restarts = {actor: len(lives) - 1 for actor, lives in self._lives.items()}
        owner_restarts = restarts.pop(OWNER, 0)
        lasted = time.perf_counter() - self._began
        return {
            "encoders": self.encoders,
            "images_per_second_at_work": self.per_second(),
            "owner_busy": round(self._seconds.get("decide", 0.0) / lasted, 3) if lasted else 0.0,
            "encoder_restarts": sum(restarts.values()),
            "owner_restarts": owner_restarts,
            "most_versions_behind": self.most_behind,
            "batches_encoded_anew": self.encoded_anew,
        }
