"""The evidence rule written out slowly: densities of whole data sets by scipy, then one number at a time.

Categories are lists of members. Nothing is updated: every score is worked out again from all members.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import multivariate_normal, multivariate_t

Vector = list[float]
Member = tuple[float, Vector]
"""What it counts, and where it is."""
MOST = 50


def log_density_of_members(members: Sequence[Vector], psi: Vector) -> float:
    """Log-density of all members of one category at once: in each coordinate, N(0, 1 + ψ, any two sharing ψ)."""
    if not members:
        return 0.0
    n = len(members)
    return math.fsum(
        float(multivariate_normal(np.zeros(n), np.eye(n) + spread).logpdf([member[i] for member in members]))
        for i, spread in enumerate(psi)
    )


def next_member(members: Sequence[Vector], psi: Vector) -> tuple[Vector, Vector]:
    """Mean and variance of one more member: the joint Gaussian of all n + 1, conditioned on n of them."""
    means, variances = [], []
    for i, spread in enumerate(psi):
        n = len(members)
        given = np.linalg.solve(np.eye(n) + spread, np.full(n, spread)) if n else np.zeros(0)
        means.append(float(given @ [member[i] for member in members]) if n else 0.0)
        variances.append(1.0 + spread - float(given @ np.full(n, spread)))
    return means, variances


def log_density_of_next(x: Vector, members: Sequence[Vector], psi: Vector, tail: float) -> float:
    """Log-density of one more member, with Student's tails around the Gaussian's mean and shape."""
    means, variances = next_member(members, psi)
    shape = np.diag(variances)
    if math.isinf(tail):
        return float(multivariate_normal(means, shape).logpdf(x))
    degrees: Any = tail  # the stubs of scipy know whole ones only
    return float(multivariate_t(means, shape, df=degrees).logpdf(x))


@dataclass
class SlowEvidence:
    """The rule, with members instead of sums: ``labelled`` are those of the known classes, ``homes`` of the stream."""

    labelled: list[list[Vector]]
    psi: Vector
    tail: float
    offset: float = 0.0
    concentration: float | None = None
    prior_weight: float = 3.5
    share_weight: float = 5.0
    least_share: float = 0.07
    learn_share: bool = True
    share_prior: float = 20.0
    share_window: int = 512
    answer_weight: float = 0.25
    learns: bool = True
    keep: int = 8192
    images: list[Vector] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    homes: list[int] = field(default_factory=list)
    founders: list[int] = field(default_factory=list)
    """Images that founded categories, in order: they are members even if nothing is learned."""

    def members(self, category: int, without: int = -1) -> list[Member]:
        known = category < len(self.labelled)
        labelled = [(1.0, x) for x in self.labelled[category]] if known else []
        weight = self.answer_weight if known else 1.0
        counted = range(len(self.images)) if self.learns else self.founders
        return labelled + [(weight, self.images[i]) for i in counted if self.homes[i] == category and i != without]

    @property
    def size(self) -> int:
        return len(self.labelled) + len(self.founders)

    @property
    def hurdle(self) -> float:
        living = sum(bool(self.members(category)) for category in range(self.size))
        answered = len(self.images)
        concentration = self.concentration
        if concentration is None:
            classes = max(len(self.labelled), 1) / ((1 - self.share) if self.learn_share else 1 / 3)
            concentration = 5 / 6 * classes
        chance = concentration / (concentration + answered)
        return self.offset + math.log(living) + self.prior_weight * math.log(chance)

    @property
    def favour(self) -> float:
        """What known classes have ahead of discovered categories: the stream's own answers say how common they are."""
        if not self.learn_share:
            return 0.0
        return self.share_weight * (math.log(1 - self.share) - math.log(self.share))

    @property
    def share(self) -> float:
        """Of the stream that is of no known class, by its newest answers up to the last 64th."""
        newest = self.answers[: len(self.answers) // 64 * 64][-self.share_window :]
        others = sum(answer >= len(self.labelled) for answer in newest)
        share = (self.share_prior / 2 + others) / (self.share_prior + len(newest))
        return min(max(share, self.least_share), 1.0 - self.least_share)

    def odds(self, x: Vector, members: list[Member]) -> float:
        """Evidence for a category against a new one; the posterior of its mean in terms of precisions."""
        if not members:
            return -math.inf
        weight = math.fsum(weight for weight, _ in members)
        counted = math.floor(min(weight, MOST) + 1e-6)
        precisions = [1.0 / spread + counted for spread in self.psi]
        averages = [
            math.fsum(column) / weight for column in zip(*([w * a for a in m] for w, m in members), strict=True)
        ]
        means = [counted * m / p for m, p in zip(averages, precisions, strict=True)]
        joins = self._log_density(x, means, [1.0 + 1.0 / p for p in precisions])
        return joins - self._log_density(x, [0.0] * len(x), [1.0 + spread for spread in self.psi])

    def _log_density(self, x: Vector, means: Vector, variances: Vector) -> float:
        """Up to what does not depend on the category."""
        distance = math.fsum((a - m) ** 2 / v for a, m, v in zip(x, means, variances, strict=True))
        volume = 0.5 * math.fsum(math.log(v) for v in variances)
        if math.isinf(self.tail):
            return -0.5 * distance - volume
        return -0.5 * (self.tail + len(x)) * math.log(1.0 + distance / self.tail) - volume

    def look(self, x: Vector) -> tuple[int, bool, float, int, float]:
        """Category, whether it is founded, log-odds, runner-up and its log-odds."""
        favours = [self.favour] * len(self.labelled) + [0.0] * len(self.founders)
        scores = [
            (self.odds(x, self.members(category)) + favour - self.hurdle, -category)
            for category, favour in enumerate(favours)
        ]
        ranked = [(-place, odds) for odds, place in sorted(scores, reverse=True) if odds > -math.inf]
        (best, odds), (second, second_odds) = (*ranked, (-1, -1e3), (-1, -1e3))[:2]
        if odds >= 0.0:
            return best, False, max(odds, -1e3), second, max(second_odds, -1e3)
        return self.size, True, max(odds, -1e3), best, max(odds, -1e3)

    def observe(self, x: Vector) -> tuple[int, bool, float, int, float]:
        answer = self.look(x)
        if answer[1]:
            self.founders.append(len(self.images))
        self.images.append(x)
        self.answers.append(answer[0])
        self.homes.append(answer[0])
        return answer

    def think_again(self, sweeps: int, hurdle: float, newest: int = 8192) -> int:
        """All images of the last ``keep`` look around, then all move: returns how many moves there were."""
        moves = 0
        first = max(len(self.images) - min(self.keep, newest), 0)
        for _ in range(sweeps):
            homes = list(self.homes)
            for i in range(first, len(self.images)):
                homes[i] = self._best_home(i, hurdle)
            moves_between = {(a, b) for a, b in zip(self.homes, homes, strict=True) if a != b}
            for i, (a, b) in enumerate(zip(self.homes, homes, strict=True)):
                if (b, a) in moves_between and self._rank(b) < self._rank(a):
                    homes[i] = a
            moves += sum(a != b for a, b in zip(homes, self.homes, strict=True))
            self.homes = homes
        return moves

    def _rank(self, category: int) -> tuple[float, int]:
        """Larger categories come first, of equal ones the older."""
        return math.fsum(weight for weight, _ in self.members(category)), -category

    def _best_home(self, image: int, hurdle: float) -> int:
        own, x = self.homes[image], self.images[image]
        left = self.members(own, without=image)
        here = self.odds(x, left) if left else hurdle
        others = [(self.odds(x, self.members(category)), category) for category in range(self.size) if category != own]
        there, other = max(others, default=(-math.inf, own))
        return other if there > here and there >= hurdle else own
