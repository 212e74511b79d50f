"""Streams of vectors that people have: text, audio, anything (layer: facade)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from talon_ocd.config import TalonConfig, parse_adapt
from talon_ocd.errors import ConfigError, DataError, SupportWarning
from talon_ocd.memory import PrototypeMemory
from talon_ocd.offline import (
    FALLBACK_THRESHOLD,
    NOTHING_TO_REHEARSE,
    calibrate,
    class_means,
    estimate,
    rescaled,
    support,
)
from talon_ocd.online import EvidenceRule, FeatureArray, FeatureStream, matrix, unit

Labels = Sequence[int] | Sequence[str] | npt.NDArray[Any] | Tensor


def feature_stream(
    known_features: FeatureArray,
    known_labels: Labels,
    preset: str = "default",
    threshold: float | str | None = None,
    adapt: str = "prototypes",
    names: Sequence[str] = (),
) -> FeatureStream:
    """Open a stream of vectors from labelled ones.

    Warns of what the labelled vectors are too few to tell.

    Args:
        known_features: ``(N, D)`` vectors of known classes; their length does not matter.
        known_labels: ``(N,)`` integers 0 .. C-1, or strings: those are numbered in alphabetical order, as
            ``numpy.unique`` does, and are the names of the classes.
        preset: ``default``, ``official`` or ``paper``.
        threshold: a cosine, ``auto`` (evidence decides, or a cosine that is rehearsed on the labelled vectors, or 0.75
            if they are of one class), or ``None`` for the preset's.
        adapt: ``prototypes`` or ``none``; there is no encoder here that could adapt.
        names: names of the known classes, if the labels are numbers.

    >>> stream = feature_stream(np.eye(3), [0, 1, 2], preset="official", threshold=0.72)
    >>> [stream.observe(vector).category for vector in ([0.9, 0.1, 0.0], [1.0, 1.0, 1.0], [1.0, 0.9, 1.0])]
    [0, 3, 3]
    """
    return _opened(known_features, known_labels, preset, threshold, adapt, names)


def discover_features(
    known_features: FeatureArray,
    known_labels: Labels,
    stream_features: FeatureArray,
    preset: str = "default",
    threshold: float | str | None = None,
    adapt: str = "prototypes",
) -> npt.NDArray[np.int64]:
    """Answer vectors ``(M, D)`` in order; returns ids ``(M,)``: labels keep theirs, discovered ones follow from C.

    The arguments are those of ``feature_stream``. Id k of a known class is place k in ``numpy.unique(known_labels)``.

    >>> discover_features(np.eye(3), [0, 1, 2], np.eye(3)[::-1], preset="official", threshold=0.72).tolist()
    [2, 1, 0]
    """
    stream = _opened(known_features, known_labels, preset, threshold, adapt)
    return np.array([decision.category for decision in stream.observe_many(stream_features)], dtype=np.int64)


def _opened(
    known_features: FeatureArray,
    known_labels: Labels,
    preset: str,
    threshold: float | str | None,
    adapt: str,
    names: Sequence[str] = (),
) -> FeatureStream:
    """Do what ``feature_stream`` says; all that people call is one step above it, where its warnings point to."""
    config = TalonConfig.from_preset(preset)
    adaptation = parse_adapt(adapt)
    if "encoder" in adaptation:
        raise ConfigError("adapt='encoder' needs images: vectors have no encoder to adapt; use prototypes or none.")
    features = unit(matrix(known_features))
    labels, names = _labels(known_labels, len(features), names)
    classes = int(labels.max()) + 1
    wanted: Any = config.online.threshold if threshold is None else threshold
    config = replace(config, online=replace(config.online, adapt=adaptation, threshold=wanted))
    memory = PrototypeMemory(class_means(features, labels, classes))
    if wanted == "auto" and classes < 2:
        _warn(NOTHING_TO_REHEARSE)
        wanted = FALLBACK_THRESHOLD
    elif wanted == "auto":
        found = calibrate(labels, {0: lambda train, index: features[index]}, config, config.seed)
        _warn(*found.warnings(config.online.by_evidence))
        if found.rule == "evidence":
            evidence = estimate(features, labels, config.evidence).with_offset(found.threshold)
            evidence = rescaled(evidence, found.residuals, config.evidence.heavy_tails)
            _warn(*support(evidence, labels)["warnings"])
            rule = EvidenceRule(evidence, config.evidence, learns="prototypes" in adaptation)
            return FeatureStream(memory, config.online, names, rule)
        wanted = found.threshold
    return FeatureStream(memory, replace(config.online, threshold=wanted), names)


def _warn(*texts: str) -> None:
    """Say what labelled vectors can't tell: there is no report that it could be read in.

    The warning points to whoever called what called ``_opened``.
    """
    for text in texts:
        warnings.warn(text, SupportWarning, stacklevel=4)


def _labels(known_labels: Labels, number: int, names: Sequence[str]) -> tuple[Tensor, Sequence[str]]:
    """Return labels ``(N,)`` as numbers, and the names of the classes, which labels that are strings bring along."""
    given = np.asarray(known_labels)
    if given.shape != (number,) or number == 0:
        raise DataError(f"known_labels must have the shape ({number},), one a feature, got {given.shape}.")
    if given.dtype.kind == "U":  # numpy makes strings of numbers that stand among strings
        others = [label for label in known_labels if not isinstance(label, str)]
        if others:
            raise DataError(f"known_labels name classes, but {others[0]!r} is no name; give strings only, or 0 .. C-1.")
    if all(isinstance(label, str) for label in given.tolist()):
        if len(names):
            raise ConfigError("known_labels are names already; leave names out, or give the labels as 0 .. C-1.")
        present, given = np.unique(given.astype(np.str_), return_inverse=True)
        names = present.tolist()
    if given.dtype.kind not in "iu":
        raise DataError(f"known_labels must be integers 0 .. C-1, or strings, got {given.dtype}.")
    labels = torch.from_numpy(given.astype(np.int64))
    unique = labels.unique()
    if int(unique[0]) != 0 or int(unique[-1]) != len(unique) - 1:
        raise DataError(
            f"known_labels must be 0 .. C-1 without gaps, got {len(unique)} different labels from {int(unique[0])} "
            f"to {int(unique[-1])}; renumber them, e.g. with numpy.unique(labels, return_inverse=True)[1]."
        )
    return labels, names
