"""Streams of vectors that people have: text, audio, anything (layer: facade)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from talon_ocd.config import TalonConfig, parse_adapt
from talon_ocd.errors import ConfigError, DataError
from talon_ocd.memory import PrototypeMemory
from talon_ocd.offline import FALLBACK_THRESHOLD, calibrate, class_means, estimate, rescaled
from talon_ocd.online import EvidenceRule, FeatureArray, FeatureStream, matrix, unit

Labels = Sequence[int] | npt.NDArray[np.integer] | Tensor


def feature_stream(
    known_features: FeatureArray,
    known_labels: Labels,
    preset: str = "default",
    threshold: float | str | None = None,
    adapt: str = "prototypes",
    names: Sequence[str] = (),
) -> FeatureStream:
    """Open a stream of vectors from labelled ones.

    Args:
        known_features: ``(N, D)`` vectors of known classes; their length does not matter.
        known_labels: ``(N,)`` integers 0 .. C-1.
        preset: ``default``, ``official`` or ``paper``.
        threshold: a cosine, ``auto`` (evidence decides, or a cosine that is rehearsed on the labelled vectors, or 0.75
            if they are of one class), or ``None`` for the preset's.
        adapt: ``prototypes`` or ``none``; there is no encoder here that could adapt.
        names: names of the known classes.

    >>> stream = feature_stream(np.eye(3), [0, 1, 2], preset="official", threshold=0.72)
    >>> [stream.observe(vector).category for vector in ([0.9, 0.1, 0.0], [1.0, 1.0, 1.0], [1.0, 0.9, 1.0])]
    [0, 3, 3]
    """
    config = TalonConfig.from_preset(preset)
    adaptation = parse_adapt(adapt)
    if "encoder" in adaptation:
        raise ConfigError("adapt='encoder' needs images: vectors have no encoder to adapt; use prototypes or none.")
    features = unit(matrix(known_features))
    labels = _labels(known_labels, len(features))
    classes = int(labels.max()) + 1
    wanted: Any = config.online.threshold if threshold is None else threshold
    config = replace(config, online=replace(config.online, adapt=adaptation, threshold=wanted))
    memory = PrototypeMemory(class_means(features, labels, classes))
    if wanted == "auto" and classes < 2:
        wanted = FALLBACK_THRESHOLD
    elif wanted == "auto":
        found = calibrate(labels, {0: lambda train, index: features[index]}, config, config.seed)
        if found.rule == "evidence":
            evidence = estimate(features, labels, config.evidence).with_offset(found.threshold)
            evidence = rescaled(evidence, found.residuals, config.evidence.heavy_tails)
            rule = EvidenceRule(evidence, config.evidence, learns="prototypes" in adaptation)
            return FeatureStream(memory, config.online, names, rule)
        wanted = found.threshold
    return FeatureStream(memory, replace(config.online, threshold=wanted), names)


def discover_features(
    known_features: FeatureArray,
    known_labels: Labels,
    stream_features: FeatureArray,
    preset: str = "default",
    threshold: float | str | None = None,
    adapt: str = "prototypes",
) -> npt.NDArray[np.int64]:
    """Answer vectors ``(M, D)`` in order; returns ids ``(M,)``: labels keep theirs, discovered ones follow from C.

    The arguments are those of ``feature_stream``.

    >>> discover_features(np.eye(3), [0, 1, 2], np.eye(3)[::-1], preset="official", threshold=0.72).tolist()
    [2, 1, 0]
    """
    stream = feature_stream(known_features, known_labels, preset, threshold, adapt)
    return np.array([decision.category for decision in stream.observe_many(stream_features)], dtype=np.int64)


def _labels(known_labels: Labels, number: int) -> Tensor:
    labels = torch.as_tensor(np.asarray(known_labels))
    if labels.ndim != 1 or len(labels) != number or number == 0:
        raise DataError(f"known_labels must have the shape ({number},), one a feature, got {tuple(labels.shape)}.")
    if labels.is_floating_point() or labels.is_complex():
        raise DataError(f"known_labels must be integers 0 .. C-1, got {labels.dtype}.")
    present = labels.unique()
    if int(present[0]) != 0 or int(present[-1]) != len(present) - 1:
        raise DataError(
            f"known_labels must be 0 .. C-1 without gaps, got {len(present)} different labels from {int(present[0])} "
            f"to {int(present[-1])}; renumber them, e.g. with numpy.unique(labels, return_inverse=True)[1]."
        )
    return labels.long()
