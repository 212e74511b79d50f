"""Small pictures of each category, kept in bounded memory while a stream runs (they end up in the report)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO

from PIL import Image, ImageOps

from talon_ocd.errors import ConfigError

THUMBNAIL_SIDE = 96
"""Pixels; a card shows them at about this size."""


def thumbnail(picture: Image.Image, side: int = THUMBNAIL_SIDE) -> bytes:
    """Return a square JPEG cut from the middle of ``picture``; smaller pictures are not enlarged.

    >>> thumbnail(Image.new("RGB", (640, 480)))[:2].hex()
    'ffd8'
    """
    if side < 1:
        raise ConfigError(f"side={side!r}: a thumbnail needs at least 1 pixel; try {THUMBNAIL_SIDE}.")
    side = min(side, *picture.size)
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        layers = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers)
    small = ImageOps.fit(picture.convert("RGB"), (side, side))
    buffer = BytesIO()
    small.save(buffer, format="JPEG", quality=82, optimize=True)
    return buffer.getvalue()


class Exemplars:
    """The first few pictures of every category, founder first.

    At most ``per_category`` thumbnails of ``categories`` categories are held. When a new category finds no
    room, the oldest one that was seen only once gives way: a flood of singletons can't push out what recurs.
    """

    def __init__(self, per_category: int = 6, categories: int = 2000, side: int = THUMBNAIL_SIDE) -> None:
        for name, value in (("per_category", per_category), ("categories", categories)):
            if value < 1:
                raise ConfigError(f"{name}={value!r}: {name} must be 1 or more.")
        self.per_category = per_category
        self.categories = categories
        self.side = side
        self._held: dict[int, list[bytes]] = {}
        self._once: dict[int, None] = {}

    def add(self, category: int, picture: Image.Image) -> None:
        """Keep a thumbnail of ``picture`` when there is room for it."""
        held = self._held.get(category)
        if held is None:
            if len(self._held) >= self.categories and not self._make_room():
                return
            self._held[category] = [thumbnail(picture, self.side)]
            self._once[category] = None
            return
        self._once.pop(category, None)
        if len(held) < self.per_category:
            held.append(thumbnail(picture, self.side))

    @property
    def thumbnails(self) -> Mapping[int, Sequence[bytes]]:
        """JPEG bytes by category, in the order of arrival."""
        return self._held

    def _make_room(self) -> bool:
        oldest = next(iter(self._once), None)
        if oldest is None:
            return False
        del self._once[oldest], self._held[oldest]
        return True
