"""One picture from bytes, a file, a Pillow image, an array or a tensor (layer: images).

It comes out RGB and upright. Whatever a damaged, hostile or odd file can do ends here, in an `ImageError`
that says what to do about it.
"""

from __future__ import annotations

import io
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from talon_ocd.errors import ImageError

Decodable: TypeAlias = "bytes | Path | Image.Image | NDArray[Any] | Tensor"

_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_OUTSIDE = ("EPS", "WMF")
"""Formats that Pillow hands to other programs; never for files from strangers."""
_HEIC_BRANDS = (b"heic", b"heix", b"hevc", b"mif1", b"msf1")
_ARRAY_SHAPES = "a uint8 array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)"
_TENSOR_SHAPES = "a tensor (3, H, W), uint8 or float between 0 and 1"


@dataclass(frozen=True)
class Limits:
    """The largest image that is worth decoding; above it, one file could take the whole memory."""

    max_pixels: int = 64_000_000
    """Width times height in the header. Pillow itself refuses more than about 179 million."""
    max_bytes: int = 200_000_000
    """Size of the file."""


LIMITS = Limits()


def decode(data: Decodable, source: str, limits: Limits = LIMITS, shorter_side: int | None = None) -> Image.Image:
    """Return the picture in ``data``, RGB and upright; of an animation the first frame.

    Args:
        data: encoded bytes, a file, a Pillow image, a uint8 array or a ``(3, H, W)`` tensor.
        source: what to call the image in a refusal.
        limits: the largest image to decode.
        shorter_side: what the picture will be resized to; a large JPEG is then decoded at a fraction of its
            size, with a shorter side of at least twice this, so that the resize still has the last word.
    """
    if isinstance(data, Tensor):
        return _from_tensor(data, source, limits)
    if isinstance(data, np.ndarray):
        return _from_array(data, source, limits)
    try:
        with _quiet():
            if isinstance(data, Image.Image):
                return _upright(data, source, limits)
            with _opened(data, source, limits) as file, _parsed(file, source) as picture:
                _check_size(picture.size, source, limits)
                if shorter_side is not None:
                    picture.draft("RGB", (2 * shorter_side, 2 * shorter_side))
                return _upright(picture, source, limits)
    except ImageError:
        raise
    except MemoryError as error:
        raise ImageError(source, "needs more memory than there is; make the image smaller.") from error
    except Exception as error:  # a decoder fed with damaged bytes may raise anything
        reason = f"is truncated or damaged ({_say(error)}); copy or export it again."
        raise ImageError(source, reason) from error


@contextmanager
def _opened(data: bytes | Path, source: str, limits: Limits) -> Iterator[BinaryIO]:
    """Open encoded bytes for reading, after checks that cost nothing."""
    if isinstance(data, bytes):
        check_bytes(len(data), source, limits)
        yield io.BytesIO(data)
        return
    try:
        facts = data.stat()
        if stat.S_ISDIR(facts.st_mode):
            raise ImageError(source, "is a folder, not an image; give the files in it.")
        if not stat.S_ISREG(facts.st_mode):
            raise ImageError(source, "is not a regular file; copy the image into one.")
        check_bytes(facts.st_size, source, limits)
        file = data.open("rb")
    except ImageError:
        raise
    except FileNotFoundError as error:
        raise ImageError(source, "does not exist; check the path.") from error
    except PermissionError as error:
        raise ImageError(source, "can't be read (no permission); change its permissions.") from error
    except (OSError, ValueError) as error:
        raise ImageError(source, f"can't be opened ({_say(error)}); check the path.") from error
    with file:
        yield file


def _parsed(file: BinaryIO, source: str) -> Image.Image:
    """Read the header only."""
    Image.init()
    formats = [name for name in Image.ID if name not in _OUTSIDE]
    try:
        return Image.open(file, formats=formats)
    except UnidentifiedImageError as error:
        file.seek(0)
        start = file.read(12)
        if start[4:8] == b"ftyp" and start[8:12] in _HEIC_BRANDS:
            reason = "is a HEIC photo, which Pillow can't read; export it as JPEG."
        else:
            reason = "is not an image, or its beginning is damaged; export it as JPEG or PNG."
        raise ImageError(source, reason) from error
    except Image.DecompressionBombError as error:
        reason = "has more pixels than Pillow accepts (a decompression bomb?); make the image smaller."
        raise ImageError(source, reason) from error


def check_bytes(size: int, source: str, limits: Limits) -> None:
    """Refuse a file by its size alone."""
    if size == 0:
        raise ImageError(source, "is empty (0 bytes); copy it again.")
    if size > limits.max_bytes:
        found = f"has {size:,} bytes, more than max_bytes={limits.max_bytes:,}"
        raise ImageError(source, f"{found}; make it smaller or raise the limit.")


def _check_size(size: tuple[int, int], source: str, limits: Limits) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise ImageError(source, f"has no pixels ({width} x {height}); export it again.")
    if width * height > limits.max_pixels:
        raise ImageError(
            source,
            f"has {width} x {height} pixels, more than max_pixels={limits.max_pixels:,} "
            "(a decompression bomb?); make it smaller or raise the limit.",
        )


def _upright(picture: Image.Image, source: str, limits: Limits) -> Image.Image:
    """Decode the pixels, turn them as the EXIF data say and convert them to RGB."""
    _check_size(picture.size, source, limits)
    picture.load()
    turn = _TURNS.get(_orientation(picture))
    colours = _rgb(picture, source)
    return colours if turn is None else colours.transpose(turn)


def _orientation(picture: Image.Image) -> int:
    try:
        return int(picture.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged EXIF data must not cost a good picture
        return 1


def _rgb(picture: Image.Image, source: str) -> Image.Image:
    """Convert any mode to RGB; alpha is dropped, greys of more than 8 bits are scaled. Always a new image."""
    mode = picture.mode
    if mode.startswith("I") or mode == "F":
        return Image.fromarray(_grey8(np.asarray(picture), source)).convert("RGB")
    if mode == "RGB":
        return picture.copy()
    try:
        if mode == "P" or mode == "RGBa":
            picture = picture.convert("RGBA")
        elif mode == "La":
            picture = picture.convert("LA")
        return picture.convert("RGB")
    except ValueError as error:
        raise ImageError(source, f"has the unsupported colour mode {mode}; export it as RGB.") from error


def _grey8(values: NDArray[Any], source: str) -> NDArray[np.uint8]:
    """Scale greys to 8 bits: integers as 16 bits, floats from 0..1, 0..255 or 0..65535, else by range."""
    whole = values.dtype.kind in "iu"
    grey = values.astype(np.float32)
    finite = np.isfinite(grey)
    if not finite.any():
        raise ImageError(source, "has no finite grey value; export it again.")
    low, high = float(grey[finite].min()), float(grey[finite].max())
    grey = np.clip(np.where(finite, grey, low), low, high)
    tops = (65535.0,) if whole else (1.0, 255.0, 65535.0)
    top = next((top for top in tops if low >= 0 and high <= top), None)
    if top is None:
        grey, top = grey - low, (high - low) or 1.0
    scaled: NDArray[np.uint8] = np.rint(grey * np.float32(255.0 / top)).astype(np.uint8)
    return scaled


def _from_array(array: NDArray[Any], source: str, limits: Limits) -> Image.Image:
    shape = array.shape
    fits = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4))
    if array.dtype != np.uint8 or not fits:
        found = f"is an array of shape {shape} and type {array.dtype}"
        raise ImageError(source, f"{found}; give {_ARRAY_SHAPES}.")
    _check_size((shape[1], shape[0]), source, limits)
    if len(shape) == 3 and shape[2] == 1:
        array = array[:, :, 0]
    return Image.fromarray(np.ascontiguousarray(array[..., :3] if array.ndim == 3 else array)).convert("RGB")


def _from_tensor(tensor: Tensor, source: str, limits: Limits) -> Image.Image:
    shape = tuple(tensor.shape)
    if len(shape) != 3 or shape[0] != 3 or not (tensor.dtype == torch.uint8 or tensor.is_floating_point()):
        found = f"is a tensor of shape {shape} and type {tensor.dtype}"
        raise ImageError(source, f"{found}; give {_TENSOR_SHAPES}.")
    _check_size((shape[2], shape[1]), source, limits)
    values = tensor.detach().cpu()
    if values.dtype != torch.uint8:
        low, high = float(values.min()), float(values.max())
        if not (low >= 0 and high <= 1):  # NaN fails too
            raise ImageError(source, f"has values from {low:g} to {high:g}; give {_TENSOR_SHAPES}.")
        values = values.float().mul(255).round().to(torch.uint8)
    return Image.fromarray(np.ascontiguousarray(values.permute(1, 2, 0).numpy()))


def _say(error: BaseException) -> str:
    """Return an error in a few words, without the paths that Python adds."""
    words = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return words.strip().rstrip(".") or type(error).__name__


_lock = threading.Lock()
_inside = 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Pillow's warnings from the user: what they tell is either refused here or harmless.

    ``warnings.catch_warnings`` would swap the filters of every thread back and forth; one entry that is about
    Pillow only comes and goes without harm to others.
    """
    global _inside
    with _lock:
        _inside += 1
        warnings.filterwarnings("ignore", module=r"PIL\.")
        entry = warnings.filters[0]
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and isinstance(warnings.filters, list) and entry in warnings.filters:
                warnings.filters.remove(entry)
