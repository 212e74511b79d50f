"""The probe: labelled images kept as trunk outputs, to see what an encoder step did (layer: online).

``offline/probe.py`` chooses the images, ``saved.py`` keeps them, ``guard.py`` asks them about every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.errors import DataError
from talon_ocd.online.feature_stream import FeatureStream
from talon_ocd.online.rules import CosineRule


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

    def state_dict(self) -> dict[str, Tensor]:
        """Return both tensors, ready for safetensors."""
        return {"hidden": self.hidden, "labels": self.labels}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor]) -> Probe:
        """Build from what ``state_dict`` gave."""
        return cls(state["hidden"], state["labels"])


@dataclass(frozen=True)
class Reading:
    """What the probe says of a head, with the memory as it is.

    Attributes:
        right: which probe images the stream would answer with their own class ``(P,)``.
        nearest: share of them whose nearest known prototype is their own, whatever was discovered.
        fits: cosines of the images with their own prototypes ``(P,)``.
        entropy: mean entropy of the softmax over known prototypes, nats.
        alike: mean cosine between two probe images; near 1 all look the same.
    """

    right: Tensor
    nearest: float
    fits: Tensor
    entropy: float
    alike: float

    @property
    def accuracy(self) -> float:
        """Share of the probe that the stream would answer with its own class."""
        return float(self.right.double().mean())

    @property
    def fit(self) -> float:
        """Mean cosine of probe images with their own prototypes."""
        return float(self.fits.double().mean())

    def values(self) -> dict[str, float]:
        """Return the numbers, rounded, for those who read verdicts."""
        names = ("accuracy", "nearest", "fit", "entropy", "alike")
        return {name: round(float(getattr(self, name)), 4) for name in names}


def read(features: Tensor, labels: Tensor, discovery: FeatureStream) -> Reading:
    """Ask what the memory and rule of a stream make of unit features ``(P, D)`` with known classes ``(P,)``."""
    cosines = features @ discovery.memory.prototypes[: discovery.memory.known].T
    log_p = F.log_softmax(cosines / discovery.config.temperature, dim=1)
    return Reading(
        right=_answers(features, discovery) == labels,
        nearest=float((cosines.argmax(dim=1) == labels).double().mean()),
        fits=own_cosines(features, labels, discovery),
        entropy=float(-(log_p.exp() * log_p).sum(dim=1).mean()),
        alike=alikeness(features),
    )


def own_cosines(features: Tensor, labels: Tensor, discovery: FeatureStream) -> Tensor:
    """Return the cosines ``(P,)`` of unit features ``(P, D)`` with the prototypes of their own classes ``(P,)``."""
    return (features * discovery.memory.prototypes[labels]).sum(dim=1)


def alikeness(features: Tensor) -> float:
    """Return the mean cosine between two different ones of unit features ``(B, D)``; 0 if there is only one.

    >>> alikeness(torch.eye(3)), alikeness(torch.eye(3)[[0, 0]])
    (0.0, 1.0)
    """
    number = len(features)
    total = float(features.detach().double().sum(dim=0).square().sum())
    return (total / number - 1) / (number - 1) if number > 1 else 0.0


def _answers(features: Tensor, discovery: FeatureStream) -> Tensor:
    """Return the slot that each of the features ``(P, D)`` joins, -1 for a new category."""
    if isinstance(discovery.rule, CosineRule):  # its look goes one by one; all at once give the same
        near = discovery.memory.nearest(features)
        return torch.where(near.similarities[:, 0] >= discovery.rule.threshold, near.ids[:, 0], -1)
    answers = discovery.look(features)
    return torch.where(torch.from_numpy(answers.founded), -1, torch.from_numpy(answers.ids))
