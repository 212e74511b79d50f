"""BaseHash and SMILE (layer: methods; section 3.8): the signs of a short projection are the category.

BaseHash contrasts the projection itself. SMILE (Du et al., CVPR 2023) contrasts sign times magnitude, with a branch for
each, so that what varies within a class has a place that is not part of the code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.backbones import Backbone
from talon_ocd.backbones.base import Scope
from talon_ocd.errors import ConfigError
from talon_ocd.methods.base import Method, Trained
from talon_ocd.methods.codes import Codes, CodeStream, Values
from talon_ocd.methods.networks import HashMlp, HeadNetwork
from talon_ocd.methods.sgd_recipe import SgdRecipe
from talon_ocd.methods.training import Loss
from talon_ocd.offline import supcon

NEAR_ZERO = 0.03
"""Below it ``v / tanh v`` is taken from its series, which is exact to 2e-12 there."""


def sign_codes(values: Values) -> Codes:
    """Return the bits ``values > 0`` ``(B, L)``, eight to a byte.

    >>> sign_codes(np.array([[-0.5, 0.1, 2.0, 0.0]]))
    array([[96]], dtype=uint8)
    """
    return np.packbits(values > 0, axis=1)


def magnitude(values: Tensor) -> Tensor:
    """Return ``v / tanh v``: 1 at 0, ``|v|`` far from it, and at least 1 everywhere.

    >>> magnitude(torch.tensor([2.0, 0.5, 0.0]))
    tensor([2.0746, 1.0820, 1.0000])
    """
    near = values.abs() < NEAR_ZERO
    square = values.square()
    # The quotient must not see a 0 at all: its gradient would be NaN even where it is not chosen.
    away = torch.where(near, torch.ones_like(values), values)
    return torch.where(near, 1 + square / 3 - square.square() / 45, away / away.tanh())


def projection(inputs: int, outputs: int) -> nn.Sequential:
    """Return ``BN(W e)``: features ``(B, inputs)`` -> ``(B, outputs)``; the normalisation makes a bias idle."""
    linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.trunc_normal_(linear.weight, std=0.02)
    return nn.Sequential(linear, nn.BatchNorm1d(outputs))


class HashNetwork(HeadNetwork):
    """BaseHash: hidden ``(B, *hidden_shape)`` -> ``x = BN(W e)`` ``(B, L)``, whose signs are the code."""

    def __init__(self, backbone: Backbone, bits: int, mlp_width: int = 2048, scope: Scope = "head") -> None:
        super().__init__(backbone, scope)
        self.mlp = HashMlp(self.feature_size, mlp_width)
        self.code = projection(HashMlp.size, bits)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return ``x`` ``(B, L)``."""
        values: Tensor = self.code(self.mlp(super().forward(hidden)))
        return values


class SmileNetwork(HashNetwork):
    """SMILE: hidden ``(B, *hidden_shape)`` -> sign branch ``h`` ``(B, L)``, between -1 and 1."""

    def __init__(self, backbone: Backbone, bits: int, mlp_width: int = 2048, scope: Scope = "head") -> None:
        super().__init__(backbone, bits, mlp_width, scope)
        self.strength = projection(HashMlp.size, bits)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return ``h = tanh(BN(W_h e))`` ``(B, L)``."""
        return super().forward(hidden).tanh()

    def branches(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``h`` and the magnitude ``ρ``, both ``(B, L)``."""
        features = self.mlp(self.head(hidden))
        return self.code(features).tanh(), magnitude(self.strength(features))


@dataclass(frozen=True)
class HashRecipe(SgdRecipe):
    """How BaseHash is trained."""

    bits: int = 12
    """L, the length of the code: at most ``2 ** bits`` categories."""
    temperature: float = 0.07
    """T of the contrastive loss."""

    def __post_init__(self) -> None:
        if self.bits < 1:
            raise ConfigError(f"a code of {self.bits} bits can't be; use 1 or more (the paper has 12).")

    def network(self, backbone: Backbone, classes: int) -> HashNetwork:
        """Return head, MLP and projection."""
        return HashNetwork(backbone, self.bits, self.mlp_width, self.trainable)

    def loss(self, network: Any) -> Loss:
        """Return ``L_sup(norm(x))``."""

        def contrast(views: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": self.contrast(network(views.flatten(0, 1)), labels)}

        return contrast

    def contrast(self, embedding: Tensor, labels: Tensor) -> Tensor:
        """Return ``L_sup`` of the embeddings ``(2B, L)`` of two views of images with labels ``(B,)``."""
        return supcon(F.normalize(embedding, dim=1), labels.repeat(2), self.temperature)


@dataclass(frozen=True)
class SmileRecipe(HashRecipe):
    """How SMILE is trained."""

    sharpness_weight: float = 3.0
    """Weight of ``mean(1 - |h|)``, which drives the sign branch away from 0."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The sum, and both its parts without their weights."""
        return ("loss", "supcon", "sharpness")

    def network(self, backbone: Backbone, classes: int) -> SmileNetwork:
        """Return head, MLP and both branches."""
        return SmileNetwork(backbone, self.bits, self.mlp_width, self.trainable)

    def loss(self, network: Any) -> Loss:
        """Return ``L_sup(norm(h ρ)) + 3 mean(1 - |h|)``."""

        def smile(views: Tensor, labels: Tensor) -> dict[str, Tensor]:
            signs, sizes = network.branches(views.flatten(0, 1))
            contrast = self.contrast(signs * sizes, labels)
            sharpness = (1 - signs.abs()).mean()
            return {"loss": contrast + self.sharpness_weight * sharpness, "supcon": contrast, "sharpness": sharpness}

        return smile


@dataclass(frozen=True)
class HashMethod(Method):
    """A category is a pattern of signs."""

    recipe: HashRecipe = field(default_factory=HashRecipe)

    def stream(self, trained: Trained) -> CodeStream:
        """Open a stream with an empty dictionary."""
        return CodeStream(trained.network, trained.known, sign_codes)
