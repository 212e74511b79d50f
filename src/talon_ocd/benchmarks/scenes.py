"""Encoders and pictures to measure with (room: benchmarks): nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.backbones import Backbone, EfficientNetLite0, HubBackbone
from talon_ocd.benchmarks.sizes import Sizes
from talon_ocd.config import OnlineConfig, TalonConfig
from talon_ocd.images.transforms import Preprocessing
from talon_ocd.memory import PrototypeMemory
from talon_ocd.online import CosineRule

FOUNDED = 0.1
"""Share of a batch's pictures that should found a category."""


def lite0(sizes: Sizes) -> Backbone:
    """Build EfficientNet-Lite0 with its ImageNet weights."""
    return EfficientNetLite0.pretrained(image_size=sizes.lite_size)


def vit_b16(sizes: Sizes) -> Backbone:
    """Build the shape of ViT-B/16 (transformers' defaults) with random weights."""
    crop = int(sizes.vit.get("image_size", 224))
    architecture = {"name": "vit-b16-shape", "model_type": "vit", "config": dict(sizes.vit)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return HubBackbone.from_architecture(architecture, Preprocessing(resize=round(crop / 0.875), crop=crop))


ENCODERS: dict[str, Callable[[Sizes], Backbone]] = {"lite0": lite0, "vit-b16": vit_b16}


@dataclass(frozen=True)
class Scene:
    """One batch of decoded pictures and what a stream needs to answer it.

    Attributes:
        pixels: ``(B, 3, H, W)``, normalised.
        known: unit prototypes ``(C, D)`` of the known classes.
        config: the released code's preset, with a threshold that makes about a tenth of the batch found categories.
        founded: how many do.
    """

    pixels: Tensor
    known: Tensor
    config: OnlineConfig
    founded: int


def scene(backbone: Backbone, batch: int, seed: int = 0) -> Scene:
    """Paint a batch of several classes, most of them known.

    Random weights give nearly equal features, so no fixed threshold would do: it is taken from the features.
    """
    generator = torch.Generator().manual_seed(seed)
    size, classes = backbone.preprocessing.crop, max(batch // 4, 2)
    patterns = torch.randn(classes, 3, 4, 4, generator=generator)
    known = classes * 3 // 4
    labels = torch.arange(batch) % classes
    labelled = _encode(backbone, _paint(patterns[:known], size, generator))
    pixels = _paint(patterns[labels[torch.randperm(batch, generator=generator)]], size, generator)
    features = _encode(backbone, pixels)
    memory = PrototypeMemory(labelled)
    threshold, founded = _threshold(features, memory, round(FOUNDED * batch))
    preset = TalonConfig.official(backbone.family)
    return Scene(pixels, memory.prototypes, preset.override(threshold=threshold, adapt_every=batch).online, founded)


def _paint(patterns: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Blow small patterns ``(N, 3, 4, 4)`` up to pictures and add noise."""
    pictures = F.interpolate(patterns, size=(size, size), mode="bilinear", align_corners=False)
    return pictures + 0.3 * torch.randn(pictures.shape, generator=generator)


def _encode(backbone: Backbone, pixels: Tensor) -> Tensor:
    with torch.no_grad():
        return F.normalize(backbone(pixels), dim=1)


def _threshold(features: Tensor, memory: PrototypeMemory, wanted: int) -> tuple[float, int]:
    """Return the lowest of some thresholds at which at least ``wanted`` features found a category, and how many do.

    A candidate lies halfway between two cosines that occur, so that rounding can't change an answer.
    """
    every = torch.cat([features @ memory.prototypes.T, features @ features.T], dim=1).flatten().sort().values
    low, high = 0, len(every) - 2
    while low < high:
        middle = (low + high) // 2
        founded = _founded(features, memory, float(every[middle : middle + 2].mean()))
        low, high = (low, middle) if founded >= wanted else (middle + 1, high)
    threshold = float(every[low : low + 2].double().mean())
    return threshold, _founded(features, memory, threshold)


def _founded(features: Tensor, memory: PrototypeMemory, threshold: float) -> int:
    return int(CosineRule(threshold).assign(features, memory).founded.sum())
