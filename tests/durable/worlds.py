"""A fitted model, and what the tests of streams with a folder share."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch

from talon_ocd import Talon
from talon_ocd.durable import DurableStream
from talon_ocd.images import ImageItem
from tests import tiny

BOTH = "prototypes,encoder"
Open = Callable[..., DurableStream]


@lru_cache
def fitted() -> Talon:
    talon = tiny.tiny_talon(adapt_every=8, images=16)  # so few that a guard judges a step at the next adaptation
    talon.fit(tiny.labelled())
    return talon


def ids(stream: DurableStream, items: list[ImageItem]) -> list[int]:
    """Answer images and wait for every snapshot: one that is due while another is written would be taken later."""
    answers = []
    for decision in stream.run(items):
        answers.append(decision.category)
        stream.wait_until_saved()
    return answers


def state(stream: DurableStream) -> dict[str, torch.Tensor]:
    return {name: value for name, value in stream.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
