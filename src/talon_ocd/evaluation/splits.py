"""Who is known and who is labelled: the split of a data set (layer: evaluation; section 7.2 of the specification)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from talon_ocd.errors import ConfigError, DataError, nearest
from talon_ocd.images import ImageItem

Indices = npt.NDArray[np.int64]
SamplingRule = Literal["gcd", "talon"]


@dataclass(frozen=True)
class Split:
    """Indices into a data set: what is labelled, and the stream in its order."""

    known: tuple[str, ...]
    """Names of the known classes; those of the others are never shown to a method."""
    labelled: Indices
    stream: Indices


def labelled_half(number: int, seed: int, rule: SamplingRule = "gcd") -> Indices:
    """Return positions of the labelled half among ``number`` known-class images in data set order; not stratified.

    ``gcd`` draws without replacement (GCD, SMILE, PHE), ``talon`` shuffles and takes the first half; both use numpy's
    legacy generator, as the released codes do.
    """
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed={seed}: seed must be between 0 and 2^32 - 1.")
    random = np.random.RandomState(seed)
    if rule == "gcd":
        return np.sort(random.choice(range(number), size=number // 2, replace=False)).astype(np.int64)
    if rule == "talon":
        order = np.arange(number)
        random.shuffle(order)
        return np.sort(order[: number // 2]).astype(np.int64)
    raise ConfigError(f"sampling rule {rule!r} is not known; use gcd or talon.")


def known_classes(classes: Sequence[str], known: int | str | Path | None) -> tuple[str, ...]:
    """Return the known classes: the first N of the sorted names, those of a file, or (``None``) the first half."""
    names = sorted(classes)
    if known is None:
        known = (len(names) + 1) // 2
    if isinstance(known, str) and known.isdecimal():
        known = int(known)
    if isinstance(known, int):
        if not 1 <= known <= len(names):
            raise ConfigError(f"--known {known} must be between 1 and {len(names)}, the number of classes.")
        return tuple(names[:known])
    return _listed(Path(known), names)


def split(items: Sequence[ImageItem], known: Sequence[str], seed: int, rule: SamplingRule = "gcd") -> Split:
    """Split a data set: half of the images of known classes are labelled, the rest is the shuffled stream."""
    known_set = set(known)
    candidates = np.array([i for i, item in enumerate(items) if item.label in known_set], dtype=np.int64)
    labelled = candidates[labelled_half(len(candidates), seed, rule)]
    if len(labelled) == 0:
        raise DataError(f"{len(candidates)} images of known classes leave nothing to label; add images.")
    rest = np.setdiff1d(np.arange(len(items)), labelled)
    return Split(tuple(known), labelled, np.random.RandomState(seed).permutation(rest).astype(np.int64))


def _listed(path: Path, names: Sequence[str]) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--known {path}: give a number or a text file with one class a line ({error}).") from error
    listed = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
    for name in listed:
        if name not in names:
            raise ConfigError(f"--known {path}: {name!r} is not a class of the data set.{nearest(name, names)}")
    if not listed:
        raise ConfigError(f"--known {path}: the file lists no class; write one class name a line.")
    return listed
