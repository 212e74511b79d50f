"""What the offline tests share: a backbone for hundreds of runs, some digits, a progress that listens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from talon_ocd.backbones.base import Backbone, Scope
from talon_ocd.images.digits import digits
from talon_ocd.images.items import ImageItem
from talon_ocd.images.transforms import Preprocessing
from talon_ocd.progress import Task

CLASSES = 4


class CountingTrunk(nn.Module):
    """A fixed random projection of patches that counts the images it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 2, 2)
        self.seen = 0

    def forward(self, pixels: Tensor) -> Tensor:
        self.seen += len(pixels)
        hidden: Tensor = self.patches(pixels)
        return hidden


class StandIn(Backbone):
    """Pixels (B, 3, 8, 8) -> hidden (B, 8, 4, 4) -> features (B, 16)."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.family = self.name = "stand-in"
        self.preprocessing = Preprocessing(resize=10, crop=8, mean=(0.5,) * 3, std=(0.5,) * 3)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.counter = CountingTrunk()
            self.head = nn.Sequential(nn.Flatten(), nn.Linear(128, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 16))
        self.trunk = self.counter
        self.hidden_shape = (8, 4, 4)
        self.feature_size = 16
        self.finish()

    def head_parameter_names(self, scope: Scope) -> list[str]:
        names = [name for name, _ in self.head.named_parameters()]
        return [name for name in names if name.startswith("2.")] if scope == "norms" else names

    def architecture(self) -> dict[str, Any]:
        return {"kind": "stand-in"}

    @classmethod
    def from_architecture(cls, architecture: dict[str, Any], preprocessing: Preprocessing) -> StandIn:
        return cls()


class Listener:
    """A progress that remembers notes and facts."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.facts: list[dict[str, float | str]] = []
        self.done = 0

    @contextmanager
    def task(self, name: str, total: int | None = None, unit: str = "images") -> Iterator[Task]:
        self.done = 0
        yield self

    def advance(self, amount: int = 1, **facts: float | str) -> None:
        self.done += amount
        self.facts.append(facts)

    def note(self, message: str) -> None:
        self.notes.append(message)


@lru_cache
def some_digits(count: int = 120) -> tuple[list[ImageItem], Tensor]:
    """The first digits below CLASSES, and their labels."""
    items = [item for item in digits() if int(item.label or 0) < CLASSES][:count]
    return items, torch.tensor([int(item.label or 0) for item in items])
