"""Random views of canvases, each a pure function of its own seed (layer: images).

The recipes of TALON, GCD and LTC. Values are between 0 and 1, not normalised yet; a view does not depend on
what else is in its batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from numpy.random import Generator, default_rng
from torch import Tensor
from torch.nn import functional

from talon_ocd.errors import ConfigError, DataError, nearest
from talon_ocd.images.transforms import Preprocessing

_GREY = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Augmentation:
    """A recipe for random views; strengths as in torchvision's ``ColorJitter``."""

    crop: str = "random"
    """``random``: a window of the canvas; ``resized``: a random part of it; ``centre``: its centre."""
    flip: float = 0.5
    """Probability of mirroring."""
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    """Largest shift on the colour circle, whose length is 1."""
    jitter: float = 0.0
    """Probability that the colours are changed at all."""
    area: tuple[float, float] = (0.6, 1.0)
    """Part of the canvas that a resized crop covers."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Width over height of a resized crop."""


AUGMENTATIONS: dict[str, Augmentation] = {
    "talon": Augmentation(brightness=0.3, contrast=0.3, saturation=0.3, hue=0.3, jitter=0.8),
    "gcd": Augmentation(),
    "ltc": Augmentation(crop="resized", brightness=0.2, contrast=0.2, saturation=0.2, jitter=1.0),
    "none": Augmentation(crop="centre", flip=0.0),
}


def augment(canvases: Sequence[Tensor], preprocessing: Preprocessing, name: str, seeds: Sequence[int]) -> Tensor:
    """Return one random view a canvas, ``(B, 3, crop, crop)`` float in [0, 1].

    Args:
        canvases: uint8 ``(3, H, W)``, each at least ``crop`` wide and high.
        preprocessing: gives the crop size.
        name: a recipe of `AUGMENTATIONS`.
        seeds: one a canvas; see `view_seed`.
    """
    if name not in AUGMENTATIONS:
        known = f"use one of {', '.join(AUGMENTATIONS)}.{nearest(name, AUGMENTATIONS)}"
        raise ConfigError(f"augmentation {name!r} is not known; {known}")
    if len(canvases) != len(seeds):
        raise DataError(f"{len(canvases)} canvases came with {len(seeds)} seeds; give one seed a canvas.")
    recipe, crop = AUGMENTATIONS[name], preprocessing.crop
    views = torch.empty(len(canvases), 3, crop, crop)
    for view, canvas, seed in zip(views, canvases, seeds, strict=True):
        _check(canvas, crop)
        rng = default_rng(seed)
        window = _cut(canvas, preprocessing, recipe, rng)
        if rng.random() < recipe.flip:
            window = window.flip(-1)
        torch.mul(window, 1 / 255, out=view)
        if rng.random() < recipe.jitter:
            _jitter(view, recipe, rng)
    return views


def view_seed(seed: int, key: str, view: int) -> int:
    """Return the seed of a view: stable over runs and machines, between 0 and 2**63 - 1.

    >>> view_seed(0, "a.jpg", 1) == view_seed(0, "a.jpg", 1) != view_seed(0, "a.jpg", 2)
    True
    """
    digest = blake2b(f"{seed}\0{key}\0{view}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def content_key(canvas: Tensor) -> str:
    """Return a key of what a canvas shows: views must not depend on where a file lies or when it was written."""
    return blake2b(canvas.numpy().tobytes(), digest_size=16).hexdigest()


def _check(canvas: Tensor, crop: int) -> None:
    fits = canvas.ndim == 3 and canvas.shape[0] == 3 and min(canvas.shape[1:]) >= crop
    if canvas.dtype != torch.uint8 or not fits:
        raise DataError(
            f"a canvas of shape {tuple(canvas.shape)} and type {canvas.dtype} can't be augmented; "
            f"give uint8 (3, H, W) with H and W of at least {crop}, as Preprocessing.canvas does."
        )


def _cut(canvas: Tensor, preprocessing: Preprocessing, recipe: Augmentation, rng: Generator) -> Tensor:
    """Cut ``(3, crop, crop)`` out of a canvas."""
    if recipe.crop == "centre":
        return preprocessing.centre(canvas)
    height, width = canvas.shape[1:]
    crop = preprocessing.crop
    if recipe.crop == "random":
        top, left = int(rng.integers(height - crop + 1)), int(rng.integers(width - crop + 1))
        return canvas[:, top : top + crop, left : left + crop]
    top, left, rows, columns = _part(height, width, recipe, rng)
    part = canvas[:, top : top + rows, left : left + columns].unsqueeze(0)
    size = (crop, crop)
    return functional.interpolate(part, size, mode="bicubic", antialias=True, align_corners=False)[0]


def _part(height: int, width: int, recipe: Augmentation, rng: Generator) -> tuple[int, int, int, int]:
    """Draw top, left, height and width of a part, as torchvision's ``RandomResizedCrop`` does."""
    low, high = (math.log(ratio) for ratio in recipe.ratio)
    for _ in range(10):
        area = height * width * rng.uniform(*recipe.area)
        ratio = math.exp(rng.uniform(low, high))
        columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < columns <= width and 0 < rows <= height:
            top, left = int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1))
            return top, left, rows, columns
    # A strip: the largest part in the centre whose ratio is allowed.
    rows = min(height, round(width / recipe.ratio[0]))
    columns = min(width, round(height * recipe.ratio[1]))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def _jitter(view: Tensor, recipe: Augmentation, rng: Generator) -> None:
    """Change the colours of one view in place: four steps in random order.

    One view at a time stays in the processor's cache, which is faster than steps over whole batches, and
    keeps every view independent of its batch to the last bit.
    """
    strengths = (recipe.brightness, recipe.contrast, recipe.saturation)
    factors = [1 + strength * rng.uniform(-1, 1) for strength in strengths]
    shift = recipe.hue * rng.uniform(-1, 1)
    for step in rng.permutation(4):
        if step == 0:
            adjust_brightness(view, factors[0])
        elif step == 1:
            adjust_contrast(view, factors[1])
        elif step == 2:
            adjust_saturation(view, factors[2])
        elif recipe.hue:
            adjust_hue(view, shift)


def adjust_brightness(view: Tensor, factor: float) -> None:
    """Multiply ``(3, H, W)`` in place."""
    view.mul_(factor).clamp_(0, 1)


def adjust_contrast(view: Tensor, factor: float) -> None:
    """Blend ``(3, H, W)`` in place with the mean of its grey version."""
    mean = _grey(view).mean()
    view.mul_(factor).add_(mean * (1 - factor)).clamp_(0, 1)


def adjust_saturation(view: Tensor, factor: float) -> None:
    """Blend ``(3, H, W)`` in place with its grey version."""
    grey = _grey(view)
    view.mul_(factor).add_(grey, alpha=1 - factor).clamp_(0, 1)


def adjust_hue(view: Tensor, shift: float) -> None:
    """Turn the hue of ``(3, H, W)`` in place by ``shift`` of the HSV circle."""
    red, green, blue = view
    top = view.amax(0)
    chroma = top - view.amin(0)
    safe = chroma.clamp(min=1e-12)
    # Hue in sixths of the circle: where red is largest between -1 and 1, then green around 2, blue around 4.
    sixths = torch.where(
        top == red,
        (green - blue) / safe,
        torch.where(top == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    # HSV to RGB in closed form: channel n is V - C * clamp(min(k, 4 - k), 0, 1) with k = (n + hue) mod 6.
    for channel, offset in zip(view, (5.0, 3.0, 1.0), strict=True):
        k = (sixths + (offset + 6 * shift)).remainder_(6)
        depth = torch.minimum(k, 4 - k).clamp_(0, 1)
        torch.addcmul(top, chroma, depth, value=-1, out=channel)
    view.clamp_(0, 1)


def _grey(view: Tensor) -> Tensor:
    grey = view[0] * _GREY[0]
    return grey.add_(view[1], alpha=_GREY[1]).add_(view[2], alpha=_GREY[2])
