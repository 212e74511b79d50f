"""The published lists of known and new classes, read from the text files of this folder (layer: evaluation).

Section 7.4 of the specification. A file has comments (``#``), section titles in brackets and, below them, class numbers
from 0 in the order in which the field re-indexes classes: known first, then new (hard, medium, easy). A wrong number
would change every figure without a sign, so each file is checked against ``SHA256SUMS``, which ``sha256sum --check``
reads too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from talon_ocd.errors import ConfigError, DataError, nearest

SUMS = "SHA256SUMS"
_REINSTALL = "the file was changed or damaged: install talon-ocd again, or restore it with git."


@dataclass(frozen=True)
class ClassSplit:
    """Class numbers of a data set: known ones and new ones, each in the order of its list."""

    known: tuple[int, ...]
    new: tuple[int, ...]

    def below(self, classes: int) -> ClassSplit:
        """Return the split of a data set cut to its first ``classes`` classes, as small copies of it are."""
        known, new = (tuple(number for number in part if number < classes) for part in (self.known, self.new))
        return ClassSplit(known, new)


def class_split(name: str) -> ClassSplit:
    """Return a published split by its name, e.g. ``cub``.

    >>> class_split("aircraft").known[:8], class_split("aircraft").new[:3]
    ((0, 1, 2, 3, 4, 5, 10, 11), (6, 7, 8))
    """
    known: list[int] = []
    new: list[int] = []
    for title, line in _lines(name):
        (known if title == "known" else new).extend(int(number) for number in line.split())
    return ClassSplit(tuple(known), tuple(new))


def first_classes(known: int, classes: int) -> ClassSplit:
    """Return the split of the data sets without a list: the first ``known`` of ``classes`` are known (section 7.3).

    >>> first_classes(2, 5)
    ClassSplit(known=(0, 1), new=(2, 3, 4))
    """
    return ClassSplit(tuple(range(known)), tuple(range(known, classes)))


def class_names(name: str) -> tuple[str, ...]:
    """Return class names in official order, e.g. of ``cars``; the place in the tuple is the class number.

    >>> class_names("cars")[173]
    'Ram C/V Cargo Van Minivan 2012'
    """
    return tuple(line for _, line in _lines(f"{name}-classes"))


def published() -> tuple[str, ...]:
    """Return the names of the files that are listed with a checksum, without their ending."""
    return tuple(name.removesuffix(".txt") for name in _sums())


def _lines(name: str) -> Iterator[tuple[str, str]]:
    """Yield the section and the text of every line of content."""
    title = ""
    for line in _verified(f"{name}.txt").splitlines():
        if line.startswith("["):
            title = line.strip("[]")
        elif line and not line.startswith("#"):
            yield title, line


def _verified(file: str) -> str:
    """Return the text of a file after its checksum was found right."""
    sums = _sums()
    if file not in sums:
        known = [name.removesuffix(".txt") for name in sums]
        name = file.removesuffix(".txt")
        raise ConfigError(f"split {name!r} is not known; use one of {', '.join(known)}.{nearest(name, known)}")
    content = _read(file)
    found = hashlib.sha256(content).hexdigest()
    if found != sums[file]:
        raise DataError(f"{file} has the checksum {found[:16]}..., {SUMS} says {sums[file][:16]}...; {_REINSTALL}")
    return content.decode("utf-8")


def _sums() -> dict[str, str]:
    lines = _read(SUMS).decode("utf-8").splitlines()
    return {file: digest for digest, file in (line.split(maxsplit=1) for line in lines)}


def _read(file: str) -> bytes:
    """Return the bytes of a file with the line ends that the checksum was made with, whatever git made of them."""
    try:
        content = (files(__package__) / file).read_bytes()
    except OSError as error:
        raise DataError(f"{file} can't be read ({error.strerror}); {_REINSTALL}") from error
    return content.replace(b"\r\n", b"\n")
