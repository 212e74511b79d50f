"""SLC, sequential leader clustering on supervised features (layer: methods; section 3.4, Hartigan 1975).

A linear classifier trains the head. In the stream a feature joins the nearest leader if its cosine reaches a threshold,
and leads a new category otherwise; leaders never move. The list starts empty, or with the class means of the known
classes. Rehearsals on held-out known classes choose the threshold, one for each start.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.backbones import Backbone
from talon_ocd.config import CalibrationConfig, OnlineConfig, TalonConfig
from talon_ocd.memory import PrototypeMemory
from talon_ocd.methods.base import GradientRecipe, Method, Trained, finish, seeded
from talon_ocd.methods.networks import HeadNetwork
from talon_ocd.methods.streams import MethodStream, PrototypeStream
from talon_ocd.methods.training import Group, Training, cosine_rate
from talon_ocd.offline import FALLBACK_THRESHOLD, NOTHING_TO_REHEARSE, Labelled, class_means, encode
from talon_ocd.offline.calibrate import choose
from talon_ocd.offline.rehearse import Rehearsal, Rehearsed, Trial, rehearsals, try_thresholds
from talon_ocd.offline.views import Subset
from talon_ocd.online import Assignment, FeatureStream
from talon_ocd.online.feature_stream import CHUNK
from talon_ocd.progress import SILENT, Progress

GRID_SAMPLE = 500
"""Images of a rehearsal whose similarities span the thresholds that are tried."""
STILL = TalonConfig(online=OnlineConfig(rule="cosine", adapt=(), adapt_every=CHUNK))
"""Leaders never move."""


class LinearNetwork(HeadNetwork):
    """The head, with a linear classifier that only training looks at."""

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__(backbone)
        self.classifier = nn.Linear(self.feature_size, classes)


@dataclass(frozen=True)
class SlcRecipe(GradientRecipe):
    """Cross-entropy on one view, then rehearsals; facts are ``prototypes`` ``(C, D)`` and two thresholds."""

    lr: float = 0.01
    """Learning rate of the first epoch, of SMILE's script. Its 0.1 for short runs is for normalised codes: a linear
    layer on raw features diverges with it, so this rate holds for every length."""
    weight_decay: float = 5e-5
    """Weight decay of everything that is trained."""
    calibration: CalibrationConfig = field(default_factory=lambda: CalibrationConfig(try_untrained=False))
    """How the threshold is rehearsed; the method is a trained one, so pre-trained features are not tried."""

    def network(self, backbone: Backbone, classes: int) -> LinearNetwork:
        """Return the head with an untrained classifier."""
        return LinearNetwork(backbone, classes)

    def train(self, network: LinearNetwork, labelled: Labelled, seed: int, progress: Progress) -> dict[str, Any]:
        """Minimise the cross-entropy of the first view: ordinary supervised training needs no pair."""

        def loss(hidden: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": F.cross_entropy(network.classifier(network(hidden[0])), labels)}

        parameters = [*network.head_parameters(), *network.classifier.parameters()]
        training = Training(self.epochs, self.batch_size, "sgd", cosine_rate(self.epochs))
        return training.run(network, [Group(parameters, self.lr, self.weight_decay)], loss, labelled, seed, progress)

    def facts(self, network: LinearNetwork, labelled: Labelled) -> dict[str, Tensor]:
        """Return the class means."""
        features = encode(network, labelled.outputs).cpu()
        return {"prototypes": class_means(features, labelled.labels, labelled.classes)}

    def fit(self, backbone: Backbone, labelled: Labelled, seed: int, progress: Progress = SILENT) -> Trained:
        """Train, then rehearse for both starts of the leader list."""
        trained = super().fit(backbone, labelled, seed, progress)
        thresholds, tables = self._rehearse(backbone, labelled, seed, progress)
        return replace(trained, facts={**trained.facts, **thresholds}, report={**trained.report, "calibration": tables})

    def _rehearse(
        self, backbone: Backbone, labelled: Labelled, seed: int, progress: Progress
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        names = {"threshold": False, "threshold_seeded": True}
        if labelled.classes < 2:
            progress.note(NOTHING_TO_REHEARSE)
            return {name: torch.tensor(FALLBACK_THRESHOLD).double() for name in names}, {}
        folds = [
            self._rehearsed(fold, backbone, labelled, seed, progress)
            for fold in rehearsals(labelled.labels, self.calibration, seed)
        ]
        tables = {
            name: leader_trials(folds, self.epochs, self.calibration, with_means, seed, progress)
            for name, with_means in names.items()
        }
        thresholds = {name: torch.tensor(choose(trials).threshold).double() for name, trials in tables.items()}
        return thresholds, {name: [trial.to_dict() for trial in trials] for name, trials in tables.items()}

    def _rehearsed(
        self, fold: Rehearsal, backbone: Backbone, labelled: Labelled, seed: int, progress: Progress
    ) -> Rehearsed:
        """Train on the fold only: features of classes that took part in training are too compact to rehearse with."""
        index = torch.from_numpy(fold.train)
        known, compact = labelled.labels[index].unique(return_inverse=True)
        names = tuple(labelled.names[label] for label in known.tolist())
        part = replace(labelled, labels=compact, names=names, views=Subset(labelled.views, index))
        with seeded(seed):
            network = self.network(backbone, len(known))
            self.train(network, part, seed, progress)
        finish(network)
        means = class_means(encode(network, labelled.outputs, index).cpu(), compact, len(known))
        stream = encode(network, labelled.outputs, torch.from_numpy(fold.stream)).cpu()
        return Rehearsed(known.tolist(), means, stream, labelled.labels[fold.stream])


@dataclass(frozen=True)
class SlcMethod(Method):
    """Leader clustering.

    Attributes:
        recipe: how the features are trained and the thresholds rehearsed.
        seed_with_class_means: start with the known classes as leaders, instead of with none.
    """

    recipe: SlcRecipe = field(default_factory=SlcRecipe)
    seed_with_class_means: bool = False

    def stream(self, trained: Trained) -> MethodStream:
        """Open a stream with its own leaders."""
        means = trained.facts["prototypes"]
        if self.seed_with_class_means:
            seeds = leader_stream(means, float(trained.facts["threshold_seeded"]))
            return PrototypeStream(trained.network, seeds)
        empty = leader_stream(means[:0], float(trained.facts["threshold"]))
        return LeaderStream(trained.network, empty, trained.known)


class LeaderStream(PrototypeStream):
    """Leaders that start from nothing: ids of the known classes stay reserved, although no leader will have one."""

    def __init__(self, network: nn.Module, discovery: FeatureStream, known: int) -> None:
        super().__init__(network, discovery)
        self.known = known

    @property
    def size(self) -> int:
        """Reserved ids and leaders."""
        return self.known + super().size

    def place(self, features: Tensor) -> Assignment:
        """Answer in order."""
        return self._numbered(super().place(features))

    def look(self, features: Tensor) -> Assignment:
        """Answer each by itself."""
        return self._numbered(super().look(features))

    def _numbered(self, answers: Assignment) -> Assignment:
        """Let leader 0 have the first id after the known classes; -1 stays -1."""
        runner_ups = np.where(answers.runner_ups >= 0, answers.runner_ups + self.known, -1)
        return replace(answers, ids=answers.ids + self.known, runner_ups=runner_ups)


def leader_stream(leaders: Tensor, threshold: float) -> FeatureStream:
    """Return discovery on unit features with leaders ``(K, D)`` that never move."""
    return FeatureStream(PrototypeMemory(leaders), replace(STILL.online, threshold=threshold))


def leader_trials(
    folds: list[Rehearsed],
    epochs: int,
    config: CalibrationConfig,
    with_means: bool,
    seed: int,
    progress: Progress = SILENT,
) -> list[Trial]:
    """Let every threshold of a grid answer all rehearsals in all orders, from class means or from nothing."""
    grid = leader_grid(folds, config.grid, with_means)
    return try_thresholds(folds, grid, STILL, epochs, config.orders, seed, progress, with_means)


def leader_grid(folds: list[Rehearsed], size: int, with_means: bool) -> list[float]:
    """Return thresholds from where a leader takes most strangers in to where hardly any image joins another."""
    samples = [fold.stream[:GRID_SAMPLE] for fold in folds]
    between = torch.cat([(sample @ sample.T)[_pairs(sample)] for sample in samples])
    nearest = [(sample @ sample.T).fill_diagonal_(-1.0).amax(dim=1) for sample in samples]
    low = float(between.quantile(0.25))
    if with_means:
        own = torch.cat([(sample @ fold.means.T).amax(dim=1) for sample, fold in zip(samples, folds, strict=True)])
        low, nearest = float(own.quantile(0.005)), [*nearest, own]
    high = float(torch.cat(nearest).quantile(0.98))
    return [float(value) for value in np.linspace(min(low, high - 1e-3), high, size)]


def _pairs(rows: Tensor) -> Tensor:
    return torch.ones(len(rows), len(rows), dtype=torch.bool).triu(1)
