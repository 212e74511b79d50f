"""Encoder update of the stream, TTA-M (layer: online; section 3.1.5 of the specification).

    L_tta = L_ent - β1 A - β2 R

L_ent is the entropy of the softmax over prototypes, A the cosine between the batch's class means and their prototypes,
R the mean of one minus the cosine between class means. Prototypes are constants here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.config import OnlineConfig


def entropy(features: Tensor, prototypes: Tensor, temperature: float) -> Tensor:
    """Return the mean entropy of ``softmax(z μ / T)`` over prototypes ``(K, D)`` for unit features ``(B, D)``."""
    log_p = F.log_softmax(features @ prototypes.T / temperature, dim=1)
    return -(log_p.exp() * log_p).sum(dim=1).mean()


def class_means(features: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the categories present ``(L,)`` and the unit means ``(L, D)`` of their features ``(B, D)``."""
    present, group = ids.unique(return_inverse=True)
    sums = torch.zeros(len(present), features.shape[1], dtype=features.dtype, device=features.device)
    return present, F.normalize(sums.index_add(0, group, features), dim=1)


def alignment(means: Tensor, prototypes: Tensor) -> Tensor:
    """Return the sum over classes of the cosine between mean ``(L, D)`` and prototype ``(L, D)``."""
    return (means * prototypes).sum()


def repulsion(means: Tensor) -> Tensor:
    """Return the sum over ordered pairs of different classes of ``1 - m_l m_l'`` for unit means ``(L, D)``."""
    number = len(means)
    return number * (number - 1) - ((means @ means.T).sum() - (means * means).sum())


def adaptation_loss(features: Tensor, ids: Tensor, prototypes: Tensor, config: OnlineConfig) -> Tensor:
    """Return L_tta of unit features ``(B, D)`` answered with ``ids`` ``(B,)`` against prototypes ``(K, D)``."""
    present, means = class_means(features, ids)
    number = len(present)
    classes = number if config.align_over == "present" else len(prototypes)
    pairs = max(number * (number - 1), 1) if config.repel_reduction == "mean" else 1
    sign = -1.0 if config.repel_sign == "apart" else 1.0
    return (
        config.entropy_weight * entropy(features, prototypes, config.temperature)
        - config.align_weight * alignment(means, prototypes[present]) / classes
        + sign * config.repel_weight * repulsion(means) / pairs
    )


class AdaptationLoss(Protocol):
    """What the encoder update minimises: L_tta, or another method's loss."""

    def __call__(self, features: Tensor, ids: Tensor, prototypes: Tensor, hidden: Tensor) -> Tensor:
        """Return the loss of unit features ``(B, D)`` answered with ``ids`` ``(B,)`` against prototypes ``(K, D)``.

        ``hidden`` ``(B, *hidden_shape)`` are the trunk outputs that the features come from.
        """


class EncoderAdapter:
    """Plain gradient steps on the promised parameters of a head; nothing else of it can move.

    Attributes:
        steps: gradient steps taken.
        refused: steps left out because their gradient was not finite.
    """

    def __init__(
        self,
        head: nn.Module,
        parameter_names: Sequence[str],
        config: OnlineConfig,
        loss: AdaptationLoss | None = None,
    ) -> None:
        self.head = head
        self.loss = loss
        self.config = config
        named = dict(head.named_parameters())
        self.parameters = [named[name] for name in parameter_names]
        head.requires_grad_(False)
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        self.steps = 0
        self.refused = 0

    def encode(self, hidden: Tensor, with_graph: bool = False) -> Tensor:
        """Return unit features ``(B, D)`` of trunk outputs; with a graph they serve the next ``step`` too."""
        half = torch.autocast(hidden.device.type, torch.bfloat16, enabled=self.config.autocast)
        with torch.set_grad_enabled(with_graph), half:
            raw_features: Tensor = self.head(hidden)
        with torch.set_grad_enabled(with_graph):
            return F.normalize(raw_features.float(), dim=1)

    def step(self, hidden: Tensor, ids: Tensor, prototypes: Tensor, features: Tensor | None = None) -> None:
        """Take the configured steps on a batch; ``features`` with a graph spare the first forward pass."""
        for _ in range(self.config.encoder_steps):
            if features is None:
                features = self.encode(hidden, with_graph=True)
            if self.loss is None:
                self._descend(adaptation_loss(features, ids, prototypes, self.config))
            else:
                self._descend(self.loss(features, ids, prototypes, hidden))
            features = None

    def state_dict(self) -> dict[str, Tensor]:
        """Return what the steps have moved, and their number."""
        moved = {f"parameters.{number}": value.detach().clone() for number, value in enumerate(self.parameters)}
        return {**moved, "steps": torch.tensor(self.steps), "refused": torch.tensor(self.refused)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take the moved parameters of ``state_dict`` over."""
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters):
                parameter.copy_(state[f"parameters.{number}"])
        self.steps, self.refused = int(state["steps"]), int(state["refused"])

    def _descend(self, loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, self.parameters)
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad) for grad in gradients]))
        if not torch.isfinite(norm):  # the released code's gradient scaler skips such steps as well
            self.refused += 1
            return
        clip = self.config.encoder_clip
        factor = 1.0 if clip is None else min(1.0, clip / (float(norm) + 1e-6))
        with torch.no_grad():
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.sub_(gradient, alpha=self.config.encoder_lr * factor)
        self.steps += 1
