"""Layers of EfficientNet-Lite (layer: backbones): "same" padding, fixed normalisation, inverted residuals.

A frozen unit carries its normalisation folded into weight and bias; an adaptable one keeps it apart, so that
its affine parameters can move alone. Maps are ``(B, H, W, C)``, channels last: a 1 x 1 convolution is then
one matrix product, and a CPU runs the whole about twice as fast as with channels first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NORM_EPS = 1e-3


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return ``(padding, surplus)``: pad both sides alike, convolve, then drop ``surplus`` leading outputs.

    TensorFlow pads the far side by one more where the sum is odd. A stride more on the near side and a first
    output less give the same values, without a padded copy of the input.
    """
    outputs = -(-size // stride)
    total = max((outputs - 1) * stride + kernel - size, 0)
    return (total // 2, 0) if total % 2 == 0 else (total // 2 + stride, 1)


class FixedNorm(nn.Module):
    """Batch normalisation with statistics that never change, whatever the mode; weight and bias may."""

    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))

    def fold(self, kernel: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ``kernel`` ``(C, ...)`` and bias ``(C,)`` of a convolution that normalises as well.

        Weights are small and maps are large: folding at every step is faster than a pass over the maps, both ways.
        """
        factor = self.weight / (self.variance + NORM_EPS).sqrt()
        return kernel * factor.view(-1, *[1] * (kernel.ndim - 1)), self.bias - self.mean * factor


class ConvUnit(nn.Module):
    """Convolution, normalisation and ReLU6; ``folded`` units hold the normalisation in weight and bias."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        *,
        stride: int = 1,
        groups: int = 1,
        activate: bool = True,
        folded: bool = True,
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.groups, self.activate = kernel, stride, groups, activate
        self.weight = nn.Parameter(torch.empty(outputs, inputs // groups, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(outputs)) if folded else None
        self.norm = None if folded else FixedNorm(outputs)
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu" if activate else "linear")

    def forward(self, maps: Tensor) -> Tensor:
        """Turn maps ``(B, H, W, C)`` into ``(B, ceil(H / stride), ceil(W / stride), C')``."""
        weight, bias = (self.weight, self.bias) if self.norm is None else self.norm.fold(self.weight)
        pointwise = self.kernel == 1
        maps = F.linear(maps, weight.flatten(1), bias) if pointwise else self._convolve(maps, weight, bias)
        if self.activate:
            maps = F.relu6(maps, inplace=not maps.requires_grad)  # with gradients, in place means a hidden copy
        return maps

    def _convolve(self, maps: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        (top, drop_rows), (left, drop_columns) = (
            same_padding(size, self.kernel, self.stride) for size in maps.shape[1:3]
        )
        maps = maps.permute(0, 3, 1, 2)  # a view that torch knows as channels-last
        maps = F.conv2d(maps, weight, bias, self.stride, (top, left), 1, self.groups)
        return maps.permute(0, 2, 3, 1)[:, drop_rows:, drop_columns:].contiguous()


class InvertedResidual(nn.Module):
    """Expand by a 1 x 1 convolution, filter each channel, project back; a skip where shapes allow it."""

    def __init__(
        self, inputs: int, outputs: int, *, expansion: int, kernel: int, stride: int, folded: bool = True
    ) -> None:
        super().__init__()
        width = inputs * expansion
        self.skip = stride == 1 and inputs == outputs
        self.expand = ConvUnit(inputs, width, folded=folded) if expansion > 1 else None
        self.depthwise = ConvUnit(width, width, kernel, stride=stride, groups=width, folded=folded)
        self.project = ConvUnit(width, outputs, activate=False, folded=folded)

    def forward(self, maps: Tensor) -> Tensor:
        """Turn maps ``(B, H, W, C)`` into ``(B, ceil(H / stride), ceil(W / stride), C')``."""
        wide = maps if self.expand is None else self.expand(maps)
        narrow: Tensor = self.project(self.depthwise(wide))
        return narrow.add_(maps) if self.skip else narrow
