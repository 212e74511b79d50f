"""The released code's way of an online batch, as methods 3.1.3 to 3.1.6 describe it (room: benchmarks).

Slow on purpose: two forward passes of the whole encoder, and a Python loop over queries, classes and prototypes. The
stream must give the same ids (``tests/benchmarks``) and is measured against it. It is in float32, as the stream is.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.backbones import Backbone
from talon_ocd.config import OnlineConfig


class OneByOne:
    """Decisions and prototype update (TTA-P), one query and one prototype at a time.

    >>> twin = OneByOne(torch.eye(2), OnlineConfig(threshold=0.9))
    >>> twin.decide(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.6, 0.8]]))
    [0, 2, 2]
    """

    def __init__(self, prototypes: Tensor, config: OnlineConfig, known: int | None = None) -> None:
        self.prototypes = F.normalize(prototypes.detach().clone(), dim=1)
        self.known = len(prototypes) if known is None else known
        self.config = config
        self._threshold = float(config.threshold)
        self._groups: dict[int, list[Tensor]] = {}

    def decide(self, features: Tensor) -> list[int]:
        """Answer unit features ``(B, D)`` in order (3.1.3); a new prototype is appended by a copy of all."""
        self._groups = {}
        return [self._answer(feature) for feature in features]

    def update(self) -> None:
        """Move the prototypes of this batch's groups (3.1.4), then normalise all of them."""
        for category, group in self._groups.items():
            if len(group) > 1:
                self._move(category, torch.stack(group))
        self.prototypes = F.normalize(self.prototypes, dim=1)

    def _answer(self, feature: Tensor) -> int:
        similarities = self.prototypes @ feature
        best, nearest = similarities.max(dim=0)
        category = int(nearest)
        if float(best) < self._threshold:
            category = len(self.prototypes)
            self.prototypes = torch.cat([self.prototypes, feature[None]])
        self._groups.setdefault(category, []).append(feature)
        return category

    def _move(self, category: int, group: Tensor) -> None:
        config, new, number = self.config, category >= self.known, len(group)
        eta, kappa = (config.eta_new, config.kappa_new) if new else (config.eta_known, config.kappa_known)
        prototype = self.prototypes[category]
        confidence = float((group @ prototype).mean().clamp(0.0, 1.0))
        alpha = eta * confidence * number / (number + kappa)
        self.prototypes[category] = F.normalize((1.0 - alpha) * prototype + alpha * group.mean(dim=0), dim=0)


class TwoForward:
    """Both adaptations: encode and decide without gradient, then encode once more with it (TTA-M).

    The encoder is ours, head included, so that only the formulation differs from the stream's.
    """

    def __init__(self, backbone: Backbone, prototypes: Tensor, config: OnlineConfig) -> None:
        self.decisions = OneByOne(prototypes, config)
        self.config = config
        self._trunk, self._head = backbone.trunk, copy.deepcopy(backbone.head).requires_grad_(False)
        named = dict(self._head.named_parameters())
        self._parameters = [named[name] for name in backbone.head_parameter_names(config.encoder_scope)]
        for parameter in self._parameters:
            parameter.requires_grad_(True)
        self._optimizer = torch.optim.SGD(self._parameters, lr=config.encoder_lr)

    def observe(self, pixels: Tensor) -> list[int]:
        """Answer one batch of pixels ``(B, 3, H, W)`` and learn from it, in the order of 3.1.6."""
        with torch.no_grad():
            features = self._encode(pixels)
        ids = self.decisions.decide(features)
        self._adapt(pixels, ids)
        self.decisions.update()
        return ids

    def _encode(self, pixels: Tensor) -> Tensor:
        return F.normalize(self._head(self._trunk(pixels)), dim=1)

    def _adapt(self, pixels: Tensor, ids: list[int]) -> None:
        loss = released_loss(self._encode(pixels), ids, self.decisions.prototypes, self.config)
        self._optimizer.zero_grad()
        loss.backward()
        if self.config.encoder_clip is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self.config.encoder_clip)
        self._optimizer.step()


def released_loss(features: Tensor, ids: list[int], prototypes: Tensor, config: OnlineConfig) -> Tensor:
    """Return ``L_ent - β1 A - β2 R`` (3.1.5) with a loop over the classes of the batch."""
    probabilities = (features @ prototypes.T / config.temperature).softmax(dim=1)
    entropy = -(probabilities * probabilities.clamp(min=1e-12).log()).sum(dim=1).mean()
    labels = torch.tensor(ids)
    means, aligned = [], []
    for category in sorted(set(ids)):
        mean = F.normalize(features[labels == category].mean(dim=0), dim=0)
        means.append(mean)
        aligned.append(mean @ prototypes[category])
    number, stacked = len(means), torch.stack(means)
    others = ~torch.eye(number, dtype=torch.bool)
    repulsion = (1.0 - stacked @ stacked.T)[others].mean() if number > 1 else torch.zeros(())
    return entropy - config.align_weight * torch.stack(aligned).mean() - config.repel_weight * repulsion
