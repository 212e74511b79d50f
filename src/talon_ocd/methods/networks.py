"""Networks that methods share (layer: methods): the backbone's head, and the MLP that hash methods put after it."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from talon_ocd.backbones import Backbone
from talon_ocd.backbones.base import Scope


class HeadNetwork(nn.Module):
    """A copy of the backbone's head: hidden ``(B, *hidden_shape)`` -> raw features ``(B, D)``.

    Methods derive from it to put layers after the head. The head itself stays in evaluation mode, as it is everywhere;
    the layers after it follow the mode.
    """

    def __init__(self, backbone: Backbone, scope: Scope = "head") -> None:
        super().__init__()
        self.head = copy.deepcopy(backbone.head)
        self.feature_size = backbone.feature_size
        self._names = backbone.head_parameter_names(scope)

    def head_parameters(self) -> list[nn.Parameter]:
        """Return what training may move of the head."""
        known = dict(self.head.named_parameters())
        return [known[name] for name in self._names]

    def train(self, mode: bool = True) -> HeadNetwork:
        """Switch the layers after the head; the head stays in evaluation mode."""
        super().train(mode)
        self.head.eval()
        return self

    def forward(self, hidden: Tensor) -> Tensor:
        """Return raw features ``(B, D)``."""
        features: Tensor = self.head(hidden)
        return features


class HashMlp(nn.Sequential):
    """Three layers with a normalised bottleneck: features ``(B, D)`` -> ``(B, 256)`` (section 2.4)."""

    size = 256

    def __init__(self, feature_size: int, width: int = 2048) -> None:
        super().__init__(
            nn.Linear(feature_size, width), nn.GELU(),
            nn.Linear(width, width), nn.GELU(),
            nn.Linear(width, self.size), nn.BatchNorm1d(self.size), nn.GELU(),
        )  # fmt: skip
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
