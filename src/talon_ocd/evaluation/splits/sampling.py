"""Who is labelled, and the order of the rest: the split of a data set (layer: evaluation; section 7.2)."""

from __future__ import annotations

from collections import Counter
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
StreamOrder = Literal["shuffled", "dataset"]
_ORDERS: tuple[StreamOrder, ...] = ("shuffled", "dataset")


@dataclass(frozen=True)
class Split:
    """Indices into a data set: what is labelled and what is left for the stream, both in data set order."""

    known: tuple[str, ...]
    """Names of the known classes; those of the others are never shown to a method."""
    labelled: Indices
    rest: Indices
    seed: int
    """The seed that drew the labelled half; the orders of the stream follow from it."""

    @property
    def stream(self) -> Indices:
        """The rest in shuffled order number 0."""
        return stream_order(self.rest, "shuffled", self.seed)


def labelled_half(number: int, seed: int, rule: SamplingRule = "gcd") -> Indices:
    """Return positions of the labelled half among ``number`` known-class images in data set order; not stratified.

    ``gcd`` draws without replacement (GCD, SMILE, PHE: always with seed 0), ``talon`` shuffles and takes the first half
    (seed 1028); both use numpy's legacy generator, as the released codes do. Given the full ImageNet, TALON's code
    draws the 100 classes from the same generator first; that is not repeated here, so that its half there is another.
    """
    random = generator(seed)
    if rule == "gcd":
        return np.sort(random.choice(range(number), size=number // 2, replace=False)).astype(np.int64)
    if rule == "talon":
        order = np.arange(number)
        random.shuffle(order)
        return np.sort(order[: number // 2]).astype(np.int64)
    raise ConfigError(f"sampling rule {rule!r} is not known; use gcd or talon.")


def known_classes(classes: Sequence[str], known: int | str | Path | None, keep_order: bool = False) -> tuple[str, ...]:
    """Return the known classes: the first N of the sorted names, those of a file, or (``None``) the first half.

    ``keep_order`` takes the names as they come instead of sorting them.
    """
    names = list(classes) if keep_order else sorted(classes)
    if known is None:
        known = (len(names) + 1) // 2
    if isinstance(known, str) and known.isdecimal():
        known = int(known)
    if isinstance(known, int):
        if not 1 <= known <= len(names):
            raise ConfigError(f"--known {known} must be between 1 and {len(names)}, the number of classes.")
        return tuple(names[:known])
    return _listed(Path(known), names)


def split(
    items: Sequence[ImageItem], known: Sequence[str], seed: int, rule: SamplingRule = "gcd", most: int | None = None
) -> Split:
    """Split a data set: half of the images of known classes are labelled, the rest is for the stream.

    With ``most``, at most so many of a class are labelled, and the others of that half are left out: the stream is the
    same with few labels as with many.
    """
    known_set = set(known)
    candidates = np.array([i for i, item in enumerate(items) if item.label in known_set], dtype=np.int64)
    labelled = candidates[labelled_half(len(candidates), seed, rule)]
    if len(labelled) == 0:
        raise DataError(f"{len(candidates)} images of known classes leave nothing to label; add images.")
    rest = np.setdiff1d(np.arange(len(items)), labelled)
    if most is not None:
        labelled = _fewer(labelled, [items[i].label for i in labelled], most, seed)
    return Split(tuple(known), labelled, rest.astype(np.int64), seed)


def stream_order(indices: Indices, order: StreamOrder = "shuffled", seed: int = 0, number: int = 0) -> Indices:
    """Return ``indices`` in the order in which they stream.

    ``dataset`` is the order of the data set, as the loaders of GCD, SMILE and PHE stream it: sorted by class where the
    data set is (CUB, Pets, Food-101). ``shuffled`` is a permutation; every pair of ``seed`` and ``number`` has its own.
    """
    if order == "dataset":
        return np.sort(indices)
    if order != "shuffled":
        raise ConfigError(f"stream order {order!r} is not known; use shuffled or dataset.{nearest(order, _ORDERS)}")
    return generator(seed, number).permutation(indices).astype(np.int64)


def generator(seed: int, number: int = 0) -> np.random.RandomState:
    """Return numpy's legacy generator: number 0 is seeded as the released codes do it, further ones by the pair."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed={seed}: seed must be between 0 and 2^32 - 1.")
    if not 0 <= number < 2**32:
        raise ConfigError(f"stream order number {number}: it must be between 0 and 2^32 - 1.")
    return np.random.RandomState([seed, number] if number else seed)


def _fewer(labelled: Indices, names: Sequence[str | None], most: int, seed: int) -> Indices:
    """Return at most ``most`` images of each class; a larger number only adds to them."""
    if most < 1:
        raise ConfigError(f"--labelled {most}: label 1 image of each known class or more.")
    taken: Counter[str | None] = Counter()
    kept = []
    for place in generator(seed).permutation(len(labelled)):
        taken[names[place]] += 1
        if taken[names[place]] <= most:
            kept.append(labelled[place])
    return np.sort(np.array(kept, dtype=np.int64))


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
