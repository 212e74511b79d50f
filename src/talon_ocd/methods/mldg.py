"""MLDG on BaseHash (layer: methods; section 3.7): learn some classes so that others gain (Li et al., AAAI 2018).

Every batch parts its classes at random. A step on one half must lower the loss of the other half as well:
``F(θ) + b G(θ - a ∇F(θ))`` is minimised, by default through the step (second order).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from talon_ocd.methods.hashing import HashRecipe
from talon_ocd.methods.training import Loss
from talon_ocd.offline import Labelled, generator
from talon_ocd.progress import Progress

Parameters = dict[str, Tensor]
Half = tuple[Tensor, Tensor]
"""Views ``(2, b, *hidden_shape)`` and labels ``(b,)`` of some classes of a batch."""
Objective = Callable[[Parameters, Tensor, Tensor], Tensor]
"""``(parameters, views, labels) -> loss``."""


def meta_losses(
    objective: Objective, parameters: Parameters, train: Half, test: Half, rate: float, first_order: bool = False
) -> tuple[Tensor, Tensor]:
    """Return ``F(θ)`` of the first half and ``G(θ - rate ∇F(θ))`` of the second.

    ``first_order`` takes ``∇F`` for a constant when G is differentiated.
    """
    before = objective(parameters, *train)
    gradients = torch.autograd.grad(
        before,
        list(parameters.values()),
        create_graph=not first_order,
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    stepped = {
        name: value - rate * gradient for (name, value), gradient in zip(parameters.items(), gradients, strict=True)
    }
    return before, objective(stepped, *test)


def first_half(labels: Tensor, draws: torch.Generator) -> Tensor:
    """Return which images ``(B,)`` are of the randomly chosen half of the classes; of an odd number the larger."""
    present = labels.unique()
    chosen = torch.randperm(len(present), generator=draws)[: (len(present) + 1) // 2]
    return torch.isin(labels, present[chosen.to(labels.device)])


@dataclass(frozen=True)
class MldgRecipe(HashRecipe):
    """How BaseHash is trained with MLDG."""

    lr: float = 0.002
    """Learning rate; a fifth of BaseHash's, at which the loss of MLDG does not fall (see its page)."""
    meta_weight: float = 1.0
    """b, the weight of G."""
    meta_lr: float | None = None
    """a, the length of the step; ``None`` is the learning rate of the epoch."""
    first_order: bool = False
    """Take the gradient of the step for a constant: cheaper, and not what MLDG is named for."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The sum, F and G."""
        return ("loss", "meta_train", "meta_test")

    def train(self, network: nn.Module, labelled: Labelled, seed: int, progress: Progress) -> dict[str, Any]:
        """Minimise ``F + b G``; rate and split change with the epoch."""
        rate, groups = self.training.rate, self.groups(network)
        loss = MetaLoss(network, self)

        def start_epoch(epoch: int) -> None:
            loss.rate = rate(epoch, self.lr) if self.meta_lr is None else self.meta_lr
            loss.draws = generator(seed, "meta-split", epoch)

        return self.training.run(network, groups, loss, labelled, seed, progress, start_epoch)

    def loss(self, network: Any) -> Loss:
        """Return ``F + b G`` at the learning rate of the first epoch."""
        return MetaLoss(network, self)


class MetaLoss:
    """``F(θ) + b G(θ')`` of a batch; a batch of one class has no G.

    Attributes:
        rate: a, the length of the step.
        draws: decides how classes are parted.
    """

    def __init__(self, network: nn.Module, recipe: MldgRecipe) -> None:
        self._network, self._recipe = network, recipe
        self.rate = recipe.lr if recipe.meta_lr is None else recipe.meta_lr
        self.draws = torch.Generator().manual_seed(0)

    def __call__(self, views: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the losses of views ``(2, B, *hidden_shape)`` with labels ``(B,)``."""
        parameters: Parameters = {
            name: value for name, value in self._network.named_parameters() if value.requires_grad
        }
        first = first_half(labels, self.draws)
        train, test = ((views[:, chosen], labels[chosen]) for chosen in (first, ~first))
        if not len(test[1]):
            alone = self._objective(parameters, *train)
            return {"loss": alone, "meta_train": alone, "meta_test": torch.zeros_like(alone)}
        with differentiable_twice(not self._recipe.first_order):
            before, after = meta_losses(self._objective, parameters, train, test, self.rate, self._recipe.first_order)
        return {"loss": before + self._recipe.meta_weight * after, "meta_train": before, "meta_test": after}

    def _objective(self, parameters: Parameters, views: Tensor, labels: Tensor) -> Tensor:
        embedding: Tensor = functional_call(self._network, parameters, (views.flatten(0, 1),))
        return self._recipe.contrast(embedding, labels)


@contextmanager
def differentiable_twice(needed: bool) -> Iterator[None]:
    """Run attention by its plain formula inside: the fast kernels have no second derivative."""
    if not needed:
        yield
        return
    with sdpa_kernel(SDPBackend.MATH):
        yield
