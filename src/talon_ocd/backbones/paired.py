"""An encoder that keeps its pre-trained head beside the one that is trained (layer: backbones).

Training on known classes moves features that new classes would need. Side by side, both are there: what the pre-trained
head sees of anything, and what the trained one sees of the known.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.backbones.base import Backbone, Scope
from talon_ocd.images.transforms import Preprocessing

KIND = "paired"


class PairedHead(nn.Module):
    """Two heads: hidden ``(B, *hidden_shape)`` -> ``(B, 2D)``, each half centred and of unit length.

    Attributes:
        first: the pre-trained head; it never changes.
        second: the head that training and adaptation move.
        centres: what is subtracted from unit features ``(2, D)``; ``centre`` sets it.
    """

    centres: Tensor

    def __init__(self, head: nn.Module, feature_size: int) -> None:
        super().__init__()
        self.first, self.second = copy.deepcopy(head), copy.deepcopy(head)
        self.register_buffer("centres", torch.zeros(2, feature_size))

    def forward(self, hidden: Tensor) -> Tensor:
        """Encode with both."""
        raw = (self.first(hidden), self.second(hidden))
        halves = [F.normalize(F.normalize(part.float(), dim=1) - self.centres[i], dim=1) for i, part in enumerate(raw)]
        return torch.cat(halves, dim=1)

    def centre(self, first: Tensor, second: Tensor) -> None:
        """Centre on the unit features ``(N, D)`` that both heads give of the labelled images."""
        self.centres.copy_(torch.stack([first.mean(dim=0), second.mean(dim=0)]))


class Paired(Backbone):
    """A backbone with a ``PairedHead``; trunk and preprocessing are those of ``base``, which stays as it is."""

    head: PairedHead

    def __init__(self, base: Backbone) -> None:
        super().__init__()
        self._base = (base,)  # in a tuple: its parameters are not ours
        self.family, self.name = base.family, base.name
        self.preprocessing, self.hidden_shape = base.preprocessing, base.hidden_shape
        self.trunk, self.head = base.trunk, PairedHead(base.head, base.feature_size)
        self.feature_size = 2 * base.feature_size
        self.finish()

    @property
    def base(self) -> Backbone:
        """The encoder with its one head, as it was before training."""
        return self._base[0].with_head(self.head.first)  # also after weights were loaded or moved to a device

    def head_parameter_names(self, scope: Scope) -> list[str]:
        """Return the scope's names, of the second head only."""
        return [f"second.{name}" for name in self.base.head_parameter_names(scope)]

    def architecture(self) -> dict[str, Any]:
        """Return the base's, one level down."""
        return {"kind": KIND, "name": self.name, "base": self.base.architecture()}

    @classmethod
    def from_architecture(cls, architecture: dict[str, Any], preprocessing: Preprocessing) -> Paired:
        """Build with random weights."""
        raise NotImplementedError("the registry builds the base first; use backbone_from_architecture.")

    def trunk_fingerprint(self) -> str:
        """Return the base's: both share trunk outputs."""
        return self.base.trunk_fingerprint()


def paired(backbone: Backbone) -> Paired:
    """Return the backbone with both heads; one that has them already stays as it is."""
    return backbone if isinstance(backbone, Paired) else Paired(backbone)
