"""PHE (layer: methods; section 3.9): several prototypes a class, a hash centre for each class, Hamming balls.

Zheng et al. (2024). Image features and class means of the prototypes go through one hash head; the codes of the latter
are the centres. ``phe_losses`` has the equations, ``phe_stream`` the decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.backbones import Backbone
from talon_ocd.errors import ConfigError
from talon_ocd.methods import phe_losses
from talon_ocd.methods.base import GradientRecipe, Method, Trained
from talon_ocd.methods.networks import HashMlp, HeadNetwork
from talon_ocd.methods.phe_losses import BoundKind, DistanceKind
from talon_ocd.methods.phe_stream import Alphabet, HammingStream
from talon_ocd.methods.training import Group, Loss, Rate, Training
from talon_ocd.offline import Labelled, learning_rate
from talon_ocd.progress import Progress

PARTS = ("loss", "prototype", "separation", "quantisation", "centre")


class PheNetwork(HeadNetwork):
    """Head, add-on layer, prototypes and hash head: hidden ``(B, *hidden_shape)`` -> raw codes ``(B, L)``.

    Attributes:
        prototypes: ``(C, P, D)``, drawn uniformly from [0, 1).
        last_centres: the centres of the last training step, with its batch statistics; ``None`` before the first.
    """

    def __init__(self, backbone: Backbone, classes: int, bits: int, prototypes: int, mlp_width: int = 2048) -> None:
        super().__init__(backbone)
        size = self.feature_size
        self.add_on = nn.Sequential(nn.Linear(size, size), nn.GELU())
        self.prototypes = nn.Parameter(torch.rand(classes, prototypes, size))
        self.hash = nn.Sequential(HashMlp(size, mlp_width), nn.Linear(HashMlp.size, bits, bias=False))
        self.last_centres: Tensor | None = None
        self.to(backbone.device)

    def features(self, hidden: Tensor) -> Tensor:
        """Return g ``(B, D)``: what prototypes are compared with."""
        features: Tensor = self.add_on(self.head(hidden))
        return features

    def forward(self, hidden: Tensor) -> Tensor:
        """Return raw codes ``(B, L)``; their signs are the bits."""
        codes: Tensor = self.hash(self.features(hidden))
        return codes

    def codes_and_centres(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return raw codes ``(B, L)`` of features ``(B, D)`` and centres ``(C, L)``.

        They go through the hash head together, so that its batch statistics are those of both.
        """
        both = self.hash(torch.cat([features, self.prototypes.mean(dim=1)]))
        return both[: len(features)], both[len(features) :]

    def centres(self) -> Tensor:
        """Return the centres ``(C, L)`` alone."""
        centres: Tensor = self.hash(self.prototypes.mean(dim=1))
        return centres

    def keep_classes(self, count: int) -> None:
        """Forget all classes but the first ``count``: DiffGRE trains with virtual ones, which no stream knows."""
        self.prototypes = nn.Parameter(self.prototypes.detach()[:count].clone())
        if self.last_centres is not None:
            self.last_centres = self.last_centres[:count]


@dataclass(frozen=True)
class PheRecipe(GradientRecipe):
    """How PHE is trained; the defaults are the released code's."""

    epochs: int = 200
    """Times that training goes through the labelled images."""
    bits: int = 12
    """L, the length of a code."""
    prototypes: int = 10
    """Prototypes a class."""
    mlp_width: int = 2048
    """Width of the hash head's two hidden layers."""
    masked: float = 0.1
    """Share of the activations that training sets to 0, without rescaling."""
    distance: DistanceKind = "unit"
    """``unit`` (released code) or ``squared`` (paper): which distance activates a prototype."""
    alpha: float = 0.1
    """Weight of separation and quantisation."""
    beta: float = 3.0
    """Weight of the centre loss."""
    separation_share: float = 0.95
    """Share of L that counts as the distance of opposite codes: 0.95 (released code) or 1 (paper)."""
    bound: BoundKind = "single"
    """``single`` (released code and the paper's table) or ``cumulative`` (paper's formula): rule for d_max."""
    total_classes: int | None = None
    """Classes that d_max makes room for. The released code takes all of the stream, which no method may know; ``None``
    takes the known ones."""
    head_lr: float = 1e-4
    head_decay: float = 1e-3
    lr: float = 1e-3
    """Learning rate of add-on layer, hash head and prototypes."""
    add_on_decay: float = 1e-3
    hash_decay: float = 0.05
    """Weight decay of hash head and prototypes."""
    warmup: int = 5
    warmup_lr: float = 1e-4
    lr_floor: float = 1e-5

    def __post_init__(self) -> None:
        if self.bits < 2 or self.prototypes < 1:
            raise ConfigError(
                f"bits={self.bits}, prototypes={self.prototypes}: a code needs at least 2 bits, a class 1 prototype."
            )

    def network(self, backbone: Backbone, classes: int) -> PheNetwork:
        """Return head, add-on layer, prototypes and hash head."""
        return PheNetwork(backbone, classes, self.bits, self.prototypes, self.mlp_width)

    def d_max(self, classes: int) -> int:
        """Return the distance that centres of ``classes`` known classes should have."""
        return phe_losses.largest_distance(self.bits, self.total_classes or classes, self.bound)

    def groups(self, network: PheNetwork) -> list[Group]:
        """Return the parameters with their rates."""
        return [
            Group(network.head_parameters(), self.head_lr, self.head_decay),
            Group(network.add_on.parameters(), self.lr, self.add_on_decay),
            Group(network.hash.parameters(), self.lr, self.hash_decay),
            Group([network.prototypes], self.lr, self.hash_decay),
        ]

    def rate(self) -> Rate:
        """Return the schedule: epochs 0 and 1 train at the same rate, as the released code steps too late."""

        def rate(epoch: int, base: float) -> float:
            return learning_rate(max(epoch - 1, 0), base, self.epochs, self.warmup, self.warmup_lr, self.lr_floor)

        return rate

    def losses(self, network: PheNetwork, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the losses of features g ``(B, D)`` with labels ``(B,)``."""
        active = phe_losses.activations(features, network.prototypes.flatten(0, 1), self.distance)
        if network.training:
            active = active * (torch.rand(active.shape) >= self.masked).to(active.device)
        logits = phe_losses.class_logits(active.unflatten(1, (-1, self.prototypes)))
        codes, centres = network.codes_and_centres(features)
        network.last_centres = centres.detach()
        soft = phe_losses.soft_centres(centres)
        parts = {
            "prototype": F.cross_entropy(logits, labels),
            "separation": phe_losses.separation_loss(soft, self.d_max(len(centres)), self.separation_share),
            "quantisation": phe_losses.quantisation_loss(soft),
            "centre": phe_losses.centre_loss(codes, centres, labels),
        }
        between = self.alpha * (parts["separation"] + parts["quantisation"])
        return {"loss": parts["prototype"] + between + self.beta * parts["centre"], **parts}

    def loss(self, network: PheNetwork) -> Loss:
        """Return the loss of the first view; PHE has no use for a second one."""
        return lambda views, labels: self.losses(network, network.features(views[0]), labels)

    @property
    def training(self) -> Training:
        """How often, how fast and in which batches."""
        return Training(self.epochs, self.batch_size, "adamw", self.rate(), PARTS)

    def train(self, network: PheNetwork, labelled: Labelled, seed: int, progress: Progress) -> dict[str, Any]:
        """Train on one view of each image."""
        return self.training.run(network, self.groups(network), self.loss(network), labelled, seed, progress)

    def facts(self, network: PheNetwork, labelled: Labelled) -> dict[str, Tensor]:
        """Return ``centres`` ``(C, L)`` in evaluation mode, and ``last_centres`` as the last training step saw them."""
        centres = network.centres()
        last = centres if network.last_centres is None else network.last_centres
        return {"centres": centres.cpu(), "last_centres": last.cpu()}


@dataclass(frozen=True)
class PheMethod(Method):
    """PHE.

    Attributes:
        recipe: how the network is trained.
        alphabet: ``same`` for images and centres, or ``legacy``, which compares bits 0 and 1 with signs -1 and +1 as
            the released code does, so that known centres are hardly ever met.
        centres: recomputed in evaluation mode (``eval``), or those of the last ``training`` step (released code).
    """

    recipe: PheRecipe = field(default_factory=PheRecipe)
    alphabet: Alphabet = "same"
    centres: Literal["eval", "training"] = "eval"

    def stream(self, trained: Trained) -> HammingStream:
        """Open a stream with the codes of the known classes."""
        centres = trained.facts["centres" if self.centres == "eval" else "last_centres"]
        radius = phe_losses.radius(self.recipe.d_max(trained.known))
        return HammingStream(trained.network, centres, radius, self.alphabet)
