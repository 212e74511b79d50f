"""Clusters on a sphere, and streams over them that last: whatever is to be found can be found."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.backbones import Vectors
from talon_ocd.config import OnlineConfig, TalonConfig
from talon_ocd.durable import DurableStream, Identity, settings_of
from talon_ocd.memory import PrototypeMemory
from talon_ocd.offline.estimate import estimate
from talon_ocd.online import Bounds, Evidence, EvidenceRule

SIZE, CLASSES, KNOWN = 48, 24, 12
SPREAD = 0.07
NAMES = tuple(f"class-{number}" for number in range(KNOWN))
THRESHOLD = 0.6


def members(classes: Sequence[int], seed: int) -> Tensor:
    """Unit vectors ``(N, SIZE)`` of classes ``(N,)``; classes ``0 .. KNOWN - 1`` are known."""
    centres = F.normalize(torch.randn(CLASSES, SIZE, generator=torch.Generator().manual_seed(1)), dim=1)
    noise = torch.randn(len(classes), SIZE, generator=torch.Generator().manual_seed(seed))
    return F.normalize(centres[list(classes)] + SPREAD * noise, dim=1)


def labelled() -> tuple[Tensor, Tensor]:
    """Labelled vectors ``(N, SIZE)`` and their classes ``(N,)``."""
    labels = torch.arange(KNOWN).repeat_interleave(12)
    return members(labels.tolist(), 99), labels


@lru_cache
def evidence() -> Evidence:
    return estimate(*labelled(), TalonConfig().evidence)


def open_world(folder: Path, rule: str = "evidence", model: str = "one model", half: bool = False) -> DurableStream:
    """Open a stream of features with a folder, by evidence or by TALON's threshold."""
    features, labels = labelled()
    means = torch.stack([features[labels == one].mean(dim=0) for one in range(KNOWN)])
    by_evidence = rule == "evidence"
    config = OnlineConfig(
        threshold="auto" if by_evidence else THRESHOLD, adapt=("prototypes",), adapt_every=16, half_precision=half
    )
    settings = settings_of(0.0 if by_evidence else THRESHOLD, rule, 0.0, config.adapt, Bounds())
    return DurableStream(
        folder,
        Identity(model, model, NAMES, settings),
        backbone=Vectors(size=SIZE),
        memory=PrototypeMemory(means),
        config=config,
        names=NAMES,
        rule=EvidenceRule(evidence(), TalonConfig().evidence) if by_evidence else None,
    )


def observe(stream: DurableStream, classes: Sequence[int], seed: int, prefix: str = "photo") -> list[int]:
    """Let a stream answer made-up images of some classes; their keys are made of prefix, seed and number."""
    sources = [f"{prefix}-{seed}-{number}" for number in range(len(classes))]
    return [answer.category for answer in stream.observe_hidden(members(classes, seed), sources)]


def classes_of(number: int, chosen: Sequence[int], seed: int) -> list[int]:
    """Draw classes ``(N,)``."""
    return [int(one) for one in np.random.default_rng(seed).choice(chosen, number)]
