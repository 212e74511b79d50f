from __future__ import annotations

import os
import struct
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from talon_ocd.errors import ImageError
from talon_ocd.images import Limits, decode
from tests.images.pictures import encoded, photo

Pixels: TypeAlias = "NDArray[Any]"


def pixels(picture: Image.Image) -> Pixels:
    assert picture.mode == "RGB"
    return np.asarray(picture).astype(int)


def refusal(data: object, limits: Limits | None = None) -> str:
    with pytest.raises(ImageError) as caught:
        decode(data, "name", limits or Limits())  # type: ignore[arg-type]
    assert caught.value.source == "name"
    assert caught.value.reason.endswith(".")
    return caught.value.reason


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims to be large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF", "WEBP", "JPEG", "PPM"])
def test_formats(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "picture"
    path.write_bytes(encoded(photo(), kind))
    picture = decode(path, "name")
    assert picture.size == (40, 30)
    assert np.abs(pixels(picture) - pixels(photo())).mean() < 8


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "YCbCr", "PA", "La", "RGBa", "HSV"])
def test_modes(mode: str) -> None:
    middle = mode if mode not in ("La", "PA", "RGBa") else {"La": "LA", "PA": "P", "RGBa": "RGBA"}[mode]
    picture = photo().convert(middle)
    picture = picture if middle == mode else picture.convert(mode)
    assert pixels(decode(picture, "name")).shape == (30, 40, 3)


def test_cmyk_jpeg_keeps_its_colours() -> None:
    data = encoded(Image.new("RGB", (16, 16), (200, 40, 90)).convert("CMYK"), "JPEG", quality=95)
    assert np.abs(pixels(decode(data, "name")).mean((0, 1)) - (200, 40, 90)).max() < 6


def test_palette_with_transparency_keeps_the_palette_colour() -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putpixel((1, 0), 1)
    data = encoded(palette, "PNG", transparency=b"\x00\x80")
    assert pixels(decode(data, "name")).tolist() == [[[10, 20, 30], [200, 100, 50]]]
    data = encoded(palette, "GIF", transparency=0)
    assert pixels(decode(data, "name")).tolist() == [[[10, 20, 30], [200, 100, 50]]]


def test_alpha_is_dropped_not_blended() -> None:
    data = encoded(Image.new("RGBA", (2, 2), (10, 200, 30, 0)))
    assert (pixels(decode(data, "name")) == (10, 200, 30)).all()


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (np.array([[0, 257, 65535]], np.uint16), [0, 1, 255]),
        (np.array([[0, 257, 65535]], np.int32), [0, 1, 255]),
        (np.array([[-55, 45, 200]], np.int32), [0, 100, 255]),
        (np.array([[0, 0.2, 1]], np.float32), [0, 51, 255]),
        (np.array([[0, 51, 255]], np.float32), [0, 51, 255]),
        (np.array([[0, 257, 65535]], np.float32), [0, 1, 255]),
        (np.array([[-1, 0, 1]], np.float32), [0, 128, 255]),
        (np.array([[np.nan, 0.5, np.inf]], np.float32), [128, 128, 128]),
    ],
)
def test_deep_greys_become_8_bits(values: Pixels, wanted: list[int]) -> None:
    assert pixels(decode(encoded(Image.fromarray(values), "TIFF"), "name"))[0, :, 1].tolist() == wanted


def test_16_bit_png() -> None:
    data = encoded(Image.fromarray(np.array([[0, 32896, 65535]], np.uint16)))
    assert pixels(decode(data, "name"))[0, :, 0].tolist() == [0, 128, 255]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_an_animation_the_first_frame(kind: str) -> None:
    first, second = Image.new("RGB", (8, 8), (255, 0, 0)), Image.new("RGB", (8, 8), (0, 0, 255))
    data = encoded(first, kind, save_all=True, append_images=[second])
    assert np.abs(pixels(decode(data, "name")) - (255, 0, 0)).max() < 6


TURNS: dict[int, Callable[[Pixels], Pixels]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a, 1),
    99: lambda a: a,
}


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", TURNS)
def test_exif_orientation_is_applied(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(photo(12, 8), kind, exif=exif, **options)
    assert (pixels(decode(data, "name")) == TURNS[orientation](pixels(photo(12, 8)))).all()


def test_damaged_exif_is_no_reason_to_refuse() -> None:
    data = encoded(photo(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff garbage")
    assert decode(data, "name").size == (40, 30)


def test_one_pixel() -> None:
    data = encoded(Image.new("RGB", (1, 1), (1, 2, 3)))
    assert pixels(decode(data, "name", shorter_side=256)).tolist() == [[[1, 2, 3]]]


@pytest.mark.parametrize("size", [(1200, 900), (640, 2000), (300, 280), (100, 90)])
def test_draft_is_large_enough_and_nearly_equal(size: tuple[int, int]) -> None:
    data = encoded(photo(*size), "JPEG", quality=92)
    full, draft = decode(data, "name"), decode(data, "name", shorter_side=128)
    assert full.size == size
    assert min(draft.size) >= min(256, min(size))
    assert min(size) < 512 or min(draft.size) < min(size)
    small = [pixels(picture.resize((128, 128), Image.Resampling.BICUBIC)) for picture in (full, draft)]
    assert np.abs(small[0] - small[1]).mean() < 1


def test_draft_with_exif_rotation() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = decode(encoded(photo(800, 400), "JPEG", exif=exif), "name", shorter_side=100)
    assert picture.size == (200, 400)


def test_refuses_missing_folder_and_special_files(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "missing.jpg")
    assert "is a folder" in refusal(tmp_path)
    assert "check the path" in refusal(tmp_path / "nul\0.jpg")
    assert "check the path" in refusal(tmp_path / ("x" * 300))
    os.mkfifo(tmp_path / "pipe.jpg")
    assert "not a regular file" in refusal(tmp_path / "pipe.jpg")


def test_refuses_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.png"
    path.write_bytes(encoded(photo()))

    def denied(*args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)  # root may read everything, so chmod would prove nothing
    assert "no permission" in refusal(path)


def test_refuses_what_is_no_image() -> None:
    assert "0 bytes" in refusal(b"")
    assert "is not an image" in refusal(b"hello, I am a text")
    assert "is truncated" in refusal(encoded(photo(), "JPEG")[:10])
    assert "is not an image" in refusal(encoded(photo(), "EPS"))  # would start Ghostscript
    assert "HEIC" in refusal(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "TIFF", "WEBP"])
def test_refuses_truncated_files(kind: str) -> None:
    data = encoded(photo(200, 200), kind)
    reason = refusal(data[: len(data) // 2])
    assert "truncated" in reason or "beginning is damaged" in reason


def test_refuses_by_the_header_alone() -> None:
    assert "9000 x 9000" in refusal(png_header(9000, 9000))
    assert "9500 x 9500" in refusal(png_header(9500, 9500))  # Pillow warns above 89 million
    assert "bomb" in refusal(png_header(60000, 60000))  # and raises above 179 million
    assert "max_pixels=100" in refusal(encoded(photo()), Limits(max_pixels=100))
    assert "max_bytes=10" in refusal(encoded(photo()), Limits(max_bytes=10))
    assert "max_pixels=100" in refusal(photo(), Limits(max_pixels=100))
    assert "max_pixels=100" in refusal(np.zeros((30, 40), np.uint8), Limits(max_pixels=100))


def test_refuses_an_unsupported_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(picture: Image.Image, mode: str) -> None:
        raise ValueError(f"conversion from {picture.mode} to {mode} not supported")

    monkeypatch.setattr(Image.Image, "convert", convert)
    assert "colour mode LAB" in refusal(Image.new("LAB", (4, 4)))


def test_warnings_neither_escape_nor_stay_silenced(recwarn: pytest.WarningsRecorder) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        refusal(png_header(9500, 9500))
        with ThreadPoolExecutor(4) as pool:
            reasons = list(pool.map(refusal, [png_header(9500, 9500)] * 40))
        assert warnings.filters == before
    assert not caught and len(reasons) == 40


def test_arrays_and_tensors() -> None:
    array = np.asarray(photo())
    for data in (array, np.dstack([array, array[..., 0]]), torch.from_numpy(array.copy()).permute(2, 0, 1)):
        assert (pixels(decode(data, "name")) == array).all()
    assert (pixels(decode(torch.from_numpy(array.copy()).permute(2, 0, 1) / 255, "name")) == array).all()
    for grey in (array[..., 0], array[..., :1]):
        assert (pixels(decode(grey, "name"))[..., 2] == array[..., 0]).all()


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (np.zeros((4, 4), np.float32), "shape (4, 4) and type float32"),
        (np.zeros((3, 4, 5), np.uint8), "shape (3, 4, 5) and type uint8"),
        (np.zeros((0, 4, 3), np.uint8), "4 x 0"),
        (torch.zeros(4, 4, 3), "shape (4, 4, 3) and type torch.float32"),
        (torch.zeros(3, 4, 4, dtype=torch.int64), "type torch.int64"),
        (torch.full((3, 4, 4), 2.0), "values from 2 to 2"),
        (torch.full((3, 4, 4), torch.nan), "values from nan"),
    ],
)
def test_refuses_other_arrays_and_tensors(data: object, found: str) -> None:
    assert found in refusal(data)


def test_a_picture_in_memory_is_not_changed() -> None:
    picture = photo()
    decode(picture, "name").putpixel((0, 0), (0, 0, 0))
    assert picture.tobytes() == photo().tobytes()


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"]), st.data())
def test_damaged_bytes_give_a_picture_or_a_refusal(kind: str, data: st.DataObject) -> None:
    damaged = bytearray(encoded(photo(16, 12), kind))
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert decode(bytes(damaged), "name", Limits(max_pixels=1_000_000)).mode == "RGB"
    except ImageError as error:
        assert error.reason.endswith(".")
