"""Worlds in which new kinds lie near known classes, so that they join these and leave them at second thoughts.

What is new has to be far from all known classes to begin a category itself (``OFFSET``): those near one never do, and a
category that they leave for has no answer for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.backbones import Vectors
from talon_ocd.config import EvidenceConfig, OnlineConfig
from talon_ocd.durable import DurableStream, Identity, settings_of
from talon_ocd.memory import PrototypeMemory
from talon_ocd.offline.estimate import estimate
from talon_ocd.online import Bounds, Decision, Evidence, EvidenceRule, FeatureStream

SIZE, KNOWN, LABELLED = 24, 5, 60
NEAR, SPREAD, OFFSET = 0.45, 0.06, -30.0
"""How far a new kind is from its known class, as a share of the way to another direction; noise; nats."""
FAR = (2 * KNOWN, 2 * KNOWN + 1)
"""Classes that are near no known one: their first images begin a category."""
CONFIG = EvidenceConfig(branch_below=0.01, every=1, regroup=0)
ADAPT_EVERY = 16
NAMES = tuple(f"class-{number}" for number in range(KNOWN))


def vectors(classes: Sequence[int], seed: int) -> Tensor:
    """Unit vectors ``(N, SIZE)`` of classes ``(N,)``: class ``KNOWN + k`` is a new kind near known class k."""
    random = torch.Generator().manual_seed(1)
    known = F.normalize(torch.randn(KNOWN, SIZE, generator=random), dim=1)
    away = F.normalize(torch.randn(KNOWN, SIZE, generator=random), dim=1)
    far = F.normalize(torch.randn(len(FAR), SIZE, generator=random), dim=1)
    centres = torch.cat([known, F.normalize((1.0 - NEAR) * known + NEAR * away, dim=1), far])
    noise = torch.randn(len(classes), SIZE, generator=torch.Generator().manual_seed(seed))
    return F.normalize(centres[list(classes)] + SPREAD * noise, dim=1)


def classes_of(number: int, seed: int, kinds: Sequence[int] = (5, 6)) -> list[int]:
    """Draw classes ``(N,)``: known ones, and new kinds as often."""
    random = torch.Generator().manual_seed(seed)
    chosen = torch.tensor([*range(KNOWN), *kinds, *kinds])
    found: list[int] = chosen[torch.randint(len(chosen), (number,), generator=random)].tolist()
    return found


@lru_cache
def evidence(offset: float = OFFSET) -> Evidence:
    labels = torch.arange(KNOWN).repeat_interleave(LABELLED)
    return replace(estimate(vectors(labels.tolist(), 99), labels, CONFIG), offset=offset)


def means() -> Tensor:
    labels = torch.arange(KNOWN).repeat_interleave(LABELLED)
    features = vectors(labels.tolist(), 99)
    return torch.stack([features[labels == one].mean(dim=0) for one in range(KNOWN)])


def world(number: int, seed: int, kinds: Sequence[int] = (5, 6)) -> Tensor:
    """Images ``(N, SIZE)`` of a stream."""
    return vectors(classes_of(number, seed, kinds), seed + 10)


def stream(bounds: Bounds | None = None, **settings: Any) -> FeatureStream:
    config = OnlineConfig(adapt=("prototypes",), adapt_every=ADAPT_EVERY)
    rule = EvidenceRule(evidence(), replace(CONFIG, **settings))
    return FeatureStream(PrototypeMemory(means()), config, NAMES, rule, bounds)


def open_folder(folder: Path, bounds: Bounds | None = None, model: str = "one model") -> DurableStream:
    """Open a stream of features with a folder."""
    config = OnlineConfig(adapt=("prototypes",), adapt_every=ADAPT_EVERY)
    bounds = bounds or Bounds()
    return DurableStream(
        folder,
        Identity(model, model, NAMES, settings_of(0.0, "evidence", 0.0, config.adapt, bounds)),
        backbone=Vectors(size=SIZE),
        memory=PrototypeMemory(means()),
        config=config,
        names=NAMES,
        rule=EvidenceRule(evidence(), CONFIG),
        bounds=bounds,
    )


def observe(stream: DurableStream, features: Tensor) -> list[Decision]:
    """Let a stream with a folder answer images; each has a source of its own."""
    sources = [f"photo-{stream.answered + number}" for number in range(len(features))]
    return stream.observe_hidden(features, sources)


def unheard(stream: FeatureStream) -> list[int]:
    """Ids in the memory that no answer was given with."""
    memory = stream.memory
    columns = zip(memory.ids.tolist(), memory.counts.tolist(), memory.last.tolist(), strict=True)
    return [category for category, count, last in list(columns)[memory.known :] if count == 0 and last < 0]
