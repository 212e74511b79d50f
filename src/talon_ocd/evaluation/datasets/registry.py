"""The data sets that have a name, their sizes, and how one is loaded (layer: evaluation; section 7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from talon_ocd.errors import ConfigError, nearest
from talon_ocd.evaluation.datasets import cars, cifar, listed, trees
from talon_ocd.evaluation.datasets.dataset import Dataset, Expected, Found, Known
from talon_ocd.evaluation.datasets.layout import Layout
from talon_ocd.evaluation.splits import ClassSplit, class_split, first_classes, known_classes
from talon_ocd.images import ImageItem, VectorSource, labelled
from talon_ocd.images.digits import digits
from talon_ocd.images.glyphs import glyphs

EMBEDDED = ("digits", "glyphs")
_NOT_PUBLISHED = "figures can't be compared with published ones."


@dataclass(frozen=True)
class Official:
    """A data set of the field: what it looks like, who reads it, how large it is, which classes are known."""

    layout: Layout
    read: Callable[[Path, Expected], Found]
    expected: Expected
    split: str | None = None
    """The published list of known classes; without one the first classes are known."""

    def classes(self, expected: Expected) -> ClassSplit:
        """Return the numbers of known and new classes."""
        if self.split is None:
            return first_classes(expected.known, expected.classes)
        return class_split(self.split).below(expected.classes)


def _inat(super_category: str, classes: int, known: int, pool: int) -> Official:
    layout, read = trees.inat_layout(super_category), trees.inat_reader(super_category)
    return Official(layout, read, Expected(classes, known, pool))


OFFICIAL: dict[str, Official] = {
    "cifar10": Official(cifar.CIFAR10.layout, cifar.CIFAR10.read, Expected(10, 5, 50_000)),
    "cifar10-6-4": Official(cifar.CIFAR10.layout, cifar.CIFAR10.read, Expected(10, 6, 50_000)),
    "cifar100": Official(cifar.CIFAR100.layout, cifar.CIFAR100.read, Expected(100, 80, 50_000)),
    "imagenet100": Official(trees.IMAGENET, trees.imagenet_reader("imagenet100"), Expected(100, 50)),
    "imagenet100-80-20": Official(trees.IMAGENET, trees.imagenet_reader("imagenet100-80-20"), Expected(100, 80)),
    "cub": Official(listed.CUB, listed.read_cub, Expected(200, 100, 5_994), "cub"),
    "cars": Official(cars.CARS, cars.read_cars, Expected(196, 98, 8_144), "cars"),
    "pets": Official(listed.PETS, listed.read_pets, Expected(37, 19, 3_680)),
    "food101": Official(listed.FOOD101, listed.read_food101, Expected(101, 51, 75_750)),
    "aircraft": Official(listed.AIRCRAFT, listed.read_aircraft, Expected(100, 50, 6_667), "aircraft"),
    "herbarium19": Official(trees.HERBARIUM, trees.read_herbarium, Expected(683, 341), "herbarium19"),
    "inat-fungi": _inat("Fungi", 121, 61, 7_606),
    "inat-arachnida": _inat("Arachnida", 56, 28, 5_959),
    "inat-animalia": _inat("Animalia", 77, 39, 6_590),
    "inat-mollusca": _inat("Mollusca", 93, 47, 9_377),
}
"""Sizes: section 7.1; those of iNaturalist 2017 are training + validation images of its official table."""


def dataset_names() -> tuple[str, ...]:
    """Return every name that `load_dataset` takes."""
    return (*EMBEDDED, "folder", *OFFICIAL)


def load_dataset(
    name: str, root: Path | None = None, known: Known = None, classes: int = 100, expected: Expected | None = None
) -> Dataset:
    """Return a data set by name.

    Args:
        name: ``digits`` or ``glyphs`` (embedded), ``folder`` (a folder per class, or a file of embeddings), or an
            official one such as ``cub``.
        root: the folder, or where the official download was unpacked.
        known: how many classes are known, or a file that lists them. By default what is published; 6 of the 10 digits
            and the first half of others. Of an official data set the first N of its published order are taken, and a
            note says so.
        classes: how many classes of ``glyphs``.
        expected: the size of an official data set, where it is not the published one.
    """
    if name not in dataset_names():
        names = dataset_names()
        raise ConfigError(f"--dataset {name!r} is not known; use one of {', '.join(names)}.{nearest(name, names)}")
    if name in EMBEDDED:
        if root is not None:
            needless = f"{name} is embedded and needs no files."
            raise ConfigError(f"--root is for --dataset folder and for official data sets; {needless}")
        return _embedded(name, known, classes)
    if name == "folder":
        return _folder(root, known)
    return _official(name, OFFICIAL[name], root, known, expected or OFFICIAL[name].expected)


def _embedded(name: str, known: Known, classes: int) -> Dataset:
    items: list[ImageItem] = digits() if name == "digits" else glyphs(classes, per_class=20)
    if name == "digits" and known is None:
        known = 6
    return Dataset(name, items, known_classes(sorted({str(item.label) for item in items}), known))


def _folder(root: Path | None, known: Known) -> Dataset:
    if root is None:
        raise ConfigError("--dataset folder needs --root DIR, a folder with one folder per class, or a .parquet file.")
    source = labelled(root)
    # The order that the field's loaders have, in which the labelled half is drawn: plain, not natural.
    items = sorted(source.items, key=lambda item: (str(item.label), item.source))
    names = sorted({str(item.label) for item in source.items})
    vectors = source.facts if isinstance(source, VectorSource) else None
    name = f"folder:{root.resolve().name}"
    return Dataset(name, items, known_classes(names, known), source.skipped, vectors=vectors)


def _official(name: str, official: Official, root: Path | None, known: Known, expected: Expected) -> Dataset:
    layout = official.layout
    if root is None:
        wanted = f"the official {layout.title}:\n{layout.tree}\nFrom {layout.origin}"
        raise ConfigError(f"--dataset {name} needs --root DIR, {wanted}")
    root = root.expanduser()
    found = official.read(root, expected)
    _check(layout, root, found, expected)
    numbers = official.classes(expected)
    order = [found.names[number] for number in (*numbers.known, *numbers.new)]
    chosen = tuple(order[: len(numbers.known)])
    notes = [*found.notes, *_count_notes(found, expected)]
    if known is not None:
        usual, chosen = len(chosen), known_classes(order, known, keep_order=True)
        notes.append(f"{len(chosen)} classes are known by --known, not the published {usual}; {_NOT_PUBLISHED}")
    new = tuple(label for label in order if label not in chosen)
    return Dataset(name, found.items, chosen, found.skipped, tuple(notes), new)


def _check(layout: Layout, root: Path, found: Found, expected: Expected) -> None:
    """Refuse what can't be the data set: the wrong number of classes, or classes without an image."""
    if len(found.names) != expected.classes:
        raise layout.refusal(root, f"has {len(found.names)} classes, {layout.title} has {expected.classes}.")
    if not found.items:
        raise layout.refusal(root, f"lists {len(found.skipped):,} images, but none of them is there.")
    full = {item.label for item in found.items}
    empty = [label for label in found.names if label not in full]
    if empty:
        count = f"has no image of {len(empty)} of the {expected.classes} classes"
        raise layout.refusal(root, f"{count}; the first is {empty[0]!r}.")


def _count_notes(found: Found, expected: Expected) -> list[str]:
    here, pool = len(found.items), expected.pool
    if pool is None or here == pool:
        return []
    if here < pool:
        return [f"{pool - here:,} of the {pool:,} images of the official training split are missing; {_NOT_PUBLISHED}"]
    return [f"{here:,} images are here, {here - pool:,} more than the official training split has; {_NOT_PUBLISHED}"]
