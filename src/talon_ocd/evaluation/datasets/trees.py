"""Data sets with a folder per class: Herbarium 19, iNaturalist 2017, ImageNet-100 (layer: evaluation; section 7.3).

Class number = place of the folder among the folder names sorted as strings; images are in the order of their paths,
class by class, as torchvision's ImageFolder has them.

iNaturalist 2017: the pool is *all* images below ``train_val_images/<super-category>/``, training and validation
together, as in torchvision's index. The published sizes say so: 1.8K + 5.8K images of Fungi are the 5,826 + 1,780 of
the official table, and the other three super-categories add up the same way. ``train2017.json`` is therefore not used,
even where it is there. (torchvision lists files in the order of the disk, here they are sorted; no half that was drawn
elsewhere can be drawn again.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from talon_ocd.evaluation.datasets.dataset import Expected, Found
from talon_ocd.evaluation.datasets.layout import Layout, class_folders, folder_items
from talon_ocd.evaluation.splits import class_split
from talon_ocd.images import display

HERBARIUM = Layout(
    "Herbarium 19",
    ("herbarium_19", "herbarium-2019-fgvc6"),
    ("small-train",),
    "  herbarium_19/ (any name)\n  └── small-train/<class>/*.jpg for 683 classes",
    "Kaggle, Herbarium 2019 - FGVC6 (https://www.kaggle.com/c/herbarium-2019-fgvc6): small-train.",
)

IMAGENET = Layout(
    "ImageNet (ILSVRC-2012)",
    ("ILSVRC/Data/CLS-LOC",),
    ("train",),
    "  train/n01440764/*.JPEG ... for the 1000 classes, or for exactly 100",
    "https://image-net.org/challenges/LSVRC/2012/: ILSVRC2012_img_train.tar, each inner archive in its own folder.",
)
_WORDNET = re.compile(r"n\d{8}")
_ALL = 1000


def inat_layout(super_category: str) -> Layout:
    """Return what a super-category of iNaturalist 2017 looks like."""
    return Layout(
        f"iNaturalist 2017, {super_category}",
        ("train_val_images", "2017"),
        (super_category,),
        f"  train_val_images/\n  └── {super_category}/<species>/*.jpg",
        "https://github.com/visipedia/inat_comp/tree/master/2017: train_val_images.tar.gz.",
    )


def read_herbarium(root: Path, expected: Expected) -> Found:
    """Read small-train of Herbarium 19."""
    return _all_of(HERBARIUM.find(root) / "small-train")


def inat_reader(super_category: str) -> Callable[[Path, Expected], Found]:
    """Return the reader of a super-category of iNaturalist 2017."""
    layout = inat_layout(super_category)
    return lambda root, expected: _all_of(layout.find(root) / super_category)


def imagenet_reader(split: str) -> Callable[[Path, Expected], Found]:
    """Return the reader of an ImageNet-100: the classes of a list among 1000 folders, or all of 100 folders."""

    def read(root: Path, expected: Expected) -> Found:
        train = _wordnet_folder(root)
        folders = [name for name in class_folders(train) if _WORDNET.fullmatch(name)]
        notes: tuple[str, ...] = ()
        if len(folders) == _ALL:
            listed = class_split(split)
            folders = [folders[at] for at in sorted((*listed.known, *listed.new))]
        elif len(folders) == expected.classes:
            notes = (_any_hundred(train, expected),)
        else:
            found = f"has {len(folders)} class folders; it takes all {_ALL}, or exactly {expected.classes}."
            raise IMAGENET.refusal(root, found)
        return Found(tuple(folders), *folder_items(train, [(name, name) for name in folders]), notes)

    return read


def _wordnet_folder(root: Path) -> Path:
    """Return the folder of the WordNet folders: ``train`` below ``root``, or ``root`` itself."""
    if root.is_dir() and any(_WORDNET.fullmatch(name) for name in class_folders(root)):
        return root
    return IMAGENET.find(root) / "train"


def _any_hundred(train: Path, expected: Expected) -> str:
    return (
        f"{display(train)} has {expected.classes} classes, all of which are used; whether they are those of the "
        f"published list can't be told, and the first {expected.known} in sorted order are known."
    )


def _all_of(folder: Path) -> Found:
    names = class_folders(folder)
    labels = tuple(display(name) for name in names)
    return Found(labels, *folder_items(folder, list(zip(names, labels, strict=True))))
