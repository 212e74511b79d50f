"""TALON as a method, its ablation rows and the closed-set floor (layer: methods; sections 3.1 to 3.3).

All rows with the same classifier share one fit: they differ in what their streams adapt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor

from talon_ocd.backbones import Backbone
from talon_ocd.config import ADAPTATIONS, Adaptation, OnlineConfig, TalonConfig
from talon_ocd.memory import PrototypeMemory
from talon_ocd.methods.adapters import ADAPTERS
from talon_ocd.methods.base import Method, Recipe, Trained, checksum, finish
from talon_ocd.methods.networks import HeadNetwork
from talon_ocd.methods.streams import MethodStream, PrototypeStream
from talon_ocd.offline import Fitting, Labelled
from talon_ocd.online import Assignment, DiscoveryStream, EvidenceRule, FeatureStream, SecondThoughts
from talon_ocd.progress import SILENT, Progress
from talon_ocd.talon import prepared

NEVER = -2.0
"""A threshold that every cosine reaches: the closed-set floor, which founds no category."""


@dataclass(frozen=True)
class TalonRecipe(Recipe):
    """The offline stage of TALON with all its settings; the seed of the config is not used."""

    config: TalonConfig = field(default_factory=TalonConfig)

    def network(self, backbone: Backbone, classes: int) -> HeadNetwork:
        """Return the head alone."""
        return HeadNetwork(prepared(backbone, self.config.offline), self.config.offline.trainable)

    def fit(self, backbone: Backbone, labelled: Labelled, seed: int, progress: Progress = SILENT) -> Trained:
        """Rehearse, train, build prototypes.

        Facts are ``prototypes`` ``(C, D)``, ``threshold``, and ``evidence.*`` if evidence decides.
        """
        network = self.network(backbone, labelled.classes)
        encoder = prepared(backbone, self.config.offline).with_head(network.head)
        fitted = Fitting(encoder, labelled, replace(self.config, seed=seed), progress).run()
        finish(network)
        facts = {"prototypes": fitted.memory.prototypes.clone(), "threshold": torch.tensor(fitted.threshold).double()}
        if fitted.evidence is not None:
            facts |= {f"evidence.{name}": value for name, value in fitted.evidence.state_dict().items()}
        return Trained(backbone, network, facts, fitted.names, fitted.report)

    @property
    def key(self) -> str:
        """A checksum of what training depends on: the stream's settings only matter where they are rehearsed."""
        config = self.config
        rehearsed = (config.calibration, config.online, config.evidence) if config.online.threshold == "auto" else ()
        return checksum([type(self).__name__, *(asdict(part) for part in (config.offline, *rehearsed))])

    @property
    def trains(self) -> bool:
        """Does it need random views?"""
        return self.config.offline.epochs > 0

    def with_epochs(self, epochs: int) -> TalonRecipe:
        """Return this recipe with another length of training."""
        return replace(self, config=self.config.override(epochs=epochs))


@dataclass(frozen=True)
class TalonMethod(Method):
    """TALON, or a row of its ablation.

    Attributes:
        recipe: how the encoder is trained, and the settings of the stream.
        adapt: what keeps learning; ``None`` is what the settings say.
        adapter: the encoder's loss: ``talon``, or another adapter.
        threshold: what a cosine must reach; ``None`` is what the recipe found or was given. It is apart from the
            recipe so that rows with other thresholds share its fit.
    """

    recipe: TalonRecipe = field(default_factory=TalonRecipe)
    adapt: tuple[Adaptation, ...] | None = None
    adapter: str = "talon"
    threshold: float | None = None

    def stream(self, trained: Trained) -> MethodStream:
        """Open a stream with its own memory and head."""
        config = self.recipe.config
        online = config.online if self.adapt is None else replace(config.online, adapt=self.adapt)
        if self.threshold is not None:
            online = replace(online, threshold=self.threshold)
        elif online.threshold == "auto":
            online = replace(online, threshold=float(trained.facts["threshold"]))
        memory = PrototypeMemory(trained.facts["prototypes"])
        if "encoder" in online.adapt:
            encoder = prepared(trained.backbone, config.offline)
            return AdaptiveStream(trained, encoder, memory, online, self.adapter)
        return PrototypeStream(trained.network, FeatureStream(memory, online, trained.names))


class AdaptiveStream(MethodStream):
    """A stream whose encoder learns: it decides on trunk outputs."""

    def __init__(
        self,
        trained: Trained,
        backbone: Backbone,
        memory: PrototypeMemory,
        online: OnlineConfig,
        adapter: str = "talon",
        rule: EvidenceRule | None = None,
    ) -> None:
        assert isinstance(trained.network, HeadNetwork)
        loss = ADAPTERS[adapter](trained.network.head, online)
        encoder = backbone.with_head(trained.network.head)
        self.images = DiscoveryStream(encoder, memory, online, trained.names, loss, rule)
        super().__init__(memory.known, self.images.discovery.rule.threshold)
        self.unit = self.images.discovery.rule.unit
        self.clock = self.images.clock

    @property
    def size(self) -> int:
        """Prototypes in memory."""
        return self.images.memory.size

    def observe(self, hidden: Tensor) -> Assignment:
        """Answer, and adapt every ``adapt_every`` images."""
        parts, start = [], 0
        while start < len(hidden):
            parts.append(self.images.place(hidden[start : start + self.images.discovery.room]))
            start += len(parts[-1])
        return Assignment.joined(parts)

    def decide(self, hidden: Tensor) -> Assignment:
        """Answer each by itself."""
        features = self.images.adapter.encode(hidden).cpu()
        return self.images.discovery.look(features)

    def flush(self) -> None:
        """Adapt to what is waiting."""
        self.images.flush()

    def second_thoughts(self) -> SecondThoughts | None:
        """Ask the rule."""
        return self.images.second_thoughts()

    def state_dict(self) -> dict[str, Tensor]:
        """Return memory, adapted parameters and what is waiting."""
        return self.images.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take all of it over."""
        self.images.load_state_dict(state)


def talon_row(config: TalonConfig, margin: bool, adapt: tuple[Adaptation, ...] | None) -> TalonMethod:
    """Return a row of the ablation: with or without margin (MLC), and what the stream adapts (``None``: as set).

    Without margin the classifier is the one that is set (``linear`` is the paper's), or ``cosine``.
    """
    config = talon_config(config)
    plain = "cosine" if config.offline.classifier == "margin" else config.offline.classifier
    return TalonMethod(TalonRecipe(config.override(classifier="margin" if margin else plain)), adapt)


def adapter_row(config: TalonConfig, adapt: tuple[Adaptation, ...], adapter: str) -> TalonMethod:
    """Return TALON with another loss for its encoder, trained with margin as the paper's comparison is."""
    return replace(talon_row(config, True, adapt), adapter=adapter)


def talon_config(config: TalonConfig) -> TalonConfig:
    """Return the settings for TALON's rule: on a preset that decides by evidence, TALON is still TALON."""
    if config.online.rule == "cosine":
        return config
    adapt = ADAPTATIONS if config.online.adapt == OnlineConfig().adapt else config.online.adapt
    return config.override(rule="cosine", keep_pretrained=False, adapt=adapt)
