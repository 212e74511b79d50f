"""Gradient training of a method's network (layer: methods): parameter groups, a rate for each epoch, a loss."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from talon_ocd.offline import Labelled, Loop
from talon_ocd.progress import Progress

Loss = Callable[[Tensor, Tensor], dict[str, Tensor]]
"""``(hidden (2, B, *hidden_shape) of two views, labels (B,)) -> losses by name``; ``loss`` is minimised."""
Rate = Callable[[int, float], float]
"""``(epoch, base learning rate) -> learning rate``."""
MOMENTUM = 0.9


@dataclass(frozen=True)
class Group:
    """Parameters that share a learning rate and a weight decay."""

    parameters: Iterable[nn.Parameter]
    lr: float
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Training:
    """How a network is trained.

    Attributes:
        epochs: times through the images.
        batch_size: images a step.
        optimizer: ``sgd`` (momentum 0.9) or ``adamw``.
        rate: learning rate of an epoch; see ``cosine_rate`` and ``talon_ocd.offline.learning_rate``.
        parts: names of the losses to report, ``loss`` first.
        whole_batches: leave out a partial batch at the end of an epoch (batch normalisation needs it).
    """

    epochs: int
    batch_size: int
    optimizer: Literal["sgd", "adamw"]
    rate: Rate
    parts: tuple[str, ...] = ("loss",)
    whole_batches: bool = False

    def run(
        self,
        network: nn.Module,
        groups: list[Group],
        loss: Loss,
        labelled: Labelled,
        seed: int,
        progress: Progress,
        start_epoch: Callable[[int], None] = lambda epoch: None,
    ) -> dict[str, Any]:
        """Train ``network`` in place, in training mode; returns steps, the losses of every epoch and the time."""
        started = time.perf_counter()
        network.train()
        optimizer, bases = self._optimizer(groups)
        device = optimizer.param_groups[0]["params"][0].device if self.epochs else torch.device("cpu")
        labels = labelled.labels.to(device)

        steps = 0

        def step(index: Tensor, draws: torch.Generator) -> list[Tensor]:
            nonlocal steps
            steps += 1
            parts = loss(labelled.views.pair(index, draws), labels[index.to(device)])
            optimizer.zero_grad()
            parts["loss"].backward()
            optimizer.step()
            return [parts[name] for name in self.parts]

        remedy = f"lower the learning rate ({', '.join(f'{base:g}' for base in bases)})"
        loop = Loop(len(labelled), self.batch_size, seed, self.parts, remedy, self.whole_batches)
        losses = []
        with progress.task("Training", self.epochs * len(labelled)) as task:
            for epoch in range(self.epochs):
                for group, base in zip(optimizer.param_groups, bases, strict=True):
                    group["lr"] = self.rate(epoch, base)
                start_epoch(epoch)
                losses.append(loop.epoch(epoch, step, task, device))
        seconds = time.perf_counter() - started
        return {"epochs": self.epochs, "steps": steps, "losses": losses, "seconds": seconds}

    def _optimizer(self, groups: list[Group]) -> tuple[torch.optim.Optimizer, list[float]]:
        described = []
        for group in groups:
            parameters = list(group.parameters)
            for parameter in parameters:
                parameter.requires_grad_(True)
            described.append({"params": parameters, "lr": group.lr, "weight_decay": group.weight_decay})
        bases = [group.lr for group in groups]
        if self.optimizer == "sgd":
            return torch.optim.SGD(described, momentum=MOMENTUM), bases
        return torch.optim.AdamW(described), bases


def cosine_rate(epochs: int, floor_share: float = 1e-3) -> Rate:
    """Return the cosine of SMILE: from the base rate down to ``floor_share`` of it."""

    def rate(epoch: int, base: float) -> float:
        floor = base * floor_share
        return floor + (base - floor) * (1 + math.cos(math.pi * epoch / max(epochs, 1))) / 2

    return rate
