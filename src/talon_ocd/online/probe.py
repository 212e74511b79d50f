"""The probe: labelled images kept as trunk outputs, to see what an encoder step did (layer: online).

``offline/probe.py`` chooses the images, ``saved.py`` keeps them, ``guard.py`` asks them after every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.errors import DataError


@dataclass(frozen=True)
class Probe:
    """P labelled images of known classes.

    Attributes:
        hidden: their trunk outputs ``(P, *hidden_shape)``, in half precision.
        labels: their classes ``(P,)``, numbers of known categories.
    """

    hidden: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if len(self.hidden) != len(self.labels) or len(self.labels) == 0:
            raise DataError(
                f"a probe needs a label for every image and at least one image, got {len(self.labels)} labels for "
                f"{len(self.hidden)} images; fit the model anew."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Probe:
        """Return the probe on a device, in the precision that heads compute in."""
        return Probe(self.hidden.to(device, torch.float32), self.labels.to(device))

    def state_dict(self) -> dict[str, Tensor]:
        """Return both tensors, ready for safetensors."""
        return {"hidden": self.hidden, "labels": self.labels}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor]) -> Probe:
        """Build from what ``state_dict`` gave."""
        return cls(state["hidden"], state["labels"])


@dataclass(frozen=True)
class Reading:
    """What the probe says of a head.

    Attributes:
        accuracy: share of the probe whose nearest known prototype is its own.
        loss: mean ``-log p`` of the own class in the softmax over known prototypes, nats.
        entropy: mean entropy of that softmax, nats.
        similarity: mean cosine between two different probe images; near 1 all look the same.
    """

    accuracy: float
    loss: float
    entropy: float
    similarity: float

    @property
    def finite(self) -> bool:
        """Are all values numbers? A head with an infinite weight has none."""
        return all(value - value == 0 for value in (self.accuracy, self.loss, self.entropy, self.similarity))


def read(features: Tensor, labels: Tensor, known: Tensor, temperature: float) -> Reading:
    """Ask unit features ``(P, D)`` of the probe with classes ``(P,)`` about known prototypes ``(C, D)``.

    >>> read(torch.eye(2), torch.tensor([0, 0]), torch.eye(2), 1.0).accuracy
    0.5
    """
    log_p = F.log_softmax(features @ known.T / temperature, dim=1)
    number = len(labels)
    total = float(features.sum(dim=0).square().sum())
    return Reading(
        accuracy=float((log_p.argmax(dim=1) == labels).double().mean()),
        loss=float(F.nll_loss(log_p, labels)),
        entropy=float(-(log_p.exp() * log_p).sum(dim=1).mean()),
        similarity=(total / number - 1) / (number - 1) if number > 1 else 0.0,
    )
