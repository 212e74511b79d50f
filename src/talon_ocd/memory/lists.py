"""Prototypes in 8 bits, sorted into lists around centres (layer: memory).

Every prototype is in the list of the centre that is nearest to it, and a search reads the lists of the few centres that
are nearest to a feature. A list that has grown too long is split in two; members of lists nearby that are nearer to one
of the two new centres go over. So centres follow the prototypes, in small steps.

Vectors are compared as whole numbers (``codes.py``), where nothing is rounded up to a thousand dimensions: the same
calls give the same lists, however large the batches and wherever. The centres and the list of each prototype are all
that there is to save.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from talon_ocd.errors import DataError
from talon_ocd.memory.codes import Codes, two_centres, whole_numbers
from talon_ocd.memory.search import Floats, Ints

LONG = 512
"""Members from which on a list is split."""
LOOKED_AT = 64
"""Members of a long list that tell whether all are alike, so that it can't be parted."""
NEARBY = 24
"""Lists around a split whose members may go over."""
AT_A_TIME = 2**22
"""Cosines that are looked at together: what does not fit waits, so that memory stays bounded."""


@dataclass(frozen=True)
class Members:
    """What is in a list, in order of slots: slots ``(N,)``, codes ``(N, D)`` and one over their lengths ``(N,)``."""

    slots: Ints
    codes: Codes
    scales: npt.NDArray[np.float32]

    def take(self, which: Ints | npt.NDArray[np.bool_]) -> Members:
        """Return some of them."""
        return Members(self.slots[which], self.codes[which], self.scales[which])

    @classmethod
    def joined(cls, parts: Sequence[Members]) -> Members:
        """Return all members of some lists."""
        slots = np.concatenate([part.slots for part in parts])
        codes = np.concatenate([part.codes for part in parts])
        together = cls(slots, codes, np.concatenate([part.scales for part in parts]))
        in_order = bool((slots[1:] > slots[:-1]).all())
        return together if in_order else together.take(np.argsort(slots))


class Lists:
    """The first prototypes of a memory, slots 0, 1, ..., each in one list."""

    def __init__(self, size: int) -> None:
        self._centres = np.empty((0, size), np.float32)  # whole numbers
        self._scales = np.empty(0, np.float32)
        self._lists: list[Members] = []
        self._homes = np.empty(0, np.int32)  # of the slots, and room for more
        self._size = 0

    def __len__(self) -> int:
        """How many prototypes there are in all lists."""
        return self._size

    def add(self, vectors: Floats) -> None:
        """Take unit vectors ``(N, D)`` for the next slots."""
        codes, scales = whole_numbers(vectors)
        if not self._lists:
            self._found(codes.sum(axis=0, keepdims=True, dtype=np.int64))
        slots = np.arange(len(self), len(self) + len(codes))
        self._reserve(len(self) + len(codes))
        self._size += len(codes)
        self._insert(Members(slots, codes, scales), self._nearest(codes))

    def move(self, slots: Ints, vectors: Floats) -> None:
        """Take unit vectors ``(L, D)`` in the place of those of distinct slots ``(L,)``."""
        if not len(slots):
            return
        moved = Members(slots, *whole_numbers(vectors))
        homes = self._nearest(moved.codes)
        stays = self._homes[slots] == homes
        for place in np.flatnonzero(stays):
            members = self._lists[homes[place]]
            at = np.searchsorted(members.slots, slots[place])
            members.codes[at], members.scales[at] = moved.codes[place], moved.scales[place]
        leaves = ~stays
        for number in np.unique(self._homes[slots[leaves]]):
            members = self._lists[number]
            self._lists[number] = members.take(~np.isin(members.slots, slots[leaves]))
        if leaves.any():
            self._insert(moved.take(leaves), homes[leaves])
            self._drop_empty()

    def keep(self, slots: Ints) -> None:
        """Keep only these slots ``(L,)``, ascending, which are numbered anew."""
        numbers = np.full(len(self), -1)
        numbers[slots] = np.arange(len(slots))
        self._homes, self._size = self._homes[slots], len(slots)
        for place, members in enumerate(self._lists):
            left = members.take(numbers[members.slots] >= 0)
            self._lists[place] = Members(numbers[left.slots], left.codes, left.scales)
        self._drop_empty()

    def nearest(self, features: Floats, look: int, most: int) -> Ints:
        """Return ``most`` slots ``(B, most)`` near unit features ``(B, D)``, out of ``look`` lists.

        Where the lists have fewer, some occur twice; in no list at all there is nobody, -1.
        """
        found = np.full((len(features), most), -1)
        if not self._lists:
            return found
        look = min(look, len(self._lists))
        codes = whole_numbers(features)[0].astype(np.float32)
        step = max(AT_A_TIME // (look * LONG), 1)
        for start in range(0, len(features), step):
            part = codes[start : start + step]
            lists = _largest(self._cosines(part, slice(None)), look)
            found[start : start + step] = self._best_members(part, lists, most)
        return found

    def state_dict(self) -> dict[str, Tensor]:
        """Return the centres and the list of each slot: all else follows from the prototypes."""
        centres = torch.from_numpy(self._centres.astype(np.int8))
        return {"centres": centres, "lists": torch.from_numpy(self._homes[: self._size].copy())}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor], prototypes: Tensor) -> Lists:
        """Rebuild lists from their state and the prototypes ``(K, D)`` of the memory."""
        centres, homes = state["centres"].numpy(), state["lists"].numpy()
        fits = centres.ndim == 2 and centres.shape[1] == prototypes.shape[1] and len(homes) <= len(prototypes)
        if not fits or (len(homes) and not 0 <= homes.min() <= homes.max() < len(centres)):
            raise DataError(
                f"the saved index of {len(homes)} prototypes in {len(centres)} lists does not belong to "
                f"{tuple(prototypes.shape)} prototypes; load another copy of the model."
            )
        lists = cls(prototypes.shape[1])
        lists._found(centres)
        lists._homes, lists._size = homes.copy(), len(homes)
        for number, slots in _groups(homes, len(centres)):
            vectors = prototypes[torch.from_numpy(slots)].float().numpy()
            lists._lists[number] = Members(slots, *whole_numbers(vectors))
        return lists

    def _found(self, directions: npt.NDArray[np.integer | np.floating]) -> None:
        """Add empty lists with these centres ``(N, D)``."""
        codes, scales = whole_numbers(directions)
        self._centres = np.concatenate([self._centres, codes.astype(np.float32)])
        self._scales = np.concatenate([self._scales, scales])
        nobody = Members(np.empty(0, np.int64), codes[:0], scales[:0])
        self._lists += [nobody] * len(codes)

    def _insert(self, members: Members, homes: Ints) -> None:
        """Put members ``(N,)`` into their lists ``(N,)``, and split those that are too long by now."""
        self._homes[members.slots] = homes
        lengths: dict[int, int] = {}
        for number, places in _groups(homes, len(self._lists)):
            lengths[number] = len(self._lists[number].slots)
            self._lists[number] = Members.joined([self._lists[number], members.take(places)])
        before = len(self._lists)
        for number, length in lengths.items():
            if self._may_be_parted(number, length):
                self._split(number)
        if len(self._lists) > before:
            self._drop_empty()

    def _may_be_parted(self, number: int, before: int) -> bool:
        """Is a list, which had so many members before, too long, and worth a try?

        One whose members look alike is tried only as often as its length doubles. Nothing is remembered for that: a
        saved index would not know it.
        """
        members = self._lists[number]
        length = len(members.slots)
        if length <= LONG:
            return False
        some = members.codes[:: max(length // LOOKED_AT, 1)]
        alike = bool((some == some[0]).all())
        return not alike or _doublings(length) > _doublings(before)

    def _reserve(self, capacity: int) -> None:
        """Make room for the lists of so many slots; half as many more at a time."""
        if capacity > len(self._homes):
            self._homes = np.pad(self._homes, (0, capacity * 3 // 2 - len(self._homes)))

    def _split(self, number: int) -> None:
        """Give a list two centres, and let members of the lists nearby go where they are nearest."""
        halves = two_centres(self._lists[number].codes)
        if halves is None:
            return
        codes, scales = whole_numbers(halves)
        self._found(halves[1:])
        self._centres[number], self._scales[number] = codes[0], scales[0]
        cosines = (self._cosines(codes.astype(np.float32), slice(None)) * scales[:, None]).max(axis=0)
        cosines[[number, -1]] = np.inf
        nearby = np.sort(np.argsort(-cosines, kind="stable")[: NEARBY + 2])
        together = Members.joined([self._lists[place] for place in nearby])
        homes = nearby[self._cosines(together.codes.astype(np.float32), nearby).argmax(axis=1)]
        self._homes[together.slots] = homes
        for place in nearby:
            self._lists[place] = together.take(homes == place)

    def _drop_empty(self) -> None:
        """Forget lists that nobody is in."""
        full = np.array([len(members.slots) > 0 for members in self._lists], np.bool_)
        if not full.all():
            numbers = np.cumsum(full, dtype=np.int32) - 1
            self._homes = numbers[self._homes]
            self._centres, self._scales = self._centres[full], self._scales[full]
            self._lists = [members for members in self._lists if len(members.slots)]

    def _nearest(self, codes: Codes) -> Ints:
        """Return the list ``(N,)`` whose centre is nearest to each of ``(N, D)``, the first of equal ones."""
        nearest: Ints = self._cosines(codes.astype(np.float32), slice(None)).argmax(axis=1)
        return nearest

    def _cosines(self, codes: npt.NDArray[np.float32], which: Ints | slice) -> npt.NDArray[np.float32]:
        """Return cosines ``(N, C)`` with some centres, times the length of the codes ``(N, D)``."""
        products: npt.NDArray[np.float32] = codes @ self._centres[which].T
        products *= self._scales[which]
        return products

    def _best_members(self, codes: npt.NDArray[np.float32], lists: Ints, most: int) -> Ints:
        """Return the slots ``(B, most)`` of the nearest members of each feature's lists ``(B, L)``.

        Every list is read once, for all its features.
        """
        batch, look = lists.shape
        numbers, places = np.unique(lists, return_inverse=True)
        read = [self._lists[number] for number in numbers]
        lengths = np.array([len(members.slots) for members in read])
        longest = int(lengths.max())
        cosines = np.full((batch * look, longest), -np.inf, np.float32)
        for number, pairs in _groups(places.ravel(), len(numbers)):
            members = read[number]
            products = members.codes.astype(np.float32) @ np.ascontiguousarray(codes[pairs // look].T)
            cosines[pairs, : lengths[number]] = products.T * members.scales
        best = _largest(cosines.reshape(batch, look * longest), most)
        chosen = np.take_along_axis(places.reshape(batch, look), best // longest, axis=1)
        starts, slots = np.cumsum(lengths) - lengths, np.concatenate([members.slots for members in read])
        found: Ints = slots[starts[chosen] + best % longest]
        return found


def _doublings(length: int) -> int:
    """Return how often ``LONG`` must be doubled, counted from 1, to reach a length beyond it; 0 if it is not."""
    return (max(length - 1, 0) // LONG).bit_length()


def _largest(values: npt.NDArray[np.float32], count: int) -> Ints:
    """Return the places ``(B, count)`` of the largest of each row ``(B, N)``, best first; spoils ``values``.

    Where there are fewer than ``count`` the first place fills up. So many passes of a vectorised ``argmax`` are faster
    than a partition as long as ``count`` is small.
    """
    rows, places = np.arange(len(values)), np.empty((len(values), count), np.int64)
    for place in range(count):
        places[:, place] = values.argmax(axis=1)
        values[rows, places[:, place]] = -np.inf
    return places


def _groups(numbers: npt.NDArray[np.integer], count: int) -> Iterable[tuple[int, Ints]]:
    """Return the places of each number below ``count`` that occurs, ascending."""
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=count))
    start = 0
    for number, end in enumerate(ends.tolist()):
        if end > start:
            yield number, order[start:end]
            start = end
