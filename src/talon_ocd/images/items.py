"""What a source is made of: images to load when they are needed, and what was left out (layer: images)."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from talon_ocd.errors import DataError
from talon_ocd.images.decode import LIMITS, Decodable, Limits, decode

Picture: TypeAlias = "Image.Image | NDArray[Any] | Tensor"

_NUMBER = re.compile(r"([0-9]{1,18})")


@runtime_checkable
class Readable(Protocol):
    """Something that gives its image when asked: an archive member, a drawing."""

    def read(self, source: str, limits: Limits) -> bytes | Image.Image:
        """Return encoded bytes or a picture; raises `ImageError`."""


@runtime_checkable
class Embedded(Readable, Protocol):
    """Something whose vector is known already: a row of a file that ``talon embed`` wrote."""

    def vector(self) -> Tensor | None:
        """Return the vector ``(D,)``, if there is one."""


@dataclass(frozen=True)
class ImageItem:
    """One image of a source, not loaded yet.

    Attributes:
        source: its name for people, the path as given; always valid UTF-8.
        label: its class, where the source tells.
        key: changes when the content does.
        payload: where the pixels come from.
    """

    source: str
    label: str | None
    key: str
    payload: Decodable | Readable = field(repr=False, compare=False)

    def load(self, limits: Limits = LIMITS, shorter_side: int | None = None) -> Image.Image:
        """Return the picture, RGB and upright; raises `ImageError`. See `decode` for ``shorter_side``."""
        payload = self.payload
        data = payload.read(self.source, limits) if isinstance(payload, Readable) else payload
        return decode(data, self.source, limits, shorter_side)


@dataclass(frozen=True)
class Skipped:
    """Something that a source or a stream left out, and why."""

    source: str
    reason: str


@dataclass(frozen=True)
class ImageSource:
    """The images of a folder, manifest or archive, in their order, and what was left out of it."""

    name: str
    items: list[ImageItem]
    skipped: list[Skipped]
    ignored: int = 0
    """Files that are no images by their name; hidden ones are not counted."""


def display(path: str | os.PathLike[str]) -> str:
    r"""Return a path as text that any UTF-8 file can take; bytes that are no text become ``\xNN``.

    >>> display("caf\udce9.jpg")
    'caf\\xe9.jpg'
    """
    text = os.fspath(path)
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a lone surrogate that no file name can hold
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def natural(path: str) -> tuple[tuple[tuple[int, int, str], ...], ...]:
    """Return a key that sorts paths folder by folder, with numbers by their value.

    >>> sorted(["b/1", "a10", "a9"], key=natural)
    ['a9', 'a10', 'b/1']
    """
    parts = path.replace(os.sep, "/").split("/")
    return tuple(tuple(_run(run) for run in _NUMBER.split(part) if run) for part in parts)


def _run(run: str) -> tuple[int, int, str]:
    return (0, int(run), run) if _NUMBER.fullmatch(run) else (1, 0, run)


def file_key(path: Path) -> str:
    """Return the key of a file: resolved path, size and time of change; raises `OSError`."""
    resolved = os.path.realpath(path)
    facts = os.stat(resolved)  # noqa: PTH116 - the resolved text is what the key needs
    return key_of(resolved, facts)


def key_of(resolved: str, facts: os.stat_result) -> str:
    """Return the key of a file whose facts are known."""
    return f"{display(resolved)}|{facts.st_size}|{facts.st_mtime_ns}"


def memory_item(picture: Picture | bytes, source: str, label: str | None = None) -> ImageItem:
    """Wrap a picture in memory; its key is a hash of its content."""
    return ImageItem(source, label, _content_key(picture), picture)


def in_memory(pictures: Sequence[Picture | bytes], labels: Sequence[object] | None = None) -> ImageSource:
    """Wrap pictures in memory, called ``image/000000`` and so on; labels become text."""
    if labels is not None and len(labels) != len(pictures):
        raise DataError(f"{len(pictures)} pictures came with {len(labels)} labels; give one label a picture.")
    names = [None] * len(pictures) if labels is None else [str(label) for label in labels]
    items = [memory_item(picture, f"image/{at:06d}", names[at]) for at, picture in enumerate(pictures)]
    return ImageSource("pictures in memory", items, [])


def _content_key(picture: Picture | bytes) -> str:
    digest = hashlib.sha256()
    if isinstance(picture, bytes):
        digest.update(picture)
    elif isinstance(picture, Image.Image):
        try:
            digest.update(f"{picture.mode}{picture.size}{picture.getpalette()}".encode())
            digest.update(picture.tobytes())
        except Exception:  # a damaged file, opened but not decoded yet: its refusal comes when it is loaded
            return "damaged"
    else:
        array = picture.detach().cpu().numpy() if isinstance(picture, Tensor) else picture
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return f"sha256:{digest.hexdigest()}"
