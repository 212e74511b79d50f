"""Encoders of the Hugging Face hub (layer: backbones); to come."""

from __future__ import annotations

from typing import Any

from talon_ocd.backbones.base import Backbone, Scope
from talon_ocd.errors import BackboneError
from talon_ocd.images.transforms import Preprocessing


class HubBackbone(Backbone):
    """A vision encoder of transformers."""

    @classmethod
    def pretrained(cls, name: str) -> HubBackbone:
        """Load by hub id or from a folder."""
        raise BackboneError(f"{name}: hub encoders are not built yet; use efficientnet-lite0.")

    @classmethod
    def from_architecture(cls, architecture: dict[str, Any], preprocessing: Preprocessing) -> HubBackbone:
        """Build with random weights."""
        raise BackboneError(
            f"{architecture['name']}: hub encoders are not built yet; use efficientnet-lite0."
        )

    def architecture(self) -> dict[str, Any]:
        """Return kind and name."""
        return {"kind": "hub", "name": self.name}

    def head_parameter_names(self, scope: Scope) -> list[str]:
        """Return the scope's names."""
        return []
