"""CIFAR-10 and CIFAR-100: the official binary version, or folders of PNG (layer: evaluation; section 7.3).

The more common "python version" is a set of pickles, which can run code when they are opened; it is refused. Class
numbers are torchvision's: those of the binary files, which are also the alphabetical order of the names, in both data
sets, so that sorted folders have the same numbers. Images of the binary version are in its order, which mixes classes
and is torchvision's too; those of folders are in the order of their paths, class by class.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from talon_ocd.errors import DataError, ImageError
from talon_ocd.evaluation.datasets.dataset import Expected, Found
from talon_ocd.evaluation.datasets.layout import Layout, class_folders, folder_items
from talon_ocd.evaluation.splits import class_names
from talon_ocd.images import ImageItem, display
from talon_ocd.images.decode import Limits
from talon_ocd.images.items import file_key

_PIXELS = 3 * 32 * 32
_BY_CLASS = (
    "the images come from folders, class by class; the official files mix the classes, "
    "so that another half is labelled than with the binary version."
)


@dataclass(frozen=True)
class Cifar:
    """One of the two data sets as it is published."""

    layout: Layout
    names: str
    """Which list of class names is its."""
    batches: tuple[str, ...]
    meta: str
    label_bytes: int
    """Labels before the pixels of a record; the last one is the class (CIFAR-100 has a coarse one before it)."""
    archive: str
    pickled: tuple[str, str]
    """The folder of the python version and a file in it."""

    def read(self, root: Path, expected: Expected) -> Found:
        """Read the binary version or the folders, whichever is there; raises `DataError`."""
        names = class_names(self.names)
        folder = self.layout.locate(root)
        if folder is not None:
            return self._binary(folder, names)
        for train in (root / "train", root / self.names / "train", root):
            if train.is_dir() and len(set(names) & set(class_folders(train))) > len(names) // 2:
                return self._folders(root, train, names)
        home, file = self.pickled
        if (root / home).is_dir() or ((root / file).is_file() and not (root / f"{file}.bin").exists()):
            raise self.layout.refusal(
                root,
                f"holds the python version of {self.layout.title}. Its files are pickles, which can run any code when "
                f"they are opened, so they are refused: download the binary version, {self.archive}.",
            )
        self.layout.find(root)  # raises: it says what is missing
        raise AssertionError("unreachable")

    def _binary(self, folder: Path, names: tuple[str, ...]) -> Found:
        meta = folder / self.meta
        if meta.is_file():
            found = tuple(line.strip() for line in meta.read_text(encoding="utf-8", errors="replace").splitlines())
            if tuple(name for name in found if name) != names:
                raise self.layout.refusal(folder, f"has other classes in {self.meta} than {self.layout.title} has.")
        items: list[ImageItem] = []
        for batch in self.batches:
            items += self._batch(folder / batch, names)
        return Found(names, items, [])

    def _batch(self, path: Path, names: tuple[str, ...]) -> list[ImageItem]:
        size = self.label_bytes + _PIXELS
        try:
            content, key = np.fromfile(path, dtype=np.uint8), file_key(path)
        except OSError as error:
            raise self.layout.refusal(path.parent, f"misses {path.name} ({error.strerror}).") from error
        if len(content) == 0 or len(content) % size:
            raise DataError(
                f"{display(path)} has {len(content):,} bytes, which is not a number of records of {size:,} bytes; "
                f"{self._again}"
            )
        labels = content.reshape(-1, size)[:, self.label_bytes - 1]
        if int(labels.max()) >= len(names):
            raise DataError(
                f"{display(path)} has the class {labels.max()}, the last is {len(names) - 1}; {self._again}"
            )
        starts = range(self.label_bytes, len(content), size)
        return [
            ImageItem(f"{display(path)}#{at:05d}", names[label], f"{key}|{start}", _Record(path, start))
            for at, (label, start) in enumerate(zip(labels.tolist(), starts, strict=True))
        ]

    @property
    def _again(self) -> str:
        return f"download {self.archive} again."

    def _folders(self, root: Path, train: Path, names: tuple[str, ...]) -> Found:
        here = class_folders(train)
        if odd := sorted(set(here) ^ set(names)):
            what = f"{odd[0]!r} is {'missing' if odd[0] in names else 'not one'}"
            raise self.layout.refusal(root, f"does not have the {len(names)} classes of {self.layout.title}: {what}.")
        items, skipped = folder_items(train, [(name, name) for name in names])
        return Found(names, items, skipped, (_BY_CLASS,))


@dataclass(frozen=True)
class _Record:
    """The pixels of one image in a binary file: three planes of 32 x 32 bytes."""

    path: Path
    start: int

    def read(self, source: str, limits: Limits) -> Image.Image:
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                pixels = file.read(_PIXELS)
        except OSError as error:
            raise ImageError(source, f"can't be read ({error.strerror}); put the file back.") from error
        if len(pixels) < _PIXELS:
            raise ImageError(source, "is cut off; the file changed while it was read, put it back.")
        planes = np.frombuffer(pixels, dtype=np.uint8).reshape(3, 32, 32)
        return Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0)))


_SITE = "https://www.cs.toronto.edu/~kriz/cifar.html"

CIFAR10 = Cifar(
    Layout(
        "CIFAR-10",
        ("cifar-10-batches-bin",),
        ("data_batch_1.bin",),
        "  cifar-10-batches-bin/\n"
        "  ├── batches.meta.txt\n"
        "  └── data_batch_1.bin ... data_batch_5.bin\n"
        "or train/<class name>/*.png",
        f"{_SITE}: cifar-10-binary.tar.gz (the binary version).",
    ),
    names="cifar10",
    batches=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    meta="batches.meta.txt",
    label_bytes=1,
    archive="cifar-10-binary.tar.gz",
    pickled=("cifar-10-batches-py", "data_batch_1"),
)

CIFAR100 = Cifar(
    Layout(
        "CIFAR-100",
        ("cifar-100-binary",),
        ("train.bin",),
        "  cifar-100-binary/\n  ├── fine_label_names.txt\n  └── train.bin\nor train/<class name>/*.png",
        f"{_SITE}: cifar-100-binary.tar.gz (the binary version).",
    ),
    names="cifar100",
    batches=("train.bin",),
    meta="fine_label_names.txt",
    label_bytes=2,
    archive="cifar-100-binary.tar.gz",
    pickled=("cifar-100-python", "train"),
)
