"""What a data set is to an evaluation: labelled images, and which classes are known (layer: evaluation)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from talon_ocd.images import ImageItem, Skipped, VectorFacts

Known = int | str | Path | None
"""How many classes are known, a file that lists them, or ``None`` for what the data set says."""


@dataclass(frozen=True)
class Dataset:
    """Labelled images of known and of new classes; methods see labels of known ones only.

    The items are in data set order, that of the official index: the labelled half is drawn from this order, and the
    loaders of GCD, SMILE and PHE stream in it.
    """

    name: str
    items: list[ImageItem]
    known: tuple[str, ...]
    skipped: list[Skipped] = field(default_factory=list)
    """Images that should be there and are not, or can't be used."""
    notes: tuple[str, ...] = ()
    """What a reader of figures made with this data must know, e.g. that images are missing."""
    new: tuple[str, ...] = ()
    """The new classes in the order of a published list; without one they are sorted."""
    vectors: VectorFacts | None = None
    """What is known of the embeddings, if that is what the images are given by."""

    @property
    def classes(self) -> tuple[str, ...]:
        """All class names, known ones first: in the order of the published list, or of their names."""
        listed = (*self.known, *self.new)
        rest = {item.label for item in self.items if item.label is not None} - set(listed)
        return (*listed, *sorted(rest))


@dataclass(frozen=True)
class Expected:
    """How large an official data set is (section 7.1 of the specification)."""

    classes: int
    known: int
    pool: int | None = None
    """Images in the training split, where the exact number is published."""


@dataclass(frozen=True)
class Found:
    """What a reader found: class names by their official number, and the images of the pool in official order."""

    names: tuple[str, ...]
    items: list[ImageItem]
    skipped: list[Skipped]
    notes: tuple[str, ...] = ()
