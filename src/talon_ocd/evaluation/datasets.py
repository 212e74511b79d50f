"""Data sets that an evaluation can ask for by name (layer: evaluation)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from talon_ocd.errors import ConfigError, nearest
from talon_ocd.evaluation.splits import known_classes
from talon_ocd.images import ImageItem, Skipped, labelled
from talon_ocd.images.digits import digits
from talon_ocd.images.glyphs import glyphs

Known = int | str | Path | None


@dataclass(frozen=True)
class Dataset:
    """Labelled images of known and of new classes; methods see labels of known ones only."""

    name: str
    items: list[ImageItem]
    known: tuple[str, ...]
    skipped: list[Skipped] = field(default_factory=list)
    ignored: int = 0

    @property
    def classes(self) -> tuple[str, ...]:
        """All class names: known ones first, each part sorted as given."""
        rest = sorted({item.label for item in self.items if item.label is not None} - set(self.known))
        return (*self.known, *rest)


def load_dataset(name: str, root: Path | None = None, known: Known = None, classes: int = 100) -> Dataset:
    """Return a data set by name: ``digits``, ``glyphs`` (with ``classes`` of them) or ``folder`` (a folder per class).

    ``known`` is how many of the class names, sorted, are known, or a file that lists them; by default the first half,
    and 6 of the 10 digits.
    """
    makers: dict[str, Callable[[], Dataset]] = {
        "digits": lambda: _embedded("digits", digits(), 6 if known is None else known),
        "glyphs": lambda: _embedded("glyphs", glyphs(classes, per_class=20), known),
        "folder": lambda: _folder(root, known),
    }
    if name not in makers:
        raise ConfigError(f"--dataset {name!r} is not known; use one of {', '.join(makers)}.{nearest(name, makers)}")
    if root is not None and name != "folder":
        raise ConfigError(f"--root is for --dataset folder; {name} is embedded and needs no files.")
    return makers[name]()


def _embedded(name: str, items: list[ImageItem], known: Known) -> Dataset:
    return Dataset(name, items, known_classes(sorted({str(item.label) for item in items}), known))


def _folder(root: Path | None, known: Known) -> Dataset:
    if root is None:
        raise ConfigError("--dataset folder needs --root DIR, a folder with one folder per class.")
    source = labelled(root)
    # The order that the field's loaders have, in which the labelled half is drawn: plain, not natural.
    items = sorted(source.items, key=lambda item: (str(item.label), item.source))
    names = sorted({str(item.label) for item in source.items})
    return Dataset(
        f"folder:{root.resolve().name}",
        items,
        known_classes(names, known),
        source.skipped,
        source.ignored,
    )
