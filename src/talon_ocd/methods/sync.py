"""SynC: class means with a threshold each, inherited by what is discovered (layer: methods; section 3.15).

A supervised contrastive loss trains the head. A known class c accepts a feature z when ``z·μ_c ≥ t_c``, with
``t_c = mean - k std`` of the cosines of its own labelled images. The largest margin ``z·μ_c - t_c`` decides; where even
that is negative, z founds a category with the threshold of the one that came nearest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.backbones import Backbone
from talon_ocd.methods.base import GradientRecipe, Method, Trained
from talon_ocd.methods.networks import HeadNetwork
from talon_ocd.methods.streams import Match, OneByOneStream, Vector
from talon_ocd.methods.training import Group, Training
from talon_ocd.offline import Labelled, class_means, encode, learning_rate, supcon
from talon_ocd.progress import Progress

GROWTH = 1.5


@dataclass(frozen=True)
class SyncRecipe(GradientRecipe):
    """Supervised contrast alone; facts are ``prototypes`` ``(C, D)``, ``means`` and ``stds`` ``(C,)``."""

    lr: float = 1e-3
    """Peak learning rate of AdamW, down a cosine to 0."""
    weight_decay: float = 1e-3
    """Weight decay of the head."""
    temperature: float = 0.07
    """T of the contrastive loss."""

    def network(self, backbone: Backbone, classes: int) -> HeadNetwork:
        """Return the head alone."""
        return HeadNetwork(backbone)

    def train(self, network: HeadNetwork, labelled: Labelled, seed: int, progress: Progress) -> dict[str, Any]:
        """Minimise the contrastive loss of both views."""

        def loss(hidden: Tensor, labels: Tensor) -> dict[str, Tensor]:
            features = F.normalize(network(hidden.flatten(0, 1)).float(), dim=1)
            return {"loss": supcon(features, labels.repeat(2), self.temperature)}

        training = Training(self.epochs, self.batch_size, "adamw", partial(learning_rate, epochs=self.epochs))
        groups = [Group(network.head_parameters(), self.lr, self.weight_decay)]
        return training.run(network, groups, loss, labelled, seed, progress)

    def facts(self, network: HeadNetwork, labelled: Labelled) -> dict[str, Tensor]:
        """Return class means, and what the cosines of each class to its own mean are like."""
        features = encode(network, labelled.outputs).cpu()
        prototypes = class_means(features, labelled.labels, labelled.classes)
        means, stds = own_cosines(features, labelled.labels, prototypes)
        return {"prototypes": prototypes, "means": means, "stds": stds}


@dataclass(frozen=True)
class SyncMethod(Method):
    """SynC.

    Attributes:
        recipe: how the features are trained.
        deviations: k of ``t_c = mean - k std``; the released code has 3 and 3.5.
    """

    recipe: SyncRecipe = field(default_factory=SyncRecipe)
    deviations: float = 3.0

    def stream(self, trained: Trained) -> SyncStream:
        """Open a stream with its own prototypes."""
        thresholds = trained.facts["means"] - self.deviations * trained.facts["stds"]
        return SyncStream(trained.network, trained.facts["prototypes"], thresholds)


class SyncStream(OneByOneStream):
    """Joins the largest margin if it is not negative; similarities of its answers are margins."""

    unit = "margin"

    def __init__(self, network: nn.Module, prototypes: Tensor, thresholds: Tensor) -> None:
        super().__init__(network, known=len(prototypes), threshold=0.0)
        # A row holds prototype and -threshold: its product with (z, 1) is the margin.
        self._rows = torch.cat([prototypes, -thresholds[:, None]], dim=1).float().numpy()
        self._size = len(self._rows)

    @property
    def size(self) -> int:
        """Prototypes in memory."""
        return self._size

    @property
    def thresholds(self) -> Tensor:
        """What a cosine to each prototype must reach ``(K,)``."""
        return torch.from_numpy(-self._rows[: self._size, -1])

    def encode(self, hidden: Tensor) -> Tensor:
        """Return unit features ``(B, D)``."""
        return F.normalize(super().encode(hidden).float(), dim=1)

    def match(self, feature: Vector) -> Match:
        """Return the two largest margins."""
        margins = self._rows[: self._size] @ np.append(feature, np.float32(1.0))
        best = int(margins.argmax())
        largest = float(margins[best])
        if self._size == 1:
            return Match(best, largest)
        margins[best] = -np.inf
        second = int(margins.argmax())
        return Match(best, largest, second, float(margins[second]))

    def found(self, feature: Vector, match: Match) -> None:
        """Add the feature as a prototype with the threshold of the category that came nearest."""
        if self._size == len(self._rows):
            room = np.empty((max(int(self._size * GROWTH), self._size + 16), self._rows.shape[1]), np.float32)
            room[: self._size] = self._rows
            self._rows = room
        self._rows[self._size] = np.append(feature, self._rows[match.category, -1])
        self._size += 1

    def state_dict(self) -> dict[str, Tensor]:
        """Return the rows of what was founded."""
        return {"founded": torch.from_numpy(self._rows[self.known : self._size].copy())}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take the rows over."""
        self._rows = np.concatenate([self._rows[: self.known], state["founded"].numpy()])
        self._size = len(self._rows)


def own_cosines(features: Tensor, labels: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation ``(C,)`` of the cosines of features ``(N, D)`` to their own prototype.

    >>> mean, std = own_cosines(torch.eye(2)[[0, 1]], torch.tensor([0, 0]), torch.tensor([[1.0, 0.0]]))
    >>> mean.tolist(), std.tolist()
    ([0.5], [0.5])
    """
    cosines = (features * prototypes[labels]).sum(dim=1).double()
    counts = torch.bincount(labels, minlength=len(prototypes)).clamp(min=1)
    sums = torch.zeros(len(prototypes), dtype=torch.float64)
    means = sums.index_add(0, labels, cosines) / counts
    variances = sums.index_add(0, labels, (cosines - means[labels]).square()) / counts
    return means.float(), variances.sqrt().float()
