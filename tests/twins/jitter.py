"""Colour changes one pixel at a time, with the standard library's HSV: slow and obvious."""

from __future__ import annotations

import colorsys
from collections.abc import Callable

Pixel = tuple[float, float, float]
Picture = list[list[Pixel]]


def clip(value: float) -> float:
    return min(1.0, max(0.0, value))


def grey(pixel: Pixel) -> float:
    red, green, blue = pixel
    return 0.299 * red + 0.587 * green + 0.114 * blue


def each(picture: Picture, change: Callable[[Pixel], Pixel]) -> Picture:
    return [[change(pixel) for pixel in row] for row in picture]


def blend(pixel: Pixel, other: float, factor: float) -> Pixel:
    red, green, blue = (clip(factor * value + (1 - factor) * other) for value in pixel)
    return red, green, blue


def brightness(picture: Picture, factor: float) -> Picture:
    return each(picture, lambda pixel: blend(pixel, 0.0, factor))


def contrast(picture: Picture, factor: float) -> Picture:
    greys = [grey(pixel) for row in picture for pixel in row]
    mean = sum(greys) / len(greys)
    return each(picture, lambda pixel: blend(pixel, mean, factor))


def saturation(picture: Picture, factor: float) -> Picture:
    return each(picture, lambda pixel: blend(pixel, grey(pixel), factor))


def hue(picture: Picture, shift: float) -> Picture:
    def turn(pixel: Pixel) -> Pixel:
        angle, colour, value = colorsys.rgb_to_hsv(*pixel)
        return colorsys.hsv_to_rgb((angle + shift) % 1.0, colour, value)

    return each(picture, turn)
