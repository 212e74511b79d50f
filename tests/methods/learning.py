"""What tests of trained methods share: labelled digits in front of the stand-in, and how often codes agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from talon_ocd.config import OfflineConfig
from talon_ocd.methods.codes import Describe
from talon_ocd.offline import Labelled, TrunkCache
from tests.offline.standin import StandIn, some_digits

BACKBONE = StandIn()


@contextmanager
def labelled_digits(count: int = 120) -> Iterator[Labelled]:
    """Some digits with fresh views at every step: two cached ones would be learned by heart."""
    with TrunkCache(BACKBONE, memory_bytes=2**28, disk_bytes=0) as cache:
        yield Labelled.from_items(some_digits(count)[0], BACKBONE, OfflineConfig(views=0), cache)


def clean(labelled: Labelled) -> Tensor:
    """Trunk outputs of all images, without augmentation."""
    return labelled.outputs.take(torch.arange(len(labelled)))


def agreement(values: Tensor, labels: Tensor, describe: Describe) -> tuple[float, float]:
    """How often two images of one class have the same code, and two of different classes."""
    codes = describe(values.numpy())
    same_code = (codes[:, None] == codes[None]).all(axis=2)
    same_class = (labels[:, None] == labels[None]).numpy()
    itself = np.eye(len(labels), dtype=bool)
    return float(same_code[same_class & ~itself].mean()), float(same_code[~same_class].mean())
