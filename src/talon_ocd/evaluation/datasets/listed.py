"""Data sets whose images are listed in text files: CUB, Pets, Food-101, Aircraft (layer: evaluation; section 7.1).

The pool is the official training split (Pets and Aircraft: trainval), in the order of the file that lists it. In CUB,
Food-101 and Pets that order is class by class, so that their data set order streams one class after the other.
"""

from __future__ import annotations

from pathlib import Path

from talon_ocd.errors import DataError
from talon_ocd.evaluation.datasets.dataset import Expected, Found
from talon_ocd.evaluation.datasets.layout import Layout, class_number, listed_items, read_table
from talon_ocd.images import display

CUB = Layout(
    "CUB-200-2011",
    ("CUB_200_2011",),
    ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt"),
    "  CUB_200_2011/\n"
    "  ├── classes.txt\n"
    "  ├── image_class_labels.txt\n"
    "  ├── images.txt\n"
    "  ├── train_test_split.txt\n"
    "  └── images/001.Black_footed_Albatross/*.jpg ...",
    "https://www.vision.caltech.edu/datasets/cub_200_2011/: CUB_200_2011.tgz.",
)

PETS = Layout(
    "Oxford-IIIT Pet",
    ("oxford-iiit-pet",),
    ("annotations/trainval.txt", "images"),
    "  oxford-iiit-pet/ (any name)\n  ├── annotations/trainval.txt\n  └── images/Abyssinian_1.jpg ...",
    "https://www.robots.ox.ac.uk/~vgg/data/pets/: images.tar.gz and annotations.tar.gz, unpacked into one folder.",
)

FOOD101 = Layout(
    "Food-101",
    ("food-101",),
    ("meta/train.txt", "images"),
    "  food-101/\n  ├── meta/train.txt\n  └── images/apple_pie/*.jpg ...",
    "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/: food-101.tar.gz.",
)

AIRCRAFT = Layout(
    "FGVC-Aircraft",
    ("fgvc-aircraft-2013b",),
    ("data/images_variant_trainval.txt", "data/variants.txt", "data/images"),
    "  fgvc-aircraft-2013b/\n"
    "  └── data/\n"
    "      ├── images_variant_trainval.txt\n"
    "      ├── variants.txt\n"
    "      └── images/*.jpg",
    "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/: fgvc-aircraft-2013b.tar.gz.",
)


def read_cub(root: Path, expected: Expected) -> Found:
    """Read the training split of CUB-200-2011; class number = number in classes.txt minus 1."""
    folder = CUB.find(root)
    names = tuple(name for _, name in read_table(folder / "classes.txt", 2))
    classes = dict(read_table(folder / "image_class_labels.txt", 2))
    train = dict(read_table(folder / "train_test_split.txt", 2))
    rows = []
    for number, file in read_table(folder / "images.txt", 2):
        if number not in classes or number not in train:
            index = "image_class_labels.txt" if number not in classes else "train_test_split.txt"
            raise CUB.refusal(root, f"lists image {number} in images.txt but not in {index}.")
        if train[number] == "1":
            at = class_number(classes[number], len(names), folder / "image_class_labels.txt")
            rows.append((folder / "images" / file, names[at]))
    return Found(names, *listed_items(rows, "images.txt"))


def read_pets(root: Path, expected: Expected) -> Found:
    """Read the trainval split of Oxford-IIIT Pet; class number = CLASS-ID minus 1, class name = that of the files."""
    folder = PETS.find(root)
    index = folder / "annotations" / "trainval.txt"
    names: dict[int, str] = {}
    rows = []
    for image, number, _, _ in read_table(index, 4):
        at = class_number(number, expected.classes, index)
        name = names.setdefault(at, image.rpartition("_")[0])
        rows.append((folder / "images" / f"{image}.jpg", name))
    return Found(tuple(names[at] for at in sorted(names)), *listed_items(rows, "trainval.txt"))


def read_food101(root: Path, expected: Expected) -> Found:
    """Read the training split of Food-101; class number = place among the sorted class names."""
    folder = FOOD101.find(root)
    images = [row[0] for row in read_table(folder / "meta" / "train.txt", 1)]
    rows = [(folder / "images" / f"{image}.jpg", image.partition("/")[0]) for image in images]
    return Found(tuple(sorted({name for _, name in rows})), *listed_items(rows, "train.txt"))


def read_aircraft(root: Path, expected: Expected) -> Found:
    """Read the trainval split of FGVC-Aircraft, labels = variants; class number = place among the sorted names."""
    data = AIRCRAFT.find(root) / "data"
    names = tuple(sorted(name for (name,) in read_table(data / "variants.txt", 1)))
    index = data / "images_variant_trainval.txt"
    rows = []
    for image, name in read_table(index, 2):
        if name not in names:
            found = f"{display(index)} has the variant {name!r}, which variants.txt has not"
            raise DataError(f"{found}; unpack the official download again.")
        rows.append((data / "images" / f"{image}.jpg", name))
    return Found(names, *listed_items(rows, index.name))
