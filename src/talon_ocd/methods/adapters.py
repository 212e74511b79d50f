"""Other ways to adapt the encoder to the stream: TENT, AEO and OSTTA (layer: methods; sections 3.13 and 3.14).

Each has TALON's parameters, optimiser and logits ``z μ / T``, so that only the loss differs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.config import OnlineConfig
from talon_ocd.online import AdaptationLoss, entropy


@dataclass(frozen=True)
class Tent:
    """TENT (Wang et al., 2021): the mean entropy of the batch, and nothing else."""

    temperature: float

    def __call__(self, features: Tensor, ids: Tensor, prototypes: Tensor, hidden: Tensor) -> Tensor:
        """Return the mean entropy."""
        return entropy(features, prototypes, self.temperature)


@dataclass(frozen=True)
class Aeo:
    """AEO (Dong et al., 2025) with one modality: sure samples get surer, unsure ones less sure.

    ``mean(-H tanh(k (H - a))) - 0.1 H_marg`` with H the entropy over its largest value. As in the released code,
    H_marg is the entropy of a softmax over the column sums of the probabilities.
    """

    temperature: float
    steepness: float = 4.0
    centre: float = 0.8
    diversity: float = 0.1

    def __call__(self, features: Tensor, ids: Tensor, prototypes: Tensor, hidden: Tensor) -> Tensor:
        """Return the weighted entropy, less the diversity."""
        log_p = F.log_softmax(features @ prototypes.T / self.temperature, dim=1)
        p = log_p.exp()
        share = -(p * log_p).sum(dim=1) / math.log(max(p.shape[1], 2))
        return aeo_terms(share, self.steepness, self.centre).mean() - self.diversity * _entropy_of(p.sum(dim=0))


def aeo_terms(share: Tensor, steepness: float = 4.0, centre: float = 0.8) -> Tensor:
    """Return ``-H tanh(k (H - a))`` of entropies between 0 and 1 ``(B,)``.

    >>> [round(value, 7) for value in aeo_terms(torch.tensor([0.5, 0.9], dtype=torch.float64)).tolist()]
    [0.4168273, -0.3419541]
    """
    return -share * torch.tanh(steepness * (share - centre))


class Ostta:
    """OSTTA (Lee et al., 2023): entropy of those samples only whose confidence has not fallen since the start.

    A sample counts if ``p(c) >= p_0(c) + margin`` for the class c that the untouched encoder predicts (all count if
    none does). The entropy of the mean prediction is subtracted with weight ``diversity``.
    """

    def __init__(self, source: nn.Module, temperature: float, margin: float = 0.0, diversity: float = 1.0) -> None:
        self.source = copy.deepcopy(source)
        self.temperature, self.margin, self.diversity = temperature, margin, diversity

    def __call__(self, features: Tensor, ids: Tensor, prototypes: Tensor, hidden: Tensor) -> Tensor:
        """Return the entropy of the kept samples, less the diversity."""
        log_p = F.log_softmax(features @ prototypes.T / self.temperature, dim=1)
        p = log_p.exp()
        with torch.no_grad():
            before = F.normalize(self.source(hidden).float(), dim=1)
            p_before = F.softmax(before @ prototypes.T / self.temperature, dim=1)
            best, classes = p_before.max(dim=1)
            keep = p.gather(1, classes[:, None])[:, 0] >= best + self.margin
            keep = keep if keep.any() else torch.ones_like(keep)
        kept = -(p[keep] * log_p[keep]).sum(dim=1).mean()
        mean = p.mean(dim=0)
        return kept + self.diversity * (mean * mean.clamp(min=1e-12).log()).sum()


def _entropy_of(logits: Tensor) -> Tensor:
    log_p = F.log_softmax(logits, dim=0)
    return -(log_p.exp() * log_p).sum()


ADAPTERS: dict[str, Callable[[nn.Module, OnlineConfig], AdaptationLoss | None]] = {
    "talon": lambda head, online: None,
    "tent": lambda head, online: Tent(online.temperature),
    "aeo": lambda head, online: Aeo(online.temperature),
    "ostta": lambda head, online: Ostta(head, online.temperature),
}
"""The loss of an adapter by name, given the trained head; ``None`` is TALON's own."""
