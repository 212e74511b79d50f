"""LTC, learning through creation (layer: methods; section 3.11): training rehearses discovery with made-up unknowns.

The loss ``L_ce + a L_sup + b L_mm`` keeps real images above a threshold τ and pseudo-unknown ones below it. τ follows
the quantiles of both. In the stream τ decides as in TALON, and nothing moves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.backbones import Backbone
from talon_ocd.config import OnlineConfig
from talon_ocd.memory import PrototypeMemory
from talon_ocd.methods.base import GradientRecipe, Method, Trained
from talon_ocd.methods.ltc_generator import Mkee
from talon_ocd.methods.networks import HeadNetwork
from talon_ocd.methods.streams import PrototypeStream
from talon_ocd.methods.training import Group, Training
from talon_ocd.offline import Labelled, class_means, encode, learning_rate, supcon
from talon_ocd.online import FeatureStream
from talon_ocd.online.feature_stream import CHUNK
from talon_ocd.progress import Progress

FIRST_GENERATING_EPOCH = 1
"""The released loop has 1, although an argument of it says 3."""
LOW, HIGH = 0.20, 0.80
"""Quantiles of the scores of real and of pseudo-unknown images that τ lies between."""


@dataclass(frozen=True)
class LtcRecipe(GradientRecipe):
    """Training with pseudo-unknowns; facts are ``prototypes`` ``(C, D)`` and the learned ``threshold``."""

    lr: float = 1e-3
    """Peak learning rate of AdamW for all that is trained. The code has 1e-2 (see the docs)."""
    weight_decay: float = 1e-3
    """Weight decay of all that is trained."""
    warmup_epochs: int = 5
    """Epochs of linear warm-up from 1e-4."""
    lr_floor: float = 1e-5
    """Learning rate that the cosine ends at."""
    scale: float = 20.0
    """First value of the learnt factor of the cosine logits."""
    temperature: float = 0.07
    """T of L_sup."""
    supcon_weight: float = 0.3
    """a, weight of L_sup."""
    margin_weight: float = 0.05
    """b, weight of L_mm."""
    margin: float = 0.05
    """m⁺ = m⁻, what scores should keep from τ."""
    threshold: float = 0.7
    """First value of τ."""
    threshold_rate: float = 0.010
    """β, how fast τ follows; code 0.010, paper 0.001."""
    generate_share: float = 0.3
    """Share of the batches that get pseudo-unknowns."""
    generator: Mkee = field(default_factory=Mkee)
    """How they are made."""

    def network(self, backbone: Backbone, classes: int) -> LtcNetwork:
        """Return the head with an untrained cosine classifier."""
        return LtcNetwork(backbone, classes, self.scale)

    def train(self, network: LtcNetwork, labelled: Labelled, seed: int, progress: Progress) -> dict[str, Any]:
        """Minimise the loss; τ moves along and stays in the network."""
        loss = LtcLoss(network, self, np.random.default_rng(seed))
        training = Training(self.epochs, self.batch_size, "adamw", self.rate, ("loss", "cross", "supcon", "margin"))
        parameters = [*network.head_parameters(), network.weight, network.scale]
        groups = [Group(parameters, self.lr, self.weight_decay)]
        report = training.run(network, groups, loss, labelled, seed, progress, loss.start_epoch)
        return {**report, "threshold": float(network.threshold)}

    def rate(self, epoch: int, base: float) -> float:
        """Return the rate of an epoch: the released scheduler is one epoch late, so the first two share a rate."""
        return learning_rate(max(epoch - 1, 0), base, self.epochs, self.warmup_epochs, floor=self.lr_floor)

    def facts(self, network: LtcNetwork, labelled: Labelled) -> dict[str, Tensor]:
        """Return class means of the clean views, and τ."""
        features = encode(network, labelled.outputs).cpu()
        prototypes = class_means(features, labelled.labels, labelled.classes)
        return {"prototypes": prototypes, "threshold": network.threshold.double().cpu()}


@dataclass(frozen=True)
class LtcMethod(Method):
    """LTC: nearest prototype if its cosine reaches the learned τ, else a new one; prototypes stay where they are."""

    recipe: LtcRecipe = field(default_factory=LtcRecipe)

    def stream(self, trained: Trained) -> PrototypeStream:
        """Open a stream with its own memory."""
        online = OnlineConfig(threshold=float(trained.facts["threshold"]), adapt=(), adapt_every=CHUNK)
        memory = PrototypeMemory(trained.facts["prototypes"])
        return PrototypeStream(trained.network, FeatureStream(memory, online, trained.names))


class LtcNetwork(HeadNetwork):
    """The head, with what only training looks at: class vectors, their scale, and τ."""

    threshold: Tensor

    def __init__(self, backbone: Backbone, classes: int, scale: float) -> None:
        super().__init__(backbone)
        self.weight = nn.Parameter(torch.randn(classes, self.feature_size))
        self.scale = nn.Parameter(torch.tensor(scale))
        self.register_buffer("threshold", torch.tensor(0.0))

    def unit(self, hidden: Tensor) -> Tensor:
        """Return unit features ``(B, D)``."""
        return F.normalize(self(hidden).float(), dim=1)

    def logits(self, features: Tensor) -> Tensor:
        """Return scaled cosines ``(B, C)`` of unit features ``(B, D)``."""
        return self.scale * F.linear(features, F.normalize(self.weight, dim=1))


class LtcLoss:
    """The loss of a batch, with what it remembers: τ, and the class means of the epoch so far."""

    def __init__(self, network: LtcNetwork, recipe: LtcRecipe, random: np.random.Generator) -> None:
        self.network, self.recipe, self._random = network, recipe, random
        network.threshold.fill_(recipe.threshold)
        self.start_epoch(0)

    def start_epoch(self, epoch: int) -> None:
        """Forget the class means."""
        self._generating = epoch >= FIRST_GENERATING_EPOCH
        self._sums = torch.zeros_like(self.network.weight)

    def __call__(self, hidden: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return ``loss`` and its unweighted parts for two views ``(2, B, *hidden_shape)``; τ and means move."""
        network, recipe = self.network, self.recipe
        features = network.unit(hidden.flatten(0, 1))
        first = features[: len(labels)]
        cross = F.cross_entropy(network.logits(first), labels)
        contrast = supcon(features, labels.repeat(2), recipe.temperature)
        known = self._scores(first)
        unknown = self._scores(network.unit(self._pseudo(hidden[0], first))) if self._draws() else None
        margin = margin_loss(known, unknown, network.threshold, recipe.margin)
        if unknown is not None:
            target = threshold_target(known.detach(), unknown.detach(), recipe.margin)
            network.threshold.lerp_(target, recipe.threshold_rate)
        self._sums.index_add_(0, labels, first.detach())
        total = cross + recipe.supcon_weight * contrast + recipe.margin_weight * margin
        return {"loss": total, "cross": cross, "supcon": contrast, "margin": margin}

    @property
    def means(self) -> Tensor:
        """Unit class means of the epoch so far ``(C, D)``; the class vector where the epoch has shown no image."""
        empty = self._sums.abs().sum(dim=1, keepdim=True) == 0
        return F.normalize(torch.where(empty, self.network.weight.detach(), self._sums), dim=1)

    def _scores(self, features: Tensor) -> Tensor:
        return (features @ self.means.T).amax(dim=1)

    def _draws(self) -> bool:
        return self._generating and self._random.random() < self.recipe.generate_share

    def _pseudo(self, hidden: Tensor, references: Tensor) -> Tensor:
        def encode_images(images: Tensor) -> tuple[Tensor, Tensor]:
            features = self.network.unit(images)
            return features, self.network.logits(features)

        return self.recipe.generator.generate(hidden, references, encode_images, self._random)


def margin_loss(known: Tensor, unknown: Tensor | None, threshold: Tensor, margin: float) -> Tensor:
    """Return L_mm: scores of real images ``(B,)`` belong above ``τ + m``, those of pseudo-unknown ones below ``τ - m``.

    >>> margin_loss(torch.tensor([0.7, 0.9]), torch.tensor([0.75]), torch.tensor(0.7), 0.05)
    tensor(0.1250)
    """
    loss = F.relu(threshold + margin - known).mean()
    return loss if unknown is None else loss + F.relu(unknown - (threshold - margin)).mean()


def threshold_target(known: Tensor, unknown: Tensor, margin: float) -> Tensor:
    """Return where τ is drawn to: halfway between the low scores of real and the high ones of pseudo-unknown images."""
    low, high = known.quantile(LOW) - margin, unknown.quantile(HIGH) + margin
    return ((low + high) / 2).clamp(-1.0, 1.0)
