"""The evidence rule: join the category that explains the image best, if better than a new one would (layer: online).

An image joins category k when

    log p(x | k) - log p(x | new) >= α + log K + log θ / (θ + t)

that is when its posterior is the largest of all K categories, equally likely a priori, and of a new one: the chance
that image t + 1 is the first of its category falls with the number of answers, as in a Chinese restaurant. α is what
the rehearsal found missing. Every answer changes its category at once, so that the rule is sequential; inside a batch
one product scores all categories, and after each answer only the category that changed is scored again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from talon_ocd.config import EvidenceConfig
from talon_ocd.memory import Beliefs, PrototypeMemory, Recent, TwoCovariance
from talon_ocd.online.rules.assignment import Assignment, Floats, Ints, Row

NOBODY = -1e3
"""Log-odds of a category that is not there; JSON has no infinity."""


@dataclass(frozen=True)
class Evidence:
    """All that the rule knows when a stream starts: found by ``offline/estimate.py``, saved with a model.

    Attributes:
        model: the two Gaussians.
        counts: labelled members of each known class ``(C,)``.
        sums: sums of their coordinates ``(C, d)``.
        offset: α, in nats.
    """

    model: TwoCovariance
    counts: Floats
    sums: Floats
    offset: float = 0.0

    def beliefs(self) -> Beliefs:
        """Return what is believed of the known classes, for one stream."""
        return Beliefs(self.model, self.counts, self.sums)

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything as tensors, ready for safetensors."""
        return {
            **self.model.state_dict(),
            "counts": torch.from_numpy(np.ascontiguousarray(self.counts)),
            "sums": torch.from_numpy(np.ascontiguousarray(self.sums)),
            "offset": torch.tensor(self.offset, dtype=torch.float64),
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor]) -> Evidence:
        """Take what ``state_dict`` gave."""
        model = TwoCovariance.from_state_dict(state)
        evidence = cls(model, state["counts"].numpy(), state["sums"].numpy(), float(state["offset"]))
        evidence.beliefs()  # refuses what doesn't fit
        return evidence

    def with_offset(self, offset: float) -> Evidence:
        """Return the same with another α."""
        return replace(self, offset=offset)


class EvidenceRule:
    """Attach when the posterior of the best category is at least that of a new one, else create.

    Attributes:
        threshold: what the log-odds must reach: 0, the prior is part of them.
        beliefs: the categories of this stream.
        recent: images that may still move.
    """

    unit: Literal["log-odds"] = "log-odds"
    threshold = 0.0

    def __init__(self, evidence: Evidence, config: EvidenceConfig, learns: bool = True) -> None:
        self.beliefs = evidence.beliefs()
        self.recent = Recent(config.keep, evidence.model.size)
        self.config, self.offset, self.learns = config, evidence.offset, learns
        self.answered = self.adaptations = 0

    def look(self, features: Tensor, memory: PrototypeMemory) -> Assignment:
        """Answer unit features ``(B, D)``, each as if it came next; changes nothing."""
        coordinates = self.beliefs.model.coordinates(features)
        screened = self.beliefs.screen(_squares(coordinates))
        rows = [self._answer(row, scores) for row, scores in zip(coordinates, screened, strict=True)]
        return Assignment.from_rows(rows)

    def assign(self, features: Tensor, memory: PrototypeMemory) -> Assignment:
        """Answer unit features ``(B, D)`` one after another and learn from each."""
        coordinates = self.beliefs.model.coordinates(features)
        squares = _squares(coordinates)
        before = self.beliefs.size
        scores = np.full((len(coordinates), before + len(coordinates)), np.inf, np.float32)
        scores[:, :before] = self.beliefs.screen(squares)
        rows = []
        for number, coordinate in enumerate(coordinates):
            row = self._answer(coordinate, scores[number, : self.beliefs.size])
            rows.append(row)
            changed = self._remember(row, coordinate)
            if changed is not None:
                scores[number + 1 :, changed] = self.beliefs.screen(squares[number + 1 :], np.array([changed]))[:, 0]
        answers = Assignment.from_rows(rows)
        if self.learns:
            self.recent.add(coordinates, answers.ids)
        return answers

    def adapt(self) -> None:
        """Think again about recent images, if it is time."""
        self.adaptations += 1
        if self.adaptations % self.config.every == 0:
            self.think_again()

    def think_again(self) -> int:
        """Offer recent images to all categories once more; returns how many moved to another one."""
        if not self.learns or not self.config.sweeps:
            return 0
        return self.recent.rethink(self.beliefs, self._hurdle(), self.config.sweeps)

    def merges(self, most: int = 20) -> list[tuple[int, int, float]]:
        """Return pairs of categories, one of them discovered, that are rather one than two, surest first."""
        found = np.flatnonzero(self.beliefs.counts > 0.0)
        first, second = np.triu_indices(len(found), 1)
        keep = found[second] >= self.beliefs.known
        first, second = found[first[keep]], found[second[keep]]
        pairs: list[tuple[int, int, float]] = []
        counts, sums = self.beliefs.counts, self.beliefs.sums
        for start in range(0, len(first), 4096):
            one, two = first[start : start + 4096], second[start : start + 4096]
            odds = self.beliefs.model.same(counts[one], sums[one], counts[two], sums[two])
            good = np.flatnonzero(odds > 0.0)
            pairs += [(int(one[i]), int(two[i]), float(odds[i])) for i in good]
        return sorted(pairs, key=lambda pair: -pair[2])[:most]

    def state_dict(self) -> dict[str, Tensor]:
        """Return beliefs, recent images and the number of answers, ready for safetensors."""
        return {
            **{f"beliefs.{name}": value for name, value in self.beliefs.state_dict().items()},
            **{f"recent.{name}": value for name, value in self.recent.state_dict().items()},
            "answered": torch.tensor(self.answered),
            "adaptations": torch.tensor(self.adaptations),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where the rule that gave ``state`` was."""
        parts: dict[str, dict[str, Tensor]] = {"beliefs": {}, "recent": {}}
        for name, value in state.items():
            part, _, rest = name.partition(".")
            parts.get(part, {})[rest] = value
        self.beliefs = Beliefs.from_state_dict(self.beliefs.model, parts["beliefs"])
        self.recent.load_state_dict(parts["recent"])
        self.answered, self.adaptations = int(state["answered"]), int(state["adaptations"])

    def _hurdle(self) -> float:
        """Return what the evidence must reach against a new category now."""
        chance = self.config.concentration / (self.config.concentration + self.answered)
        return self.offset + log(max(self.beliefs.living, 1)) + log(chance)

    def _answer(self, coordinate: Floats, scores: npt.NDArray[np.float32]) -> Row:
        """Return one row of an assignment; ``scores`` ``(K,)`` screen, the two best are weighed exactly."""
        best = _two_smallest(scores)
        odds = self.beliefs.log_odds(np.broadcast_to(coordinate, (len(best), len(coordinate))), best) - self._hurdle()
        order = np.lexsort((best, -odds))
        ranked = [(int(best[i]), max(float(odds[i]), NOBODY)) for i in order] + [(-1, NOBODY)] * (2 - len(best))
        (first, first_odds), (second, second_odds) = ranked
        if first >= 0 and first_odds >= self.threshold:
            return first, False, first_odds, second, second_odds
        return self.beliefs.size, True, first_odds, first, first_odds

    def _remember(self, row: Row, coordinate: Floats) -> int | None:
        """Learn from one answer; returns the category that changed."""
        self.answered += 1
        category, founded, *_ = row
        if founded:
            return self.beliefs.found(coordinate)
        if self.learns:
            self.beliefs.join(category, coordinate)
            return category
        return None


def _squares(coordinates: Floats) -> npt.NDArray[np.float32]:
    return np.concatenate([coordinates, coordinates**2], axis=1).astype(np.float32)


def _two_smallest(scores: npt.NDArray[np.float32]) -> Ints:
    """Return where the two smallest are ``(0 to 2,)``, the smaller first."""
    if len(scores) < 3:
        return np.argsort(scores, kind="stable").astype(np.int64)
    first = int(scores.argmin())
    kept, scores[first] = scores[first], np.inf
    second = int(scores.argmin())
    scores[first] = kept
    return np.array([first, second])
