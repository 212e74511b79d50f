"""One epoch of a training (layer: offline): order, batches, means of the losses; shared by TALON and the methods.

The same seed gives the same epochs, bit by bit: every epoch draws from generators made from the seed and its number.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from talon_ocd.errors import TalonError
from talon_ocd.progress import Task

LOOK_EVERY = 16
"""Steps between two looks at the loss; each one waits for the device."""

Step = Callable[[Tensor, torch.Generator], Sequence[Tensor]]
"""``(index (B,), generator of the views) -> losses``, the total first, as long as the names of the loop."""


@dataclass(frozen=True)
class Loop:
    """What all epochs of a training have in common.

    Attributes:
        count: images.
        batch_size: images a step.
        seed: decides order and views.
        names: what a step's losses are called; the first is the one that is minimised.
        remedy: what to do if that one is no number.
        whole_batches: leave a partial batch at the end of an epoch out, unless it is the only one.
    """

    count: int
    batch_size: int
    seed: int
    names: tuple[str, ...]
    remedy: str
    whole_batches: bool = False

    def epoch(self, epoch: int, step: Step, task: Task, device: torch.device) -> dict[str, float]:
        """Go through all images once; returns the mean losses."""
        batches = self._batches(epoch)
        draws = generator(self.seed, "views", epoch)
        losses = torch.zeros(len(batches), len(self.names), device=device)
        for number, index in enumerate(batches):
            parts = step(index, draws)
            torch.stack([part.detach().float() for part in parts], out=losses[number])
            facts: dict[str, float | str] = {}
            if number % LOOK_EVERY == LOOK_EVERY - 1 or number == len(batches) - 1:
                facts["loss"] = self._check(losses[: number + 1, 0].tolist(), epoch)
            task.advance(len(index), **facts)
        sizes = torch.tensor([len(index) for index in batches], dtype=losses.dtype, device=device)
        means = (losses * sizes[:, None]).sum(dim=0) / sizes.sum()
        return dict(zip(self.names, means.tolist(), strict=True))

    def _batches(self, epoch: int) -> list[Tensor]:
        order = torch.randperm(self.count, generator=generator(self.seed, "order", epoch))
        batches = [order[start : start + self.batch_size] for start in range(0, self.count, self.batch_size)]
        if self.whole_batches and len(batches) > 1 and len(batches[-1]) < self.batch_size:
            batches.pop()
        return batches

    def _check(self, values: list[float], epoch: int) -> float:
        """Return the last loss; refuse to go on with one that is no number."""
        wrong = [step for step, value in enumerate(values) if not math.isfinite(value)]
        if wrong:
            raise TalonError(
                f"the training loss became {values[wrong[0]]} in epoch {epoch + 1}, step {wrong[0] + 1}; {self.remedy}."
            )
        return values[-1]


def generator(seed: int, purpose: str, number: int) -> torch.Generator:
    """Return the generator of one purpose and number under a seed."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
