"""The evidence rule against TALON's at an equal number of categories (room: benchmarks)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.benchmarks.decisions import THRESHOLD
from talon_ocd.benchmarks.result import Result, Target
from talon_ocd.benchmarks.sizes import Sizes
from talon_ocd.benchmarks.timing import Contender, details, interleaved, ratio
from talon_ocd.config import EvidenceConfig
from talon_ocd.memory import PrototypeMemory, TwoCovariance
from talon_ocd.online import CosineRule, Evidence, EvidenceRule
from talon_ocd.progress import SILENT, Progress

NO_DEARER = Target("<=", 1.0)
NOISE = 0.3
"""Length of what an image adds to its class."""
MEMBERS = 20
"""Labelled images of each class."""


def measure(sizes: Sizes, progress: Progress = SILENT) -> Iterator[Result]:
    """Measure at every number of categories: no image is new, as in a stream that has run for a while."""
    for number in sizes.categories:
        classes = F.normalize(torch.randn(number, sizes.rule_features, generator=_generator(0)), dim=1)
        works = contenders(classes, sizes)
        interleaved(works, 1)  # a first turn that doesn't count
        repeats = 3 * sizes.repeats
        with progress.task(f"Rules, {number} categories", 2 * repeats, "runs") as task:
            timings = interleaved(works, repeats, sizes.seconds, task)
        facts = {"B_K_D_d": (sizes.batch, number, sizes.rule_features, sizes.coordinates)}
        value = ratio(timings["evidence"], timings["cosine"])
        found = {**details(timings, "evidence", "cosine"), **facts}
        yield Result(f"rules/{number}/cosine", value, "x seconds", NO_DEARER, "of TALON's rule", found)


def contenders(classes: Tensor, sizes: Sizes) -> dict[str, Contender]:
    """Return the answers of both rules to the same batch, learning included."""
    memory = PrototypeMemory(classes)
    cosine, evidence = CosineRule(THRESHOLD), EvidenceRule(scene(classes, sizes), EvidenceConfig(keep=0))
    turn: list[int] = [0]

    def batch() -> Tensor:
        return queries(classes, sizes.batch, turn[0])

    def by_cosine() -> Callable[[], object]:
        turn[0] += 1
        features = batch()
        return lambda: cosine.assign(features, memory)

    def by_evidence() -> Callable[[], object]:
        features = batch()
        return lambda: evidence.assign(features, memory)

    return {"cosine": by_cosine, "evidence": by_evidence}


def scene(classes: Tensor, sizes: Sizes) -> Evidence:
    """Return evidence of classes ``(K, D)`` in coordinates in which images vary by 1 inside a class."""
    size = min(sizes.coordinates, sizes.rule_features)
    directions = np.linalg.qr(torch.randn(sizes.rule_features, size, generator=_generator(1)).double().numpy())[0]
    inside = NOISE / sizes.rule_features**0.5
    psi = np.full(size, 1.0 / (sizes.rule_features * inside**2))
    model = TwoCovariance(np.zeros(sizes.rule_features), directions / inside, psi, 30.0)
    counts = np.full(len(classes), float(MEMBERS))
    return Evidence(model, counts, MEMBERS * model.coordinates(classes))


def queries(classes: Tensor, batch: int, seed: int) -> Tensor:
    """Draw unit features ``(B, D)``, each of one of the classes."""
    generator = _generator(100 + seed)
    place = torch.randint(len(classes), (batch,), generator=generator)
    noise = torch.randn(batch, classes.shape[1], generator=generator) * (NOISE / classes.shape[1] ** 0.5)
    return F.normalize(classes[place] + noise, dim=1)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
