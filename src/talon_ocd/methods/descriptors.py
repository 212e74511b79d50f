"""RankStat and WTA as descriptors (layer: methods; sections 3.5 and 3.6): which dimensions are strongest.

Both train a small embedding with labels alone. RankStat (Han et al., 2020) takes the set of its largest dimensions as
the category, WTA (Jia et al., 2021) the largest dimension of each group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.backbones import Backbone
from talon_ocd.backbones.base import Scope
from talon_ocd.errors import ConfigError
from talon_ocd.methods.base import Method, Trained
from talon_ocd.methods.codes import Codes, CodeStream, Values
from talon_ocd.methods.hashing import projection
from talon_ocd.methods.networks import HashMlp, HeadNetwork
from talon_ocd.methods.sgd_recipe import SgdRecipe
from talon_ocd.methods.training import Loss

MOST_DIMENSIONS = 256
"""A dimension must fit in a byte of the descriptor."""


def largest(values: Values, top: int) -> Codes:
    """Return where the ``top`` largest of each row of ``(B, L)`` are, in ascending order; ties go to the first.

    >>> largest(np.array([[0.1, 0.9, -2.0, 0.5, 0.7]]), top=3)
    array([[1, 3, 4]], dtype=uint8)
    """
    strongest = np.argsort(-values, axis=1, kind="stable")[:, :top]
    return np.sort(strongest, axis=1).astype(np.uint8)


def winners(values: Values, groups: int) -> Codes:
    """Return where the largest of each of ``groups`` contiguous groups is, counted within the group.

    >>> winners(np.array([[0.1, 0.9, -2.0, -3.0]]), groups=2)
    array([[1, 0]], dtype=uint8)
    """
    best: Values = values.reshape(len(values), groups, -1).argmax(axis=2)
    return best.astype(np.uint8)


class DescriptorNetwork(HeadNetwork):
    """Hidden ``(B, *hidden_shape)`` -> embedding ``(B, L)`` by MLP and projection; a linear layer names the class."""

    def __init__(
        self, backbone: Backbone, dimensions: int, classes: int, mlp_width: int = 2048, scope: Scope = "head"
    ) -> None:
        super().__init__(backbone, scope)
        self.mlp = HashMlp(self.feature_size, mlp_width)
        self.embedding = projection(HashMlp.size, dimensions)
        self.classifier = nn.Linear(dimensions, classes)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the embedding ``(B, L)``."""
        values: Tensor = self.embedding(self.mlp(super().forward(hidden)))
        return values


@dataclass(frozen=True)
class DescriptorRecipe(SgdRecipe):
    """Fully supervised training of an embedding: cross-entropy of one view."""

    dimensions: int = 32
    """L, the size of the embedding."""

    def __post_init__(self) -> None:
        if not 1 <= self.dimensions <= MOST_DIMENSIONS:
            raise ConfigError(f"an embedding of {self.dimensions} dimensions can't be; use 1 to {MOST_DIMENSIONS}.")

    def network(self, backbone: Backbone, classes: int) -> DescriptorNetwork:
        """Return head, MLP, embedding and classifier."""
        return DescriptorNetwork(backbone, self.dimensions, classes, self.mlp_width, self.trainable)

    def loss(self, network: Any) -> Loss:
        """Return the cross-entropy of the first view."""

        def supervised(views: Tensor, labels: Tensor) -> dict[str, Tensor]:
            # One image alone has no batch statistics; its two views together have.
            alone = len(labels) == 1
            hidden, truth = (views.flatten(0, 1), labels.repeat(2)) if alone else (views[0], labels)
            return {"loss": F.cross_entropy(network.classifier(network(hidden)), truth)}

        return supervised


@dataclass(frozen=True)
class RankStatMethod(Method):
    """A category is the unordered set of the ``top`` largest dimensions."""

    recipe: DescriptorRecipe = field(default_factory=DescriptorRecipe)
    top: int = 3
    """Dimensions in a descriptor."""

    def __post_init__(self) -> None:
        if not 1 <= self.top <= self.recipe.dimensions:
            raise ConfigError(f"top={self.top} of {self.recipe.dimensions} dimensions can't be; use 1 or more of them.")

    def stream(self, trained: Trained) -> CodeStream:
        """Open a stream with an empty dictionary."""
        return CodeStream(trained.network, trained.known, partial(largest, top=self.top))


@dataclass(frozen=True)
class WtaMethod(Method):
    """A category is the winner of each of ``groups`` contiguous groups of dimensions."""

    recipe: DescriptorRecipe = field(default_factory=lambda: DescriptorRecipe(dimensions=48))
    groups: int = 3
    """Winners in a descriptor."""

    def __post_init__(self) -> None:
        if self.groups < 1 or self.recipe.dimensions % self.groups:
            raise ConfigError(f"{self.recipe.dimensions} dimensions don't part into {self.groups} groups of one size.")

    def stream(self, trained: Trained) -> CodeStream:
        """Open a stream with an empty dictionary."""
        return CodeStream(trained.network, trained.known, partial(winners, groups=self.groups))
