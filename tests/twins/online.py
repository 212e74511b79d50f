"""TALON's online stage written out slowly, one query and one number at a time (sections 3.1.3 to 3.1.6)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

Vector = list[float]


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def norm(a: Vector) -> Vector:
    length = math.sqrt(dot(a, a))
    return [x / length for x in a]


def mean(vectors: list[Vector]) -> Vector:
    return [math.fsum(column) / len(vectors) for column in zip(*vectors, strict=True)]


@dataclass
class SlowTalon:
    """Decisions and TTA-P of the released code, in the order of the code, without any vectorisation."""

    prototypes: list[Vector]
    threshold: float
    every: int = 64
    adapt: bool = True
    eta: tuple[float, float] = (0.06, 0.3)
    kappa: tuple[float, float] = (32.0, 8.0)
    groups: dict[int, list[Vector]] = field(default_factory=dict)
    seen: int = 0

    def __post_init__(self) -> None:
        self.known = len(self.prototypes)

    def observe(self, vector: Vector) -> int:
        scores = [dot(vector, prototype) for prototype in self.prototypes]
        best = max(range(len(scores)), key=lambda j: scores[j], default=-1)
        if best < 0 or scores[best] < self.threshold:
            best = len(self.prototypes)
            self.prototypes.append(vector)
        self.groups.setdefault(best, []).append(vector)
        self.seen += 1
        if self.seen % self.every == 0:
            if self.adapt:
                self.refine()
            self.groups.clear()
        return best

    def refine(self) -> None:
        for j, group in self.groups.items():
            if len(group) <= 1:
                continue
            new = j >= self.known
            mu = self.prototypes[j]
            confidence = min(1.0, max(0.0, math.fsum(dot(z, mu) for z in group) / len(group)))
            alpha = self.eta[new] * confidence * len(group) / (len(group) + self.kappa[new])
            target = mean(group)
            self.prototypes[j] = norm([(1 - alpha) * m + alpha * t for m, t in zip(mu, target, strict=True)])


def slow_adaptation_loss(
    features: list[Vector], ids: list[int], prototypes: list[Vector], temperature: float
) -> tuple[float, float, float]:
    """Return L_ent, A and R of section 3.1.5."""
    entropies = []
    for z in features:
        logits = [dot(z, mu) / temperature for mu in prototypes]
        top = max(logits)
        weights = [math.exp(logit - top) for logit in logits]
        total = math.fsum(weights)
        entropies.append(-math.fsum(w / total * math.log(w / total) for w in weights if w > 0))
    present = sorted(set(ids))
    means = {c: norm(mean([z for z, i in zip(features, ids, strict=True) if i == c])) for c in present}
    align = math.fsum(dot(means[c], prototypes[c]) for c in present) / len(present)
    pairs = [(a, b) for a in present for b in present if a != b]
    repel = math.fsum(1 - dot(means[a], means[b]) for a, b in pairs) / len(pairs) if pairs else 0.0
    return math.fsum(entropies) / len(entropies), align, repel
