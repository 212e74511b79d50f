"""Small copies of official downloads: the same files and folders, with few and tiny images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.io import savemat

from tests.images.pictures import encoded, photo

PICTURE = encoded(photo(8, 8))


def put(*paths: Path) -> None:
    """Write the same tiny picture everywhere; what is in it matters to none of these tests."""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PICTURE)


def lines(path: Path, *rows: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def cub(folder: Path) -> Path:
    """Four classes with a training, a test and a training image each."""
    names = ["001.Albatross", "002.Auklet", "003.Bunting", "004.Ani"]
    images = [f"{name}/{name[4:]}_{at}.jpg" for name in names for at in (2, 1, 3)]
    lines(folder / "classes.txt", *(f"{at} {name}" for at, name in enumerate(names, 1)))
    lines(folder / "images.txt", *(f"{at} {image}" for at, image in enumerate(images, 1)))
    lines(folder / "image_class_labels.txt", *(f"{at} {(at + 2) // 3}" for at in range(1, 13)))
    lines(folder / "train_test_split.txt", *(f"{at} {int(at % 3 != 2)}" for at in range(1, 13)))
    put(*(folder / "images" / image for image in images))
    return folder


def pets(folder: Path) -> Path:
    """Three classes whose numbers are not the order of the file."""
    rows = ["pug_10 3 2 1", "pug_2 3 2 1", "Bengal_1 1 1 1", "shiba_inu_7 2 2 2", "shiba_inu_1 2 2 2"]
    lines(folder / "annotations" / "trainval.txt", "#Image CLASS-ID SPECIES BREED ID", *rows)
    put(*(folder / "images" / f"{row.split()[0]}.jpg" for row in rows), folder / "images" / "pug_99.jpg")
    return folder


def food101(folder: Path) -> Path:
    images = ["apple_pie/2", "apple_pie/1", "waffles/5", "baklava/3"]
    lines(folder / "meta" / "train.txt", *images)
    put(*(folder / "images" / f"{image}.jpg" for image in images), folder / "images" / "waffles" / "9.jpg")
    return folder


def aircraft(folder: Path) -> Path:
    """Eight variants, not sorted in their file; numbers 6 and 7 are new."""
    names = ["F/A-18", "707-320", "Cessna 172", "A300B4", "727-200", "737-200", "A310", "DC-10"]
    rows = [f"{at:07d} {name}" for at, name in enumerate(names)]
    lines(folder / "data" / "variants.txt", *names)
    lines(folder / "data" / "images_variant_trainval.txt", *rows)
    put(*(folder / "data" / "images" / f"{row[:7]}.jpg" for row in rows))
    return folder


def cars_devkit(folder: Path, classes: Sequence[int] = (3, 1, 4, 2, 1)) -> Path:
    """Annotations as the devkit has them: a struct array with boxes, class numbers from 1 and file names."""
    fields = ["bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname"]
    table = np.empty((1, len(classes)), dtype=[(field, object) for field in fields])
    for at, number in enumerate(classes):
        table[0, at] = (1, 2, 30, 40, number, f"{at + 1:05d}.jpg")
        put(folder / "cars_train" / f"{at + 1:05d}.jpg")
    (folder / "devkit").mkdir(parents=True, exist_ok=True)
    savemat(folder / "devkit" / "cars_train_annos.mat", {"annotations": table})
    return folder


def tree(folder: Path, *names: str, images: Sequence[str] = ("2.jpg", "10.jpg")) -> Path:
    put(*(folder / name / image for name in names for image in images))
    return folder


def cifar_record(label: Sequence[int], red: int, green: int, blue: int) -> bytes:
    return bytes(label) + b"".join(bytes([value]) * 1024 for value in (red, green, blue))


def cifar10(folder: Path) -> Path:
    """Five batches with the ten classes in another order in each."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    lines(folder / "batches.meta.txt", *names, "")
    for batch in range(5):
        records = [cifar_record([(at * 3 + batch) % 10], 10 * at, batch, 7) for at in range(10)]
        (folder / f"data_batch_{batch + 1}.bin").write_bytes(b"".join(records))
    return folder


def cifar100(folder: Path) -> Path:
    """A record a class, the last class first, with a coarse label before the fine one."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [cifar_record([at % 20, 99 - at], at, 0, 255) for at in range(100)]
    (folder / "train.bin").write_bytes(b"".join(records))
    return folder
