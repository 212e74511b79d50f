"""An experiment beside ``ceilings.py``: ψ and the mean of class means follow what the stream has found.

Both have a closed form: the means of mature categories, discovered ones included, stand for those of labelled classes.
It happens at every second-thoughts step; answers and ids stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from talon_ocd.config import EvidenceConfig
from talon_ocd.errors import ConfigError
from talon_ocd.memory import Beliefs, TwoCovariance
from talon_ocd.memory.two_covariance import Floats
from talon_ocd.methods import MethodStream, PrototypeStream, Trained
from talon_ocd.methods.evidence import EvidenceMethod
from talon_ocd.offline.estimate import smoothed
from talon_ocd.online import Evidence, EvidenceRule
from talon_ocd.online.feature_stream import section

MATURE = 10
"""Members from which on the mean of a category says where its class is."""
LEAST_CATEGORIES = 5
"""Mature categories below which nothing is estimated again."""


@dataclass(frozen=True)
class Shifted(TwoCovariance):
    """The model with its origin, the mean of class means, moved."""

    shift: Floats | float = 0.0

    def coordinates(self, features: Tensor) -> Floats:
        """Return coordinates ``(B, d)`` from the moved origin."""
        moved: Floats = super().coordinates(features) - self.shift
        return moved


class Reestimating(EvidenceRule):
    """The rule, but ψ and the mean of class means follow what the stream has found."""

    def __init__(self, evidence: Evidence, config: EvidenceConfig, parts: Sequence[str]) -> None:
        super().__init__(evidence, config)
        self.parts = parts

    def think_again(self, newest: int | None = None) -> int:
        """Think again; if of all images, then estimate again."""
        moves = super().think_again(newest)
        if newest is None:
            self.estimate_again()
        return moves

    def estimate_again(self) -> None:
        """Take ψ and origin from the means of mature categories, as from labelled classes."""
        beliefs, model = self.beliefs, self.beliefs.model
        counts, sums = beliefs.counts.copy(), beliefs.sums.copy()
        mature = counts >= MATURE
        if mature.sum() < LEAST_CATEGORIES:
            return
        means = sums[mature] / counts[mature][:, None]
        shift, psi = np.zeros(model.size), model.psi
        if "mean" in self.parts:
            shift = means.mean(axis=0)
        if "psi" in self.parts:
            spread_of_means = means.var(axis=0, ddof=1) if "mean" in self.parts else (means**2).mean(axis=0)
            raw = np.maximum(spread_of_means - (1.0 / counts[mature]).mean(), 0.0)
            psi = smoothed(raw, len(means), self.config.smoothing_classes)
        origin = getattr(model, "shift", 0.0) + shift
        moved = Shifted(model.centre, model.transform, psi, model.tail, origin)
        self.beliefs = Beliefs(moved, counts, sums - counts[:, None] * shift, beliefs.answer_weight)
        self.beliefs.known = beliefs.known
        kept = self.recent.state_dict()
        self.recent.load_state_dict({**kept, "coordinates": kept["coordinates"] - torch.from_numpy(shift)})


@dataclass(frozen=True)
class ReestimatingMethod(EvidenceMethod):
    """The method with ``Reestimating`` for its rule."""

    parts: tuple[str, ...] = ("psi", "mean")

    def stream(self, trained: Trained) -> MethodStream:
        """Open the method's stream and change its rule."""
        stream = super().stream(trained)
        assert isinstance(stream, PrototypeStream)
        stream.discovery.rule = Reestimating(evidence_of(trained), self.recipe.config.evidence, self.parts)
        return stream


def evidence_of(trained: Trained) -> Evidence:
    """Return what was estimated; a labelled set that says nothing has no ceilings either."""
    state = section(trained.facts, "evidence")
    if not state:
        raise ConfigError("no evidence could be estimated from the labelled images: there is no rule to compare with.")
    return Evidence.from_state_dict(state)
