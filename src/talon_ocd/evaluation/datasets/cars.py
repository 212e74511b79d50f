"""Stanford Cars: the official devkit, or a folder per class (layer: evaluation; sections 7.4 and 7.5).

Class numbers are those of the devkit, which are not the alphabetical order of the names (143 of the 196 differ), so the
names of folders are looked up in the official list. Images of the devkit are in the order of its annotation file, which
mixes classes; those of folders are in the order of the classes.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from talon_ocd.errors import DataError, nearest
from talon_ocd.evaluation.datasets.dataset import Expected, Found
from talon_ocd.evaluation.datasets.layout import Layout, class_folders, class_number, folder_items, listed_items
from talon_ocd.evaluation.splits import class_names
from talon_ocd.images import display

CARS = Layout(
    "Stanford Cars",
    ("stanford_cars",),
    ("devkit/cars_train_annos.mat", "cars_train"),
    "  stanford_cars/ (any name)\n"
    "  ├── devkit/cars_train_annos.mat\n"
    "  └── cars_train/00001.jpg ...\n"
    "or train/<class name>/*.jpg, or <class name>/*.jpg",
    "https://ai.stanford.edu/~jkrause/cars/car_dataset.html: cars_train.tgz and car_devkit.tgz "
    "(when the page is down: a mirror that kept these names).",
)
_BY_CLASS = (
    "the images come from folders, class by class; the devkit mixes the classes, "
    "so that another half is labelled than with the devkit."
)
_ALL_IN_ONE = "the folders are not in a folder train: they may hold the official test images too."


def read_cars(root: Path, expected: Expected) -> Found:
    """Read the training split of Stanford Cars; class number = number in the devkit minus 1."""
    names = class_names("cars")[: expected.classes]
    folder = CARS.locate(root)
    if folder is not None:
        return _devkit(folder, names)
    numbers = {_squeezed(name): at for at, name in enumerate(names)}
    for tree in (root / "train", root / "car_data" / "train", root / "car_data" / "car_data" / "train", root):
        if tree.is_dir() and any(_squeezed(name) in numbers for name in class_folders(tree)):
            return _folders(root, tree, names, numbers)
    CARS.find(root)  # raises: it says what is missing
    raise AssertionError("unreachable")


def _devkit(folder: Path, names: tuple[str, ...]) -> Found:
    from scipy.io import loadmat  # here: only this data set needs it, and every command would wait for it

    path = folder / "devkit" / "cars_train_annos.mat"
    try:
        table = np.atleast_1d(loadmat(path, squeeze_me=True, variable_names=["annotations"])["annotations"])
        pairs = [(str(file), str(number)) for file, number in zip(table["fname"], table["class"], strict=True)]
    except Exception as error:  # a damaged file can raise anything
        raise DataError(
            f"{display(path)} is not the annotation file of the devkit ({type(error).__name__}); "
            "unpack car_devkit.tgz again."
        ) from error
    rows = [(folder / "cars_train" / file, names[class_number(number, len(names), path)]) for file, number in pairs]
    return Found(names, *listed_items(rows, path.name))


def _folders(root: Path, tree: Path, names: tuple[str, ...], numbers: dict[str, int]) -> Found:
    folders: dict[int, str] = {}
    for name in class_folders(tree):
        at = numbers.get(_squeezed(name))
        if at is None:
            raise CARS.refusal(root, f"has the folder {display(name)!r}, which is no class.{nearest(name, names)}")
        if at in folders:
            raise CARS.refusal(root, f"has two folders for one class: {folders[at]!r} and {display(name)!r}.")
        folders[at] = name
    missing = [name for at, name in enumerate(names) if at not in folders]
    if missing:
        found = f"has {len(folders)} of the {len(names)} class folders"
        raise CARS.refusal(root, f"{found}; the first that is missing is {missing[0]!r}.")
    notes = (_BY_CLASS,) if tree.name == "train" else (_BY_CLASS, _ALL_IN_ONE)
    return Found(names, *folder_items(tree, [(folders[at], name) for at, name in enumerate(names)]), notes)


def _squeezed(name: str) -> str:
    """Return a class name without what mirrors write in several ways (``Ram C/V``, ``Ram C_V``, ``Ram C-V``)."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
