"""The Backbone contract: a frozen trunk and an adaptable head, with the preprocessing that belongs to them.

Shapes: pixels ``(B, 3, H, W)`` normalised by the backbone's own preprocessing; hidden ``(B, *hidden_shape)``;
features ``(B, D)``, raw (not unit length).
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from talon_ocd.images.transforms import Preprocessing

Scope = Literal["norms", "block", "head"]


class Backbone(nn.Module, ABC):
    """An encoder split in two: ``trunk`` never needs gradients, ``head`` is all that training and adaptation may touch.

    The head runs once for the decision and for the adaptation gradient alike, and trunk outputs can be cached. A
    backbone is always in evaluation mode: none of the supported ones has dropout, and BatchNorm statistics stay fixed.

    Attributes:
        family: ``clip``, ``dino``, ... : what presets look at.
        name: what the user asked for (``efficientnet-lite0``, a hub id, a folder).
        preprocessing: size, crop, interpolation, mean, std and aspect policy; saved with every model.
        trunk: pixels ``(B, 3, H, W)`` -> hidden ``(B, *hidden_shape)``; frozen.
        head: hidden ``(B, *hidden_shape)`` -> raw features ``(B, D)``.
        hidden_shape: shape of one image's trunk output.
        feature_size: D.
    """

    family: ClassVar[str]
    name: str
    preprocessing: Preprocessing
    trunk: nn.Module
    head: nn.Module
    hidden_shape: tuple[int, ...]
    feature_size: int

    def finish(self) -> None:
        """Freeze everything and switch to evaluation mode; constructors call it last."""
        self.requires_grad_(False)
        self.eval()

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode normalised pixels ``(B, 3, H, W)`` into raw features ``(B, D)``."""
        features: Tensor = self.head(self.trunk(pixels))
        return features

    def train(self, mode: bool = True) -> Backbone:
        """Stay in evaluation mode, whatever is asked (see the class docstring)."""
        return super().train(False)  # type: ignore[return-value]

    @abstractmethod
    def head_parameter_names(self, scope: Scope) -> list[str]:
        """Return names (relative to ``head``) of what a scope may move.

        ``norms``: affine parameters of the last block's normalisations; ``block``: the last block;
        ``head``: everything that offline training may touch.
        """

    @abstractmethod
    def architecture(self) -> dict[str, Any]:
        """Return plain data from which ``from_architecture`` builds the same network without weights."""

    @classmethod
    @abstractmethod
    def from_architecture(cls, architecture: dict[str, Any], preprocessing: Preprocessing) -> Backbone:
        """Build the network with random weights; the caller loads the saved ones."""

    def trunk_fingerprint(self) -> str:
        """Return a checksum of trunk weights, preprocessing and hidden shape: equal means equal trunk outputs."""
        digest = hashlib.sha256(json.dumps([self.preprocessing.to_dict(), self.hidden_shape]).encode())
        for key, value in sorted(self.trunk.state_dict().items()):
            digest.update(key.encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:32]
