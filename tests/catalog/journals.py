"""Journals of small streams, filled without a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.durable.journal import Entry, Journal
from talon_ocd.online import Decision
from talon_ocd.online.decision import category_name

KNOWN = ("cat", "dog")
ANSWERS = (0, 0, 1, 2, 2, 2, 3, 3, 4, 5, 5)
"""Cats 0-1, a dog 2, and discovered ones: 2 (images 3-5), 3 (images 6-7), 4 (image 8), 5 (images 9-10)."""


def directions(number: int, size: int = 16, seed: int = 0) -> Tensor:
    """Unit vectors ``(number, size)``."""
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(number, size, generator=generator), dim=1)


def entries(
    answers: Sequence[int], first: int = 0, seen: set[int] | None = None, features: Tensor | None = None
) -> list[Entry]:
    """Answers as a stream would journal them; a category that was not seen before is new."""
    seen = set(range(len(KNOWN))) if seen is None else seen
    made = []
    for index, category in enumerate(answers, first):
        verdict = "known" if category < len(KNOWN) else "discovered" if category in seen else "new"
        seen.add(category)
        feature = directions(1, seed=index)[0] if features is None else features[index - first]
        decision = Decision(
            index, f"photos/{index:03d}.png", category, category_name(category, KNOWN), verdict,  # type: ignore[arg-type]
            0.9 - index / 1000, 0.5, 1 if category == 0 else 0, 0.25,
        )  # fmt: skip
        made.append(Entry(decision, f"key-{index}", feature, feature))
    return made


def open_journal(folder: Path, answers: Sequence[int] = ANSWERS, features: Tensor | None = None) -> Journal:
    """A journal with answers in it, open for writing."""
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal(folder, write=True, purpose="a test")
    journal.set_meta(names=KNOWN, rule={"name": "cosine", "unit": "cosine", "threshold": 0.5})
    if answers:
        journal.write(entries(answers, features=features))
    return journal
