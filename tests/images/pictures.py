"""Real picture files for the tests of this room."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def photo(width: int = 40, height: int = 30, seed: int = 0) -> Image.Image:
    """A smooth colour picture, the kind that survives JPEG."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def put(path: Path, seed: int = 0) -> Path:
    """Write a small picture, making its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(photo(8, 8, seed)))
    return path
