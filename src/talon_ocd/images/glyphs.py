"""Characters from the fonts that matplotlib ships: thousands of classes without a download (layer: images).

A class is a character. Characters that look alike once they are cropped and scaled (O and o, A and Alpha) are
one class; blanks, marks and private characters are none. Pictures are drawn when they are loaded.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from fontTools.ttLib import TTFont  # type: ignore[import-untyped]
from numpy.random import Generator, default_rng
from numpy.typing import NDArray
from PIL import Image, ImageFilter, ImageFont

from talon_ocd.errors import DataError
from talon_ocd.images.augment import view_seed
from talon_ocd.images.decode import Limits
from talon_ocd.images.items import ImageItem

_FAMILIES = (
    "DejaVuSans.ttf",
    "DejaVuSans-*.ttf",
    "DejaVuSansMono*.ttf",
    "DejaVuSerif*.ttf",
    "STIXGeneral*.ttf",
)
_POINTS = 64
"""Size at which characters are drawn before they are scaled."""
_SKETCH = 16
_ALIKE = 0.93
"""Cosine of two sketches above which two characters count as one class."""
_LETTERS = ("Lu", "Ll", "Lo", "Lt", "Nd", "Nl", "No")
_SYMBOLS = ("Sm", "Sc", "So", "Po", "Pd", "Ps", "Pe", "Pi", "Pf", "Pc")


@dataclass(frozen=True)
class Glyph:
    """One picture that is drawn on demand: a pure function of its fields."""

    character: str
    index: int
    seed: int
    size: int

    def read(self, source: str, limits: Limits) -> Image.Image:
        """Draw the character in a random font, size, place, angle, outline, sharpness, contrast and noise."""
        rng = default_rng(view_seed(self.seed, self.character, self.index))
        fonts = [path for path, cmap in _fonts().items() if ord(self.character) in cmap]
        ink = _ink(fonts[rng.integers(len(fonts))], self.character, int(rng.random() < 0.25))
        if ink is None:  # this font has an empty glyph; the first one, which made the class, has not
            ink = _ink(fonts[0], self.character, 0)
        assert ink is not None
        return Image.fromarray(_shade(_placed(ink, self.size, rng), rng))


def glyphs(classes: int, per_class: int, seed: int = 0, size: int = 48) -> list[ImageItem]:
    """Return ``classes * per_class`` drawn characters of ``size`` pixels, class by class.

    Labels are code points (``"U+0041"``). Which characters are taken does not depend on the seed: digits and
    letters come first, in their order in Unicode, symbols last.
    """
    if min(classes, per_class) < 1 or size < 8:
        wanted = "classes and per_class must be 1 or more, size 8 or more"
        raise DataError(f"classes={classes}, per_class={per_class}, size={size} can't be drawn; {wanted}.")
    characters = list(_first(classes))
    if len(characters) < classes:
        raise DataError(f"classes={classes} is more than the fonts have; ask for at most {len(characters)}.")
    return [_item(Glyph(character, index, seed, size)) for character in characters for index in range(per_class)]


def _item(glyph: Glyph) -> ImageItem:
    label = f"U+{ord(glyph.character):04X}"
    key = f"glyph/{glyph.seed}/{glyph.size}/{label}/{glyph.index}"
    return ImageItem(f"glyphs/{label}/{glyph.index:04d}", label, key, glyph)


@lru_cache(maxsize=1)
def _fonts() -> dict[Path, frozenset[int]]:
    """Return the fonts and the code points that each really has, plain sans-serif first."""
    import matplotlib  # here: only these pictures need it, and every command would wait for it

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    paths = dict.fromkeys(path for family in _FAMILIES for path in sorted(folder.glob(family)))
    fonts = {}
    for path in paths:
        if not path.stem.endswith("Display"):
            with TTFont(path, lazy=True) as font:
                fonts[path] = frozenset(font.getBestCmap() or ())
    return fonts


@lru_cache(maxsize=32)
def _face(path: Path) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(path), _POINTS, layout_engine=ImageFont.Layout.BASIC)


def _ink(path: Path, character: str, stroke: int) -> Image.Image | None:
    """Draw a character as large as the font has it, cut to its ink; white on black, ``None`` when blank."""
    mask = _face(path).getmask(character, mode="L", stroke_width=stroke)
    width, height = mask.size
    if not width or not height:
        return None
    picture = Image.frombytes("L", (width, height), bytes(mask))
    box = picture.getbbox()
    return None if box is None else picture.crop(box)


def _placed(ink: Image.Image, size: int, rng: Generator) -> NDArray[np.float32]:
    """Scale, turn, shift and blur the ink on a square; values between 0 and 1."""
    reach = size * rng.uniform(0.55, 0.8) / max(ink.size)
    width, height = (max(1, round(side * reach)) for side in ink.size)
    ink = ink.resize((width, height), Image.Resampling.BILINEAR)
    square = Image.new("L", (size, size))
    square.paste(ink, ((size - width) // 2, (size - height) // 2))
    shift = tuple(rng.uniform(-0.08, 0.08, 2) * size)
    square = square.rotate(rng.uniform(-12, 12), Image.Resampling.BILINEAR, translate=(shift[0], shift[1]))
    if rng.random() < 0.5:
        square = square.filter(ImageFilter.GaussianBlur(rng.uniform(0.2, 0.02 * size)))
    return np.asarray(square, dtype=np.float32) * np.float32(1 / 255)


def _shade(shape: NDArray[np.float32], rng: Generator) -> NDArray[np.uint8]:
    """Give ink and paper their greys, dark on bright or the reverse, and add noise."""
    paper, ink = rng.uniform(0.65, 1.0), rng.uniform(0.0, 0.35)
    if rng.random() < 0.3:
        paper, ink = ink, paper
    noise = rng.standard_normal(shape.shape, dtype=np.float32) * rng.uniform(0, 0.06)
    grey: NDArray[np.uint8] = np.rint(np.clip(paper + (ink - paper) * shape + noise, 0, 1) * 255).astype(np.uint8)
    return grey


def _first(count: int) -> Iterator[str]:
    """Yield up to ``count`` characters that look different from all before them."""
    fonts = _fonts()
    codes = sorted(set().union(*fonts.values()))
    letters = [code for code in codes if unicodedata.category(chr(code)) in _LETTERS]
    symbols = [code for code in codes if unicodedata.category(chr(code)) in _SYMBOLS]
    taken: NDArray[np.float32] = np.empty((len(codes), _SKETCH * _SKETCH), dtype=np.float32)
    known = 0
    for code in letters + symbols:
        if known == count:
            return
        path = next(path for path, cmap in fonts.items() if code in cmap)
        sketch = _sketch(path, chr(code))
        if sketch is not None and (not known or float((taken[:known] @ sketch).max()) < _ALIKE):
            taken[known] = sketch
            known += 1
            yield chr(code)


def _sketch(path: Path, character: str) -> NDArray[np.float32] | None:
    """Return what is left of a character without its size and place, as a unit vector."""
    ink = _ink(path, character, 0)
    if ink is None:
        return None
    reach = _SKETCH / max(ink.size)
    width, height = (max(1, round(side * reach)) for side in ink.size)
    square = Image.new("L", (_SKETCH, _SKETCH))
    place = ((_SKETCH - width) // 2, (_SKETCH - height) // 2)
    square.paste(ink.resize((width, height), Image.Resampling.BOX), place)
    vector = np.asarray(square, dtype=np.float32).ravel()
    length = float(np.linalg.norm(vector))
    return vector / np.float32(length) if length else None
