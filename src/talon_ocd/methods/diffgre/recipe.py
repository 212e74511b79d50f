"""DiffGRE (layer: methods; section 3.10): a host (SMILE or PHE) trained on labelled and virtual images.

Liu et al. (2025). There is no released code; what the paper leaves open is a setting here. Virtual images are refined,
labelled by clustering, and then train the host's loss together with a leader loss and a classifier.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.backbones import Backbone
from talon_ocd.config import CalibrationConfig, OnlineConfig, TalonConfig
from talon_ocd.methods.base import Method, Recipe, Trained, finish, seeded
from talon_ocd.methods.diffgre.leader import Leaders, Tap, assign_labels, leader_loss
from talon_ocd.methods.diffgre.refine import refine
from talon_ocd.methods.diffgre.virtual import JoinedViews, MixedImages, StoredImages, VirtualImages, unlike_pairs
from talon_ocd.methods.hashing import HashMethod, SmileRecipe
from talon_ocd.methods.networks import HeadNetwork
from talon_ocd.methods.phe import PheMethod, PheNetwork, PheRecipe
from talon_ocd.methods.slc import leader_stream
from talon_ocd.methods.streams import MethodStream, PrototypeStream
from talon_ocd.methods.training import Group, Loss, Training
from talon_ocd.offline import (
    FALLBACK_THRESHOLD,
    NOTHING_TO_REHEARSE,
    Classifier,
    Labelled,
    calibrate,
    class_means,
    encode,
    generator,
)
from talon_ocd.offline.losses import random_weights
from talon_ocd.offline.rehearse import Indices
from talon_ocd.offline.views import Subset
from talon_ocd.online.feature_stream import CHUNK
from talon_ocd.progress import SILENT, Progress

ENCODED = 256
"""Virtual images that the head sees at a time."""


class Host(Protocol):
    """What DiffGRE needs of the recipe it enriches."""

    def network(self, backbone: Backbone, classes: int) -> Any:
        """Return the network; its ``head`` gives the features that leaders are made of."""

    def loss(self, network: Any) -> Loss:
        """Return what the host minimises by itself."""

    def groups(self, network: Any) -> list[Group]:
        """Return the parameters with their rates."""

    @property
    def training(self) -> Training:
        """How long, how fast and in which batches."""


@dataclass(frozen=True)
class Enriched:
    """The labelled images with virtual ones: labels and names go on after the known classes.

    Attributes:
        images: labels and views of all; ``outputs`` are those of the labelled images.
        leaders: mean features ``(M, D)`` of the untrained head.
        facts: what there is to report.
    """

    images: Labelled
    leaders: Tensor
    facts: dict[str, Any]


@dataclass(frozen=True)
class DiffGreRecipe(Recipe):
    """How a host is trained with virtual images."""

    host: SmileRecipe | PheRecipe = field(default_factory=SmileRecipe)
    """The recipe that is enriched, with its own settings."""
    kept: float = 1.0
    """Virtual images that refinement keeps, for each labelled one; not used with a ``gamma``."""
    candidates: float = 2.0
    """Images that are mixed for each labelled one, before refinement; not used with generated images."""
    mix: float = 0.5
    """Share of the first parent in a mixed image."""
    gamma: float | None = None
    """Largest mean cosine to the known class centres; ``None`` is what keeps the wanted number."""
    virtual_classes: int | None = None
    """Clusters beyond the known classes; ``None`` is as many as there are known classes."""
    leader_weight: float = 0.3
    """Weight of L_sle."""
    class_weight: float = 1.0
    """Weight of L_cls."""
    temperature: float = 0.07
    """τ of L_sle and of the classifier."""
    calibration: CalibrationConfig = field(default_factory=lambda: CalibrationConfig(try_untrained=False))
    """How the threshold of online clustering is rehearsed."""

    @property
    def epochs(self) -> int:
        """Times that training goes through labelled and virtual images."""
        return self.host.epochs

    @property
    def batch_size(self) -> int:
        """Images a step, labelled and virtual."""
        return self.host.batch_size

    def with_epochs(self, epochs: int) -> DiffGreRecipe:
        """Return this recipe with another length of training."""
        host = self.host.with_epochs(epochs)
        assert isinstance(host, SmileRecipe | PheRecipe)
        return replace(self, host=host)

    def network(self, backbone: Backbone, classes: int) -> HeadNetwork:
        """Return the host's network."""
        return self.host.network(backbone, classes)

    def fit(self, backbone: Backbone, labelled: Labelled, seed: int, progress: Progress = SILENT) -> Trained:
        """Enrich and train; facts are the host's, ``leaders`` ``(C, D)`` and the ``threshold`` of online clustering."""
        threshold, calibration = self._rehearse(backbone, labelled, seed, progress)
        network, report = self._train(backbone, labelled, torch.arange(len(labelled)), seed, progress)
        with torch.no_grad():
            facts = self.host.facts(network, labelled)
            features = encode(network.head, labelled.outputs).cpu()
        facts["leaders"] = class_means(features, labelled.labels, labelled.classes)
        facts["threshold"] = torch.tensor(threshold).double()
        return Trained(backbone, network, facts, labelled.names, {**report, **calibration})

    def _train(
        self, backbone: Backbone, labelled: Labelled, members: Tensor, seed: int, progress: Progress
    ) -> tuple[Any, dict[str, Any]]:
        """Train on images that are at ``members`` ``(N,)`` of ``labelled.outputs``; returns network and report."""
        host: Host = self.host
        with seeded(seed):
            enriched = self.enrich(backbone, labelled, members, seed)
            network = host.network(backbone, enriched.images.classes)
            weights = random_weights(enriched.images.classes, backbone.feature_size, generator(seed, "classes", 0))
            classifier = Classifier("cosine", weights).to(backbone.device)
            leaders = Leaders(enriched.leaders.to(backbone.device))
            groups = host.groups(network)
            groups.append(Group(classifier.parameters(), groups[-1].lr))
            training = replace(host.training, parts=(*host.training.parts, "leader", "class"))
            with Tap(network.head) as tap:
                loss = self.loss(network, tap, leaders, classifier)
                report = training.run(
                    network, groups, loss, enriched.images, seed, progress, lambda epoch: leaders.turn()
                )
        if isinstance(network, PheNetwork):
            network.keep_classes(labelled.classes)
        finish(network)
        return network, {**report, "virtual": enriched.facts}

    def loss(self, network: nn.Module, tap: Tap, leaders: Leaders, classifier: Classifier) -> Loss:
        """Return the host's loss + 0.3 L_sle + L_cls; ``tap`` is at the network's head."""
        host: Host = self.host
        alone = host.loss(network)

        def enriched(views: Tensor, labels: Tensor) -> dict[str, Tensor]:
            parts = alone(views, labels)
            features = tap.unit()
            own = labels.repeat(len(features) // len(labels))  # a host looks at one view or at both
            leaders.add(features, own)
            encoding = leader_loss(features, own, leaders.current, self.temperature)
            cross = F.cross_entropy(classifier.logits(features, own, 1.0 / self.temperature, 0.0), own)
            total = parts["loss"] + self.leader_weight * encoding + self.class_weight * cross
            return {**parts, "loss": total, "leader": encoding, "class": cross}

        return enriched

    def enrich(self, backbone: Backbone, labelled: Labelled, members: Tensor, seed: int) -> Enriched:
        """Choose virtual images and give them labels, by the features of the untrained head."""
        count, classes = len(labelled), labelled.classes
        virtual = self._virtual(labelled, members, seed)
        real = encode(backbone.head, labelled.outputs, members).cpu()
        made = _encode(backbone.head, virtual) if len(virtual) else real[:0]
        centres = class_means(real, labelled.labels, classes)
        chosen, gamma = refine(made, centres, round(self.kept * count), self.gamma)
        extra = classes if self.virtual_classes is None else self.virtual_classes
        labels, total = assign_labels(real, labelled.labels, made[chosen], classes + extra, seed)
        everything = torch.cat([labelled.labels, labels])
        leaders = class_means(torch.cat([real, made[chosen]]), everything, total)
        names = (*labelled.names, *(f"virtual-{number}" for number in range(1, total - classes + 1)))
        images = replace(
            labelled, labels=everything, names=names, views=JoinedViews(labelled.views, count, virtual, chosen)
        )
        source = "generated" if labelled.virtual is not None else "mixed"
        facts = {
            "source": source,
            "made": len(virtual),
            "kept": len(chosen),
            "gamma": gamma,
            "classes": total - classes,
        }
        return Enriched(images, leaders, facts)

    def _virtual(self, labelled: Labelled, members: Tensor, seed: int) -> VirtualImages:
        if labelled.virtual is not None:
            return StoredImages(labelled.virtual)
        wanted = round(self.candidates * len(labelled))
        first, second = unlike_pairs(labelled.labels, wanted, generator(seed, "virtual", 0))
        return MixedImages(labelled.outputs, labelled.views, members, first, second, self.mix)

    def _rehearse(
        self, backbone: Backbone, labelled: Labelled, seed: int, progress: Progress
    ) -> tuple[float, dict[str, Any]]:
        """Return the threshold of online clustering.

        Rehearsals always mix: pictures generated from all known classes would show those that are held out.
        """
        if labelled.classes < 2:
            progress.note(NOTHING_TO_REHEARSE)
            return FALLBACK_THRESHOLD, {}

        def encode_fold(train: Indices, wanted: Indices) -> Tensor:
            index = torch.from_numpy(train)
            known, compact = labelled.labels[index].unique(return_inverse=True)
            names = tuple(labelled.names[label] for label in known.tolist())
            views = Subset(labelled.views, index)
            part = replace(labelled, labels=compact, names=names, views=views, virtual=None)
            network, _ = self._train(backbone, part, index, seed, progress)
            return encode(network.head, labelled.outputs, torch.from_numpy(wanted)).cpu()

        online = OnlineConfig(adapt=(), adapt_every=CHUNK)
        settings = TalonConfig(online=replace(online, rule="cosine"), calibration=self.calibration)
        found = calibrate(labelled.labels, {self.epochs: encode_fold}, settings, seed, progress)
        return found.threshold, {"calibration": found.to_dict()}


@dataclass(frozen=True)
class DiffGreMethod(Method):
    """DiffGRE.

    Attributes:
        recipe: host and virtual images.
        inference: ``hash`` decides as the host does; ``leaders`` is online clustering: join the nearest leader, known
            or founded, if the cosine of head features reaches the rehearsed threshold.
    """

    recipe: DiffGreRecipe = field(default_factory=DiffGreRecipe)
    inference: Literal["hash", "leaders"] = "hash"

    def stream(self, trained: Trained) -> MethodStream:
        """Open a stream of the host, or one with a leader for each known class."""
        if self.inference == "leaders":
            assert isinstance(trained.network, HeadNetwork)
            discovery = leader_stream(trained.facts["leaders"], float(trained.facts["threshold"]))
            return PrototypeStream(trained.network.head, discovery)
        host = self.recipe.host
        return PheMethod(host).stream(trained) if isinstance(host, PheRecipe) else HashMethod(host).stream(trained)


def _encode(head: nn.Module, images: VirtualImages) -> Tensor:
    """Return unit features ``(V, D)`` of the clean views."""
    with torch.no_grad():
        parts = [head(images.take(index)) for index in torch.arange(len(images)).split(ENCODED)]
        return F.normalize(torch.cat(parts).float(), dim=1).cpu()
