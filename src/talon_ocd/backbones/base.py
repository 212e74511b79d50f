"""The Backbone contract: a frozen trunk and an adaptable head, with the preprocessing that belongs to them.

Shapes: pixels ``(B, 3, H, W)`` normalised by the backbone's own preprocessing; hidden ``(B, *hidden_shape)``;
features ``(B, D)``, raw (not unit length).
"""

from __future__ import annotations

import copy
import hashlib
import json
from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from talon_ocd.errors import BackboneError, ConfigError
from talon_ocd.images.transforms import Preprocessing

Scope = Literal["norms", "block", "head"]


class Backbone(nn.Module, ABC):
    """An encoder split in two: ``trunk`` never needs gradients, ``head`` is all that may move.

    The head runs once for decision and adaptation gradient alike, and trunk outputs can be cached. A backbone
    is always in evaluation mode: no dropout, and BatchNorm statistics stay fixed.

    Attributes:
        family: ``clip``, ``dino``, ... : what presets look at.
        name: what the user asked for (``efficientnet-lite0``, a hub id, a folder).
        preprocessing: size, crop, interpolation, mean, std and aspect policy; saved with every model.
        trunk: pixels ``(B, 3, H, W)`` -> hidden ``(B, *hidden_shape)``; frozen.
        head: hidden ``(B, *hidden_shape)`` -> raw features ``(B, D)``.
        hidden_shape: shape of one image's trunk output.
        feature_size: D.
        local_size: C, if ``head.describe`` gives local features ``(B, P, C)`` of P places beside the features; else 0.
    """

    family: str
    name: str
    preprocessing: Preprocessing
    trunk: nn.Module
    head: nn.Module
    hidden_shape: tuple[int, ...]
    feature_size: int
    local_size: int = 0

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.head.parameters()).device

    def finish(self) -> None:
        """Freeze everything and switch to evaluation mode; constructors call it last."""
        self.requires_grad_(False)
        self.eval()

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode normalised pixels ``(B, 3, H, W)`` into raw features ``(B, D)``."""
        if pixels.ndim != 4 or pixels.shape[1] != 3:
            raise BackboneError(
                f"pixels have shape {tuple(pixels.shape)}; a backbone takes (B, 3, H, W): "
                "preprocessing.pixels makes them from canvases."
            )
        features: Tensor = self.head(self.trunk(pixels))
        return features

    def train(self, mode: bool = True) -> Backbone:
        """Stay in evaluation mode, whatever is asked (see the class docstring)."""
        return super().train(False)

    def with_head(self, head: nn.Module) -> Backbone:
        """Return this encoder with another head of the same shape; both share the trunk."""
        other = copy.copy(self)
        other._modules = {**self._modules, "head": head}
        return other

    @abstractmethod
    def head_parameter_names(self, scope: Scope) -> list[str]:
        """Return names (relative to ``head``) of what a scope may move.

        ``norms``: affine parameters of the last block's normalisations; ``block``: the last block;
        ``head``: everything that offline training may touch.
        """

    @abstractmethod
    def architecture(self) -> dict[str, Any]:
        """Return plain data from which ``from_architecture`` builds the same network without weights.

        ``kind`` says which class builds it, ``name`` what the user asked for; all values survive JSON.
        """

    @classmethod
    @abstractmethod
    def from_architecture(cls, architecture: dict[str, Any], preprocessing: Preprocessing) -> Backbone:
        """Build the network with random weights; the caller loads the saved ones."""

    def trunk_fingerprint(self) -> str:
        """Return a checksum of trunk, architecture and preprocessing: equal means equal trunk outputs.

        The name is left out: the same encoder fetched by hub id or read from a folder shares its cache.
        """
        structure = {key: value for key, value in self.architecture().items() if key != "name"}
        facts = [structure, self.preprocessing.to_dict(), self.hidden_shape]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for key, value in sorted(self.trunk.state_dict().items()):
            digest.update(key.encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:32]

    def fingerprint(self) -> str:
        """Return a checksum of the whole encoder: equal means equal features."""
        digest = hashlib.sha256(self.trunk_fingerprint().encode())
        for key, value in sorted(self.head.state_dict().items()):
            digest.update(key.encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:32]


def check_size(name: str, value: object, least: int, multiple: int = 1) -> int:
    """Return ``value`` if it is an int of at least ``least`` that ``multiple`` divides; else refuse it."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least or value % multiple:  # type: ignore[operator]
        also = f" and divisible by {multiple}" if multiple > 1 else ""
        raise ConfigError(f"{name}={value!r}: {name} must be a whole number of at least {least}{also}.")
    return value  # type: ignore[return-value]
