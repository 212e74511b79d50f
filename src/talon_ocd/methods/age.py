"""AGE, adaptive Gaussian expansion (layer: methods; section 3.15): a gate for known classes, Gaussians for the rest.

The head learns ``L_sup + L_ce`` on four fifths of the labelled images. The others tell how sure the classifier is of
each class: that is the gate. What does not pass goes to the densest discovered Gaussian, or opens one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.backbones import Backbone
from talon_ocd.errors import DataError
from talon_ocd.methods.age_gaussians import Floats, Gaussians, pooled_covariance, soft_covariance
from talon_ocd.methods.base import GradientRecipe, Method, Trained
from talon_ocd.methods.networks import HeadNetwork
from talon_ocd.methods.streams import Match, OneByOneStream, Vector
from talon_ocd.methods.training import Group, Training, cosine_rate
from talon_ocd.offline import Labelled, supcon
from talon_ocd.offline.views import Subset
from talon_ocd.progress import Progress

ENCODE_BATCH = 256


class AgeNetwork(HeadNetwork):
    """The head with a linear classifier: hidden -> raw features and logits side by side ``(B, D + C)``."""

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__(backbone)
        self.classifier = nn.Linear(self.feature_size, classes)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return features, then logits."""
        features = super().forward(hidden).float()
        return torch.cat([features, self.classifier(features)], dim=1)


@dataclass(frozen=True)
class AgeRecipe(GradientRecipe):
    """Training, and what the held-out images say.

    Facts: ``gate`` ``(C,)``, ``centre`` ``(D,)`` and ``axes`` ``(D, d)`` of the projection, ``shared`` (Σ_all)
    ``(d, d)``, and ``log_densities``, those of the held-out images under the Gaussian of their own class.
    """

    lr: float = 0.005
    """Learning rate of SGD with momentum 0.9, down a cosine."""
    weight_decay: float = 5e-5
    """Weight decay of all that is trained."""
    temperature: float = 0.07
    """T of L_sup."""
    held_out: float = 0.2
    """Share of the labelled images, of each class where possible, that training does not see."""
    shrink: float = 0.8
    """Factor of the standard deviations of the gate."""
    dimensions: int = 42
    """d, dimensions of the projection; fewer if there are fewer images."""
    covariance_floor: float = 1e-5
    """ε on the diagonal of every covariance."""

    def network(self, backbone: Backbone, classes: int) -> AgeNetwork:
        """Return the head with an untrained classifier."""
        return AgeNetwork(backbone, classes)

    def train(self, network: AgeNetwork, labelled: Labelled, seed: int, progress: Progress) -> dict[str, Any]:
        """Minimise contrast of both views and cross-entropy of the first, without the held-out images."""
        kept = torch.from_numpy(np.flatnonzero(~held_out(labelled.labels, self.held_out)))
        part = replace(labelled, labels=labelled.labels[kept], views=Subset(labelled.views, kept))

        def loss(hidden: Tensor, labels: Tensor) -> dict[str, Tensor]:
            features, logits = network(hidden.flatten(0, 1)).split([network.feature_size, labelled.classes], dim=1)
            contrast = supcon(F.normalize(features, dim=1), labels.repeat(2), self.temperature)
            cross = F.cross_entropy(logits[: len(labels)], labels)
            return {"loss": contrast + cross, "supcon": contrast, "cross": cross}

        rate = cosine_rate(self.epochs)
        training = Training(self.epochs, self.batch_size, "sgd", rate, ("loss", "supcon", "cross"))
        parameters = [*network.head_parameters(), *network.classifier.parameters()]
        return training.run(network, [Group(parameters, self.lr, self.weight_decay)], loss, part, seed, progress)

    def facts(self, network: AgeNetwork, labelled: Labelled) -> dict[str, Tensor]:
        """Look at all labelled images once: gate, Σ_all and create test come from those that training has not seen."""
        features, logits = _encoded(network, labelled)
        labels, held = labelled.labels, torch.from_numpy(held_out(labelled.labels, self.held_out))
        confidences = logits[held].double().softmax(dim=1).amax(dim=1)
        units = F.normalize(features.double(), dim=1)
        centre = units.mean(dim=0)
        axes = principal_axes(units - centre, self.dimensions)
        points = F.normalize((units - centre) @ axes, dim=1)
        means = class_centres(points[~held], labels[~held], labelled.classes)
        shared = pooled_covariance((points - means[labels])[held].numpy())
        known = Gaussians(points.shape[1])
        for label, mean in enumerate(means):
            members = points[~held & (labels == label)].numpy()
            known.append(mean.numpy(), soft_covariance(members, shared, self.covariance_floor))
        own = [
            known.log_densities(point)[label]
            for point, label in zip(points[held].numpy(), labels[held].tolist(), strict=True)
        ]
        return {
            "gate": gate_thresholds(confidences, labels[held], labelled.classes, self.shrink),
            "centre": centre,
            "axes": axes,
            "shared": torch.from_numpy(shared),
            "log_densities": torch.tensor(own, dtype=torch.float64),
        }


@dataclass(frozen=True)
class AgeMethod(Method):
    """AGE.

    Attributes:
        recipe: how features, classifier and gate are made.
        window: youngest members of a cluster that its Gaussian is made of.
        quantile: a cluster takes what is at least as dense in it as this share of held-out images is in their class.
    """

    recipe: AgeRecipe = field(default_factory=AgeRecipe)
    window: int = 20
    quantile: float = 0.05

    def stream(self, trained: Trained) -> AgeStream:
        """Open a stream without clusters."""
        least = float(trained.facts["log_densities"].quantile(self.quantile))
        return AgeStream(trained, least, self.window, self.recipe.covariance_floor)


class AgeStream(OneByOneStream):
    """Asks the gate, then the clusters.

    Similarities are ``γ - τ_c`` for known classes, and for clusters the log density above the least that may join.
    """

    unit = "margin"

    def __init__(self, trained: Trained, least: float, window: int, floor: float) -> None:
        super().__init__(trained.network, trained.known, threshold=0.0)
        self._least, self._window, self._floor = least, window, floor
        self._centre, self._axes = trained.facts["centre"], trained.facts["axes"]
        self._gate: Floats = trained.facts["gate"].numpy()
        self._shared: Floats = trained.facts["shared"].numpy()
        self._clusters = Gaussians(len(self._shared))
        self._members: list[deque[Floats]] = []

    @property
    def size(self) -> int:
        """Known classes and clusters."""
        return self.known + len(self._clusters)

    def encode(self, hidden: Tensor) -> Tensor:
        """Return logits and projected unit features side by side ``(B, C + d)``."""
        raw = super().encode(hidden).double()
        features, logits = raw[:, : -self.known], raw[:, -self.known :]
        points = F.normalize((F.normalize(features, dim=1) - self._centre) @ self._axes, dim=1)
        return torch.cat([logits, points], dim=1)

    def match(self, feature: Vector) -> Match:
        """Return the class that passes the gate, else the densest cluster; the class again while there is none."""
        logits, point = feature[: self.known], feature[self.known :]
        likeliest = int(logits.argmax())
        confidence = 1.0 / float(np.exp(logits - logits[likeliest]).sum())
        passed = confidence - float(self._gate[likeliest])
        if passed >= 0 or not self._members:
            return Match(likeliest, passed)
        densities = self._clusters.log_densities(point)
        densest = int(densities.argmax())
        return Match(self.known + densest, float(densities[densest]) - self._least, likeliest, passed)

    def found(self, feature: Vector, match: Match) -> None:
        """Open a cluster with Σ_all around the feature."""
        self._open([feature[self.known :]])

    def join(self, feature: Vector, category: int) -> None:
        """Move the Gaussian of a cluster; known classes stay as they are."""
        if category >= self.known:
            number = category - self.known
            self._members[number].append(feature[self.known :])
            self._clusters.replace(number, *self._gaussian(number))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the members that clusters are made of."""
        dimensions = len(self._shared)
        members = [point for cluster in self._members for point in cluster]
        return {
            "members": torch.from_numpy(np.array(members).reshape(-1, dimensions)),
            "sizes": torch.tensor([len(cluster) for cluster in self._members], dtype=torch.int64),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Make the clusters of their members anew."""
        self._clusters, self._members = Gaussians(len(self._shared)), []
        for members in state["members"].split(state["sizes"].tolist()):
            self._open(list(members.numpy()))

    def _open(self, members: list[Floats]) -> None:
        self._members.append(deque(members, maxlen=self._window))
        self._clusters.append(*self._gaussian(len(self._members) - 1))

    def _gaussian(self, number: int) -> tuple[Floats, Floats]:
        members = np.stack(self._members[number])
        return members.mean(axis=0), soft_covariance(members, self._shared, self._floor)


def held_out(labels: Tensor, share: float) -> npt.NDArray[np.bool_]:
    """Return which of the images ``(N,)`` training does not see: ``share`` of each class, but never its last image."""
    chosen = np.zeros(len(labels), np.bool_)
    random = np.random.default_rng(0)  # one split for all seeds: a recipe is trained and looked at in two steps
    for label in np.unique(labels.numpy()):
        members = random.permutation(np.flatnonzero(labels.numpy() == label))
        chosen[members[: min(max(round(len(members) * share), 1), len(members) - 1)]] = True
    if chosen.sum() < 2:
        raise DataError(
            f"{len(labels)} labelled images leave {chosen.sum()} to hold out, AGE needs 2 or more; "
            "give at least two images of two classes."
        )
    return chosen


def gate_thresholds(confidences: Tensor, labels: Tensor, classes: int, shrink: float) -> Tensor:
    """Return τ_c ``(C,)``: halfway between ``μ_c - shrink σ_c`` of the class and the mean of that over all classes.

    A class without a held-out image takes the mean.

    >>> gate_thresholds(torch.tensor([0.8, 0.4]), torch.tensor([0, 1]), 3, 0.8)
    tensor([0.7000, 0.5000, 0.6000])
    """
    counts = torch.bincount(labels, minlength=classes)
    sums = confidences.new_zeros(classes)
    means = sums.index_add(0, labels, confidences) / counts.clamp(min=1)
    variances = sums.index_add(0, labels, (confidences - means[labels]).square()) / counts.clamp(min=1)
    low = means - shrink * variances.sqrt()
    overall = low[counts > 0].mean()
    return (torch.where(counts > 0, low, overall) + overall) / 2


def class_centres(points: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the plain mean of the points ``(N, d)`` of each class ``(C, d)``; each class has one."""
    sums = points.new_zeros(classes, points.shape[1]).index_add(0, labels, points)
    return sums / torch.bincount(labels, minlength=classes)[:, None]


def principal_axes(centred: Tensor, dimensions: int) -> Tensor:
    """Return the axes ``(D, d)`` along which centred rows ``(N, D)`` spread most; d is at most N - 1 and D."""
    _, vectors = torch.linalg.eigh(centred.T @ centred)
    axes: Tensor = vectors.flip(1)[:, : min(dimensions, len(centred) - 1)].contiguous()
    return axes


def _encoded(network: AgeNetwork, labelled: Labelled) -> tuple[Tensor, Tensor]:
    """Return raw features ``(N, D)`` and logits ``(N, C)`` of the clean views."""
    parts = [network(labelled.outputs.take(index)).cpu() for index in torch.arange(len(labelled)).split(ENCODE_BATCH)]
    features, logits = torch.cat(parts).split([network.feature_size, labelled.classes], dim=1)
    return features, logits
