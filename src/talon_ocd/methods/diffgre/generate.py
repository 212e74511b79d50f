"""Pictures of classes that do not exist (layer: methods; section 3.10, step 1): two parents, one picture, a folder.

A ``Generator`` composes one picture of two labelled ones of different classes. ``diffusion`` has DiffGRE's;
``BlendGenerator`` is a stand-in. ``generate_folder`` writes pictures that any later training can take as virtual.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from PIL import Image, ImageOps

from talon_ocd.errors import DataError, ImageError
from talon_ocd.images import ImageItem
from talon_ocd.methods.diffgre.virtual import unlike_pairs
from talon_ocd.offline import generator
from talon_ocd.progress import SILENT, Progress
from talon_ocd.saved import make_folder, write_files

MANIFEST = "manifest.jsonl"


class Generator(Protocol):
    """Composes pictures; the same parents and seed give the same picture."""

    def compose(self, first: Parent, second: Parent, seed: int) -> Image.Image:
        """Return a picture between two pictures of different known classes."""

    def settings(self) -> dict[str, Any]:
        """Return what the manifest should say of it, as plain data."""


class Parent(NamedTuple):
    """A labelled picture, loaded: RGB and upright."""

    picture: Image.Image
    label: str


class BlendGenerator:
    """Blends pixels: a stand-in for people without a diffusion model. It draws nothing that is not in its parents."""

    def __init__(self, share: float = 0.5, size: int = 256) -> None:
        self.share, self.size = share, size

    def compose(self, first: Parent, second: Parent, seed: int) -> Image.Image:
        """Return ``(1 - share)`` of the first and ``share`` of the second picture."""
        fitted = [ImageOps.fit(parent.picture, (self.size, self.size)) for parent in (first, second)]
        return Image.blend(fitted[0], fitted[1], self.share)

    def settings(self) -> dict[str, Any]:
        """Return kind, share and size."""
        return {"generator": "mix", "share": self.share, "size": self.size}


class Written(NamedTuple):
    """How many pictures of a folder are ready, and why others could not be made."""

    ready: int
    skipped: list[str]


def generate_folder(
    items: Sequence[ImageItem],
    made_by: Generator,
    number: int,
    folder: Path,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Written:
    """Write ``number`` pictures composed of labelled ``items``, and a manifest that names their parents.

    A folder that was begun with the same images, settings and seed is finished. Parents that can't be read are passed
    over, with their picture.
    """
    pairs = _pairs(items, number, seed)
    settings = {"seed": seed, **made_by.settings()}
    make_folder(folder)
    before = _rows_before(folder / MANIFEST, settings)
    rows: list[str] = []
    skipped: list[str] = []
    try:
        with progress.task("Generating", number) as task:
            for at, (first, second) in enumerate(pairs):
                parents = {"parents": [first.source, second.source], "classes": [first.label, second.label]}
                row = json.dumps({"path": f"{at:06d}.png", **parents, **settings}, ensure_ascii=False)
                try:
                    if row not in before or not (folder / f"{at:06d}.png").is_file():
                        picture = made_by.compose(_load(first), _load(second), _seed(seed, at))
                        _save(folder, f"{at:06d}.png", picture)
                    rows.append(row)
                except ImageError as error:
                    skipped.append(str(error))
                task.advance()
    finally:  # also when somebody stops it: the next run goes on here
        write_files(folder, {MANIFEST: "".join(f"{row}\n" for row in rows).encode()})
    return Written(len(rows), skipped)


def _pairs(items: Sequence[ImageItem], number: int, seed: int) -> list[tuple[ImageItem, ImageItem]]:
    names = sorted({str(item.label) for item in items})
    if len(names) < 2:
        raise DataError(f"{len(names)} known classes: a picture needs parents of two classes; give images of two.")
    if number < 1:
        raise DataError(f"{number} pictures to generate; ask for 1 or more.")
    position = {name: at for at, name in enumerate(names)}
    labels = torch.tensor([position[str(item.label)] for item in items])
    first, second = unlike_pairs(labels, number, generator(seed, "parents", 0))
    return [(items[a], items[b]) for a, b in zip(first.tolist(), second.tolist(), strict=True)]


def _rows_before(manifest: Path, settings: dict[str, Any]) -> set[str]:
    """Return the rows of a manifest; refuse other settings: pictures of two kinds would be told apart by nobody."""
    if not manifest.is_file():
        return set()
    rows = manifest.read_text(encoding="utf-8").splitlines()
    for row in rows:
        found = {key: json.loads(row).get(key) for key in settings}
        if found != settings:
            raise DataError(f"{manifest} was written with {found}, not {settings}; choose another folder.")
    return set(rows)


def _load(item: ImageItem) -> Parent:
    return Parent(item.load(), str(item.label))


def _seed(seed: int, number: int) -> int:
    return generator(seed, "picture", number).initial_seed()


def _save(folder: Path, name: str, picture: Image.Image) -> None:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    write_files(folder, {name: buffer.getvalue()})
