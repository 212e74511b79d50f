"""Slow, obvious versions of the training losses: loops over Python floats, straight from the formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence

Rows = Sequence[Sequence[float]]


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def supcon(features: Rows, labels: Sequence[int], temperature: float, base_temperature: float = 0.07) -> float:
    """Mean over anchors; an anchor without positives adds 0."""
    total = 0.0
    for a, anchor in enumerate(features):
        others = [b for b in range(len(features)) if b != a]
        positives = [b for b in others if labels[b] == labels[a]]
        for b in positives:
            denominator = sum(math.exp(dot(anchor, features[c]) / temperature) for c in others)
            log_probability = dot(anchor, features[b]) / temperature - math.log(denominator)
            total -= log_probability / len(positives)
    return temperature / base_temperature * total / len(features)


def margin_logits(cosines: Rows, labels: Sequence[int], scale: float, margin: float) -> list[list[float]]:
    """The angle itself is taken and increased; no trigonometric identity."""
    rows = []
    for cosine, label in zip(cosines, labels, strict=True):
        row = [scale * value for value in cosine]
        angle = math.acos(cosine[label])
        if cosine[label] > math.cos(math.pi - margin):
            row[label] = scale * math.cos(angle + margin)
        else:
            row[label] = scale * (cosine[label] - margin * math.sin(margin))
        rows.append(row)
    return rows


def cross_entropy(logits: Rows, labels: Sequence[int]) -> float:
    total = 0.0
    for row, label in zip(logits, labels, strict=True):
        total -= row[label] - math.log(sum(math.exp(value) for value in row))
    return total / len(labels)
