"""Preprocessing that belongs to a backbone: how a decoded picture becomes pixels (layer: images).

A picture becomes a *canvas* (resized, uint8, the part that is worth keeping), a canvas becomes *pixels* (cropped,
normalised, float). Random views start from the same canvas (``augment.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from talon_ocd.errors import ConfigError, ImageError, nearest
from talon_ocd.images.decode import LIMITS, Limits
from talon_ocd.images.items import Embedded, ImageItem

_FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


@dataclass(frozen=True)
class Preprocessing:
    """Size, crop, interpolation, colour statistics and aspect policy of a backbone.

    ``mean`` and ``std`` are for values between 0 and 1. With ``aspect="squash"`` the picture is resized to a square
    (TALON's pipeline), with ``"keep"`` its shorter side is resized (the pipeline of GCD, SMILE and PHE).
    """

    resize: int = 256
    crop: int = 224
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    aspect: Literal["squash", "keep"] = "squash"
    shows_pictures: ClassVar[bool] = True
    """Are canvases something to look at?"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(self.mean))
        object.__setattr__(self, "std", tuple(self.std))
        if not 1 <= self.crop <= self.resize:
            raise ConfigError(f"crop={self.crop} must be between 1 and resize={self.resize}.")
        if self.interpolation not in _FILTERS:
            raise ConfigError(f"interpolation={self.interpolation!r} is not known; use bicubic or bilinear.")
        if self.aspect not in ("squash", "keep"):
            raise ConfigError(f"aspect={self.aspect!r} is not known; use squash or keep.")

    def loaded(self, item: ImageItem, limits: Limits = LIMITS) -> Tensor:
        """Load an image and return its canvas; raises `ImageError`."""
        if isinstance(item.payload, Embedded):
            raise ImageError(item.source, "is an embedding, and this encoder takes pictures; give it the image.")
        return self.canvas(item.load(limits, self.resize))

    def canvas(self, picture: Image.Image) -> Tensor:
        """Resize an RGB picture; returns ``(3, H, W)`` uint8 with ``min(H, W) == resize``."""
        width, height = picture.size
        if self.aspect == "squash":
            size = (self.resize, self.resize)
        else:
            factor = self.resize / min(width, height)
            # A strip of 1 x 100,000 pixels must not become a canvas of gigabytes: nobody crops that far out anyway.
            longest = 8 * self.resize
            size = tuple(min(longest, max(self.resize, round(side * factor))) for side in (width, height))  # type: ignore[assignment]
        if picture.size != size:
            picture = picture.resize(size, _FILTERS[self.interpolation])
        return torch.from_numpy(np.asarray(picture, dtype=np.uint8).copy()).permute(2, 0, 1)

    def centre(self, canvas: Tensor) -> Tensor:
        """Cut the centre ``(3, crop, crop)`` out of a canvas."""
        top, left = ((side - self.crop) // 2 for side in canvas.shape[-2:])
        return canvas[..., top : top + self.crop, left : left + self.crop]

    def normalise(self, views: Tensor) -> Tensor:
        """Turn uint8 views ``(B, 3, H, W)``, or float ones between 0 and 1, into the pixels that the trunk expects."""
        values = views.float().div_(255.0) if views.dtype == torch.uint8 else views
        mean, std = (torch.tensor(stat, device=views.device).view(3, 1, 1) for stat in (self.mean, self.std))
        return (values - mean) / std

    def pixels(self, canvases: Sequence[Tensor]) -> Tensor:
        """Centre-crop and normalise canvases into pixels ``(B, 3, crop, crop)``."""
        return self.normalise(torch.stack([self.centre(canvas) for canvas in canvases]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Preprocessing:
        """Build from plain data; an unknown key is refused."""
        known = {item.name for item in fields(cls)}
        for name in data:
            if name not in known:
                raise ConfigError(f"preprocessing key {name!r} is not known.{nearest(name, known)}")
        return cls(**data)
