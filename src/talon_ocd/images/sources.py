"""Where images come from: a folder, a manifest, an archive, or paths on standard input (layer: images).

`labelled` lists training images, `stream` lists images to decide on; neither opens an image. What can't be
used is listed in ``skipped`` with its reason; a source without anything usable is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from talon_ocd.errors import DataError
from talon_ocd.images import folders, manifests, tars, vectors
from talon_ocd.images.decode import LIMITS, Limits
from talon_ocd.images.items import (
    ImageItem,
    ImageSource,
    Skipped,
    display,
    file_key,
    in_memory,
    memory_item,
)

__all__ = [
    "ImageItem",
    "ImageSource",
    "Skipped",
    "display",
    "file_item",
    "in_memory",
    "labelled",
    "memory_item",
    "stdin_items",
    "stream",
]

_KINDS = "a folder, a .csv or .jsonl manifest, a .tar, .tar.gz or .tgz archive, or .parquet embeddings"


def labelled(spec: str | Path, limits: Limits = LIMITS, column: str | None = None) -> ImageSource:
    """List training images with their labels.

    ``spec`` is a folder of class folders, a manifest with the columns path and label, an archive of class
    folders, or a Parquet file of embeddings with a column label; ``column`` names the one of its vectors. Raises
    `DataError` when fewer than 2 images can be used.
    """
    path = _existing(spec)
    name = path.name.lower()
    if path.is_dir():
        source = folders.scan_labelled(path)
    elif name.endswith(manifests.SUFFIXES):
        source = manifests.read_manifest(path, need_labels=True)
    elif name.endswith(tars.SUFFIXES):
        source = tars.scan_tar(path, labelled=True, limits=limits)
    elif name.endswith(vectors.SUFFIXES):
        source = vectors.read_vectors(path, column, need_labels=True)
    else:
        raise DataError(f"{display(path)} is not a source of labelled images; give {_KINDS}.")
    return _enough(source, 2, "labelled images")


def stream(spec: str | Path, limits: Limits = LIMITS, column: str | None = None) -> ImageSource:
    """List images to decide on: folders and archives sorted by path, manifests and embeddings in their own order.

    Labels are kept where the structure gives them: they are for measuring, not for deciding. One image file
    is a stream too. For ``-`` (paths on standard input) use `stdin_items`.
    """
    if str(spec) == "-":
        raise DataError("'-' means paths on standard input, which can't be listed; use stdin_items(sys.stdin).")
    path = _existing(spec)
    name = path.name.lower()
    if path.is_dir():
        source = folders.scan_stream(path)
    elif name.endswith(manifests.SUFFIXES):
        source = manifests.read_manifest(path, need_labels=False)
    elif name.endswith(tars.SUFFIXES):
        source = tars.scan_tar(path, labelled=False, limits=limits)
    elif name.endswith(vectors.SUFFIXES):
        source = vectors.read_vectors(path, column, need_labels=False)
    elif folders.is_image_name(name):
        source = ImageSource(display(path), [file_item(path)], [])
    else:
        raise DataError(f"{display(path)} is not a source of images; give an image, {_KINDS}.")
    return _enough(source, 1, "images")


def stdin_items(lines: Iterable[str]) -> Iterator[ImageItem]:
    """Yield an item a line, each before the next line is asked for; empty lines are passed over.

    Nothing is checked here: a path that leads nowhere gives its `ImageError` when it is loaded.
    """
    for line in lines:
        name = line.rstrip("\r\n")
        if name.strip():
            yield file_item(Path(name))


def file_item(path: str | Path, label: str | None = None) -> ImageItem:
    """Return the item of one file, which need not exist."""
    path = Path(path)
    try:
        key = file_key(path)
    except (OSError, ValueError):
        key = f"{display(os.path.abspath(path))}|missing"  # noqa: PTH100 - never fails, unlike resolve
    return ImageItem(display(path), label, key, path)


def _existing(spec: str | Path) -> Path:
    path = Path(spec)
    try:
        path = path.expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        here = display(Path.cwd())
        raise DataError(f"{display(path)} does not exist; check the path (looked from {here}).") from error
    except RuntimeError as error:
        raise DataError(f"{display(path)} does not exist; there is no such home folder, write the path out.") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DataError(f"{display(path)} can't be read ({reason}); change its permissions.") from error
    return path


def _enough(source: ImageSource, least: int, what: str) -> ImageSource:
    """Refuse a source with too few images; the first thing that was left out usually tells why."""
    if len(source.items) >= least:
        return source
    found = f"{source.name} has {len(source.items) or 'no'} {what}"
    if source.skipped:
        first = source.skipped[0]
        remedy = f"{len(source.skipped)} were left out, the first: {first.source} {first.reason}"
    elif source.ignored:
        remedy = f"its {source.ignored} files don't end in .jpg, .png, .webp ...; give the right folder."
    else:
        remedy = "give the folder, manifest or archive that holds the images."
    raise DataError(f"{found}, at least {least} {'is' if least == 1 else 'are'} needed; {remedy}")
