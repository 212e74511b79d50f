"""Choose the probe that guards a stream: a few labelled images of every class, as trunk outputs (layer: offline)."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from talon_ocd.offline.labelled import Labelled
from talon_ocd.online import Probe

MOST_BYTES = 32_000_000
"""Largest probe: it goes into the model folder, and through the head at every encoder step."""
MOST_A_CLASS = 32
"""Images of one class that say enough about it."""
BYTES_A_NUMBER = 2


def choose_probe(labelled: Labelled, most: int) -> Probe:
    """Return at most ``most`` labelled images, as evenly over the classes as they allow, in half precision."""
    shape = labelled.outputs.empty(0).shape[1:]
    fitting = max(MOST_BYTES // (BYTES_A_NUMBER * prod(shape)), 1)
    index = spread(labelled.labels, min(most, fitting))
    share = labelled.share
    hidden = (labelled.outputs.take(index) if share is None else share.take(labelled.outputs, index)).cpu()
    exact = hidden.abs().max() <= torch.finfo(torch.float16).max
    return Probe(hidden.to(torch.float16 if exact else torch.bfloat16), labelled.labels[index].cpu())


def spread(labels: Tensor, most: int) -> Tensor:
    """Return positions of at most ``most`` images with classes ``labels`` ``(N,)``: as many of each class as can be.

    Inside a class they are evenly spaced, because neighbours in a folder are often of one scene. With more classes
    than ``most``, some evenly spaced classes have one image each.

    >>> spread(torch.tensor([0, 0, 0, 0, 1]), 3).tolist()
    [0, 2, 4]
    """
    members = [torch.nonzero(labels == label)[:, 0] for label in labels.unique().tolist()]
    if len(members) > most:
        members = [members[at] for at in _evenly(len(members), most)]
    quota = max(q for q in range(1, MOST_A_CLASS + 1) if sum(min(len(own), q) for own in members) <= most)
    return torch.cat([own[_evenly(len(own), min(len(own), quota))] for own in members]).sort().values


def _evenly(count: int, wanted: int) -> list[int]:
    return [at * count // wanted for at in range(wanted)]
