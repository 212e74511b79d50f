"""A small fitted model and digits on disk, for the tests that need the whole way of an image."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from talon_ocd import Talon, TalonConfig
from talon_ocd.backbones.tiny import TinyViT
from talon_ocd.images import ImageItem
from talon_ocd.images.digits import digits
from talon_ocd.online import Probe

KNOWN = ("0", "1", "2", "3")


@lru_cache
def part(first: int, last: int, labels: tuple[str, ...]) -> tuple[ImageItem, ...]:
    """Digits ``first`` to ``last - 1`` of each label, in the order of the data set."""
    seen: Counter[str] = Counter()
    chosen = []
    for item in digits():
        label = str(item.label)
        if label in labels and first <= seen[label] < last:
            chosen.append(item)
        seen[label] += 1
    return tuple(chosen)


def labelled() -> list[ImageItem]:
    return list(part(0, 20, KNOWN))


def incoming(count: int = 100) -> list[ImageItem]:
    """Other images of the known digits, and digits that the model has never seen."""
    return list(part(20, 40, (*KNOWN, "4", "5", "6")))[:count]


def tiny_talon(preset: str = "default", **settings: Any) -> Talon:
    short = {
        "epochs": 2,
        "views": 2,
        "rounds": 1,
        "orders": 1,
        "grid": 8,
        "try_untrained": False,
        "trained_weight": 1.0,
    }
    changes = {**short, "seed": 3, **settings}
    return Talon(TinyViT(width=32, depth=2), TalonConfig.from_preset(preset).override(**changes))


def some_of(probe: Probe, number: int) -> Probe:
    """Fewer images of a probe, evenly spaced: a guard looks at twice ``adapt_every`` of them at one adaptation."""
    some = torch.arange(number) * len(probe) // number
    return Probe(probe.hidden[some], probe.labels[some])


def write_folder(root: Path, items: list[ImageItem]) -> Path:
    """Write items as PNG files, a folder per class."""
    for number, item in enumerate(items):
        path = root / str(item.label) / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        item.load().save(path)
    return root
