"""Streams of methods (layer: methods): trunk outputs go in, ids come out, in order.

A stream is given pictures as the trunk sees them and nothing else: no label, no file name that could hold one.
``FrozenStream`` is for methods whose network stays as it is: they decide on its features, which are computed once for
all orders of a stream. ``OneByOneStream`` asks for a match and founds or joins; ``PrototypeStream`` has TALON's rule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor, nn

from talon_ocd.online import Assignment, FeatureStream, SecondThoughts
from talon_ocd.online.feature_stream import CHUNK
from talon_ocd.online.rules.assignment import Row
from talon_ocd.progress import StageClock

Vector = npt.NDArray[Any]


class MethodStream(ABC):
    """Answers images in order; ids 0 to ``known - 1`` are the known classes, new ones follow and are never reused.

    Attributes:
        known: number of known classes.
        threshold: what a similarity must reach to join, in the method's own unit.
        unit: what a similarity is: a cosine, unless the method says otherwise.
        clock: time spent by stage (``encode``, ``decide``, ``adapt``).
    """

    unit = "cosine"

    def __init__(self, known: int, threshold: float) -> None:
        self.known, self.threshold = known, threshold
        self.clock = StageClock()

    @property
    @abstractmethod
    def size(self) -> int:
        """Categories in memory: known ones and those founded so far."""

    @abstractmethod
    def observe(self, hidden: Tensor) -> Assignment:
        """Answer images given by their trunk outputs ``(B, *hidden_shape)`` and learn from them."""

    @abstractmethod
    def decide(self, hidden: Tensor) -> Assignment:
        """Answer images without learning anything: each as if it came next."""

    def flush(self) -> None:
        """Learn from what is still waiting; the protocol calls it at the end of a stream."""
        return

    def second_thoughts(self) -> SecondThoughts | None:
        """Return what would be answered differently by now; ``None`` for methods that never think again."""
        return None

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Return all that has changed since the stream was opened, ready for safetensors."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where the stream that gave ``state`` was."""


class FrozenStream(MethodStream):
    """A stream whose network never changes: it decides on features."""

    def __init__(self, network: nn.Module, known: int, threshold: float) -> None:
        super().__init__(known, threshold)
        self.network = network

    def encode(self, hidden: Tensor) -> Tensor:
        """Return what the network makes of trunk outputs ``(B, *hidden_shape)``."""
        with self.clock("encode"), torch.no_grad():
            features: Tensor = self.network(hidden)
            return features.cpu()

    def observe(self, hidden: Tensor) -> Assignment:
        """Encode, then place."""
        features = self.encode(hidden)
        with self.clock("decide"):
            return self.place(features)

    def decide(self, hidden: Tensor) -> Assignment:
        """Encode, then look."""
        return self.look(self.encode(hidden))

    @abstractmethod
    def place(self, features: Tensor) -> Assignment:
        """Answer features ``(B, ...)`` in order and learn from them."""

    @abstractmethod
    def look(self, features: Tensor) -> Assignment:
        """Answer features ``(B, ...)``, each as if it came next; changes nothing."""


class Match(NamedTuple):
    """The best category that exists for a feature; -1 if there is none."""

    category: int
    similarity: float
    runner_up: int = -1
    runner_up_similarity: float = -1.0


class OneByOneStream(FrozenStream):
    """Joins the match if its similarity reaches the threshold, founds a category otherwise."""

    @abstractmethod
    def match(self, feature: Vector) -> Match:
        """Return the best category for one feature; changes nothing."""

    @abstractmethod
    def found(self, feature: Vector, match: Match) -> None:
        """Make a category of a feature: it must be the one with the id ``size``."""

    def join(self, feature: Vector, category: int) -> None:
        """Learn from a feature that joined a category; by default nothing."""
        return

    def place(self, features: Tensor) -> Assignment:
        """Match each feature, and let it found or join."""
        rows = []
        for feature in features.numpy():
            match = self.match(feature)
            row = self._row(match)
            rows.append(row)
            if row[1]:
                self.found(feature, match)
            else:
                self.join(feature, match.category)
        return Assignment.from_rows(rows)

    def look(self, features: Tensor) -> Assignment:
        """Match each feature."""
        return Assignment.from_rows([self._row(self.match(feature)) for feature in features.numpy()])

    def _row(self, match: Match) -> Row:
        if match.category >= 0 and match.similarity >= self.threshold:
            return match.category, False, match.similarity, match.runner_up, match.runner_up_similarity
        return self.size, True, match.similarity, match.category, match.similarity


class PrototypeStream(FrozenStream):
    """Discovery on unit features, by TALON's rule or by evidence; what it knows of categories may learn."""

    def __init__(self, network: nn.Module, discovery: FeatureStream) -> None:
        super().__init__(network, discovery.memory.known, discovery.rule.threshold)
        self.discovery = discovery
        self.unit = discovery.rule.unit

    @property
    def size(self) -> int:
        """Prototypes in memory."""
        return self.discovery.memory.size

    def encode(self, hidden: Tensor) -> Tensor:
        """Return unit features ``(B, D)``."""
        return nn.functional.normalize(super().encode(hidden).float(), dim=1)

    def place(self, features: Tensor) -> Assignment:
        """Answer in order; categories adapt every ``adapt_every`` answers."""
        parts, start = [], 0
        while start < len(features):
            end = start + min(self.discovery.room, CHUNK)
            parts.append(self.discovery.place(features[start:end]))
            start = end
            if self.discovery.room == 0:
                self.discovery.adapt()
        return Assignment.joined(parts)

    def look(self, features: Tensor) -> Assignment:
        """Answer each by itself."""
        return self.discovery.look(features)

    def flush(self) -> None:
        """Adapt to what is waiting."""
        self.discovery.adapt()

    def second_thoughts(self) -> SecondThoughts | None:
        """Ask the rule."""
        return self.discovery.second_thoughts()

    def state_dict(self) -> dict[str, Tensor]:
        """Return memory, groups and what the rule has learned."""
        return self.discovery.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take all of it over."""
        self.discovery.load_state_dict(state)
