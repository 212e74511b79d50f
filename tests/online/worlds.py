"""Streams of features and rules that decide on them; what the tests of the evidence rule share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from talon_ocd.config import EvidenceConfig, OnlineConfig
from talon_ocd.memory import PrototypeMemory, TwoCovariance
from talon_ocd.online import Assignment, Evidence, EvidenceRule, FeatureStream
from tests.memory.test_prototypes import unit_rows
from tests.memory.worlds import counts_and_sums
from tests.twins.evidence import SlowEvidence

NOTHING = PrototypeMemory(torch.empty(0, 5))
"""The rule has its own memory of categories."""
PLAIN = TwoCovariance(np.zeros(2), 10.0 * np.eye(2), np.full(2, 40.0), np.inf)
"""Unit features come out on a circle with radius 10; inside a class they vary by 1."""
EAST, NORTH, WEST = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]
Row = tuple[int, bool, float, int, float]


@dataclass(frozen=True)
class World:
    """Unit features of known and of other classes, and what the labelled ones say."""

    evidence: Evidence
    labelled: list[list[list[float]]]
    means: Tensor
    features: Tensor

    def rule(self, learns: bool = True, **settings: Any) -> EvidenceRule:
        return EvidenceRule(self.evidence, EvidenceConfig(**settings), learns)

    def slow(self, learns: bool = True, keep: int = 8192) -> SlowEvidence:
        model = self.evidence.model
        offset = self.evidence.offset
        return SlowEvidence(self.labelled, model.psi.tolist(), model.tail, offset, learns=learns, keep=keep)

    def coordinates(self) -> list[list[float]]:
        return [self.evidence.model.coordinates(feature[None])[0].tolist() for feature in self.features]

    def stream(self, learns: bool = True, adapt_every: int = 16, **settings: Any) -> FeatureStream:
        config = OnlineConfig(adapt=("prototypes",) if learns else (), adapt_every=adapt_every)
        return FeatureStream(PrototypeMemory(self.means), config, rule=self.rule(learns, **settings))


def world(
    images: int, seed: int = 0, known: int = 2, new: int = 2, tail: float = 9.0, offset: float = 0.0, noise: float = 0.3
) -> World:
    """Classes of 5-dimensional features around random directions; three labelled images of each known one."""
    random = torch.Generator().manual_seed(seed)
    centres = unit_rows(known + new, 5, seed)

    def members(classes: Tensor) -> Tensor:
        rows = centres[classes] + noise * torch.randn(len(classes), 5, generator=random)
        return torch.nn.functional.normalize(rows, dim=1)

    labelled = members(torch.arange(known).repeat_interleave(3))
    features = members(torch.randint(known + new, (images,), generator=random))
    directions = np.linalg.qr(np.random.default_rng(seed).normal(size=(5, 3)))[0]
    model = TwoCovariance(np.full(5, 0.02), directions / noise, np.array([2.0, 1.0, 0.5]) * 0.2 / noise**2, tail)
    parts = np.split(model.coordinates(labelled), known)
    evidence = Evidence(model, *counts_and_sums(parts), offset)
    return World(evidence, [part.tolist() for part in parts], labelled.view(known, 3, 5).mean(dim=1), features)


def plain_rule(
    counts: list[float], directions: list[list[float]], learns: bool = True, offset: float = 0.0, **settings: Any
) -> EvidenceRule:
    sums = 10.0 * np.array(counts)[:, None] * np.array(directions)
    config = EvidenceConfig(concentration=5.0, **settings)
    return EvidenceRule(Evidence(PLAIN, np.array(counts), sums, offset), config, learns)


def rows_of(answers: Assignment) -> list[Row]:
    columns = (
        answers.ids, answers.founded, answers.similarities, answers.runner_ups, answers.runner_up_similarities,
    )  # fmt: skip
    return list(zip(*(column.tolist() for column in columns), strict=True))


def assert_same_answers(found: list[Row], wanted: list[Row]) -> None:
    assert [(row[0], row[1], row[3]) for row in found] == [(row[0], row[1], row[3]) for row in wanted]
    for place in (2, 4):
        np.testing.assert_allclose([row[place] for row in found], [row[place] for row in wanted], atol=1e-8)
