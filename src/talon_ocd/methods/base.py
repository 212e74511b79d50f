"""The contract of a method (layer: methods): a recipe that trains, and streams that decide.

A ``Recipe`` turns labelled images into a ``Trained`` network with facts about the known classes. A ``Method`` opens
streams on it. They are apart because rows of a table often differ in their streams only: equal recipes share one fit.
Methods are frozen dataclasses: their fields are their settings, and two of them are equal when their settings are.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from talon_ocd.backbones import Backbone
from talon_ocd.methods.streams import MethodStream
from talon_ocd.offline import Labelled
from talon_ocd.progress import SILENT, Progress


@dataclass(frozen=True)
class Trained:
    """What a recipe made of the labelled images.

    Attributes:
        backbone: the encoder as it was before training; streams that adapt need to know its parts.
        network: hidden ``(B, *hidden_shape)`` -> what streams decide on; in evaluation mode, frozen.
        facts: whatever else streams need, by name: prototypes, codes, thresholds.
        names: the known classes, in the order of their ids.
        report: what training measured, as plain data.
    """

    backbone: Backbone
    network: nn.Module
    facts: dict[str, Tensor]
    names: tuple[str, ...]
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def known(self) -> int:
        """C, the number of known classes."""
        return len(self.names)


@dataclass(frozen=True)
class Recipe(ABC):
    """How a method is trained; its fields are its settings."""

    @abstractmethod
    def network(self, backbone: Backbone, classes: int) -> nn.Module:
        """Return the network before training (see ``HeadNetwork``); the backbone stays as it is."""

    @abstractmethod
    def fit(self, backbone: Backbone, labelled: Labelled, seed: int, progress: Progress = SILENT) -> Trained:
        """Learn the known classes; the same seed gives the same."""

    def with_epochs(self, epochs: int) -> Recipe:
        """Return this recipe with another length of training; a recipe without training stays as it is."""
        trains = any(setting.name == "epochs" for setting in fields(self))
        return replace(self, epochs=epochs) if trains else self  # type: ignore[call-arg]

    @property
    def key(self) -> str:
        """A checksum of the settings: recipes with equal keys train the same."""
        return checksum([type(self).__name__, asdict(self)])

    @property
    def trains(self) -> bool:
        """Does it need random views of the labelled images?"""
        return getattr(self, "epochs", 0) > 0


@dataclass(frozen=True)
class GradientRecipe(Recipe):
    """A recipe that trains a network by gradient and then looks at the labelled images once more."""

    epochs: int = 100
    """Times that training goes through the labelled images."""
    batch_size: int = 128
    """Images a step."""

    @abstractmethod
    def train(self, network: Any, labelled: Labelled, seed: int, progress: Progress) -> dict[str, Any]:
        """Train ``network`` in place (see ``Training``); returns what there is to report."""

    @abstractmethod
    def facts(self, network: Any, labelled: Labelled) -> dict[str, Tensor]:
        """Return what streams must know of the labelled images; ``network`` is trained and in evaluation mode."""

    def fit(self, backbone: Backbone, labelled: Labelled, seed: int, progress: Progress = SILENT) -> Trained:
        """Build, train, and collect the facts."""
        with seeded(seed):
            network = self.network(backbone, labelled.classes)
            report = self.train(network, labelled, seed, progress)
            finish(network)
            with torch.no_grad():
                facts = self.facts(network, labelled)
        return Trained(backbone, network, facts, labelled.names, report)


@dataclass(frozen=True)
class Method(ABC):
    """A way to discover categories: a recipe, and streams on what it made. Fields are settings of the stream."""

    recipe: Recipe

    @abstractmethod
    def stream(self, trained: Trained) -> MethodStream:
        """Open a stream; streams never meet, so copy what they change."""

    def settings(self) -> dict[str, Any]:
        """Return all settings as plain data, those of the recipe included."""
        return {**asdict(self), "recipe": {"kind": type(self.recipe).__name__, **asdict(self.recipe)}}


def checksum(facts: Any) -> str:
    """Return a short checksum of plain data."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def finish(network: nn.Module) -> None:
    """Freeze a trained network and switch it to evaluation mode."""
    network.requires_grad_(False)
    network.eval()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let torch's own generator start from ``seed`` inside, and leave it untouched outside."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
