"""The evidence rule against TALON's at an equal number of categories (room: benchmarks)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.benchmarks.decisions import THRESHOLD
from talon_ocd.benchmarks.result import Result, Target
from talon_ocd.benchmarks.sizes import Sizes
from talon_ocd.benchmarks.timing import Contender, details, interleaved, ratio
from talon_ocd.config import EvidenceConfig, OnlineConfig
from talon_ocd.memory import PrototypeMemory, TwoCovariance
from talon_ocd.online import CosineRule, Evidence, EvidenceRule, FeatureStream
from talon_ocd.progress import SILENT, Progress

NO_DEARER = Target("<=", 1.0)
NOISE = 0.3
"""Length of what an image adds to its class."""
MEMBERS = 20
"""Labelled images of each class."""
WITHOUT_SECOND_THOUGHTS = EvidenceConfig(keep=0)


def measure(sizes: Sizes, progress: Progress = SILENT) -> Iterator[Result]:
    """Measure at every size: no image is new, as in a stream that has run for a while."""
    for number, features, coordinates in sizes.rules:
        classes = F.normalize(torch.randn(number, features, generator=_generator(0)), dim=1)
        works = contenders(classes, coordinates, sizes.batch)
        interleaved(works, 1)  # a first turn that doesn't count
        repeats = 3 * sizes.repeats
        with progress.task(f"Rules, {number} categories, D = {features}", len(works) * repeats, "runs") as task:
            timings = interleaved(works, repeats, sizes.seconds, task)
        facts = {"B_K_D_d": (sizes.batch, number, features, coordinates)}
        for what, prefix, note in (
            ("stream", "", "of TALON's rule and its update, in a stream without second thoughts"),
            ("answers", "bare ", "of TALON's rule, nothing is learned"),
        ):
            evidence, cosine = f"{prefix}evidence", f"{prefix}cosine"
            value = ratio(timings[evidence], timings[cosine])
            found = {**details(timings, evidence, cosine), **facts}
            yield Result(f"rules/{number}x{features}/{what}", value, "x seconds", NO_DEARER, note, found)


def contenders(classes: Tensor, coordinates: int, batch: int) -> dict[str, Contender]:
    """Return what both rules do with the same batches: answer and learn in a stream, or answer only."""
    evidence, memory = scene(classes, coordinates), PrototypeMemory(classes)
    config = OnlineConfig(threshold=THRESHOLD, adapt=("prototypes",), adapt_every=batch, index_above=0)
    cosine, unlearning = CosineRule(THRESHOLD), EvidenceRule(evidence, WITHOUT_SECOND_THOUGHTS, learns=False)

    def stream(rule: EvidenceRule | None = None) -> Callable[[Tensor], object]:
        opened = FeatureStream(PrototypeMemory(classes), config, rule=rule)

        def act(features: Tensor) -> None:
            opened.place(features)
            opened.adapt()

        return act

    acts: dict[str, Callable[[Tensor], object]] = {
        "cosine": stream(),
        "evidence": stream(EvidenceRule(evidence, WITHOUT_SECOND_THOUGHTS)),
        "bare cosine": lambda features: cosine.assign(features, memory),
        "bare evidence": lambda features: unlearning.assign(features, memory),
    }
    return {name: _on_batches(act, classes, batch) for name, act in acts.items()}


def _on_batches(act: Callable[[Tensor], object], classes: Tensor, batch: int) -> Contender:
    """Let something be done with one batch after another."""
    seeds = count()

    def prepare() -> Callable[[], object]:
        features = queries(classes, batch, next(seeds))
        return lambda: act(features)

    return prepare


def scene(classes: Tensor, coordinates: int) -> Evidence:
    """Return evidence of classes ``(K, D)`` in so many coordinates, in which images vary by 1 inside a class."""
    features = classes.shape[1]
    directions = np.linalg.qr(torch.randn(features, coordinates, generator=_generator(1)).double().numpy())[0]
    inside = NOISE / features**0.5
    psi = np.full(coordinates, 1.0 / (features * inside**2))
    model = TwoCovariance(np.zeros(features), directions / inside, psi, 30.0)
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
