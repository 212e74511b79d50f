"""Second thoughts about recent images (layer: memory): whose members are they, given all that came since?

Answers are given once and stay. But the categories that later images meet need not be made of early mistakes: the last
images are kept as coordinates, and now and then each is offered to all categories again, its own one without it; more
seldom they are grouped anew altogether. An image that is pushed out leaves what it added where it was.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from talon_ocd.memory.beliefs import ROUNDING, Beliefs, Ints
from talon_ocd.memory.offshoots import FEWEST_MEMBERS, offshoot
from talon_ocd.memory.regroup import carried_over, ward
from talon_ocd.memory.two_covariance import Floats

BLOCK = 2**21
"""Products of images and categories at once: second thoughts need little memory, however much there is to think of."""
PRODUCTS = 2**22
"""Products of a whole sweep: with many categories it thinks of the newest images only, so that no answer waits long."""
CLASSES_AT_ONCE = 100
"""Known classes that are looked at for kinds of their own, those that most images joined: answers wait for it."""
NOBODY: Ints = np.empty(0, np.int64)
_PARTS = ("coordinates", "answers", "homes")


class Recent:
    """The last ``capacity`` images: coordinates ``(N, d)``, what was answered, and where they belong by now.

    Attributes:
        pushed_out: images that are no longer kept.
    """

    def __init__(self, capacity: int, size: int) -> None:
        self.capacity, self.pushed_out, self._length = capacity, 0, 0
        self._storage = {
            "coordinates": np.empty((0, size)),
            "answers": np.empty(0, np.int64),
            "homes": np.empty(0, np.int64),
        }
        """Grows to twice the capacity: the last images lie in it side by side, oldest first, and seldom move."""
        self._first = 0

    def __len__(self) -> int:
        return self._length

    def add(self, coordinates: Floats, categories: Ints) -> None:
        """Keep images ``(B, d)`` with their answers ``(B,)``; the oldest make room."""
        self._add(coordinates, categories, categories)

    def rethink(self, beliefs: Beliefs, hurdle: float, sweeps: int, newest: int | None = None) -> int:
        """Let images move to the category that explains them best, ``sweeps`` times; returns how many moved.

        Only the ``newest`` are looked at if that is given, for an eighth of the products at most.
        ``hurdle`` is what the evidence must reach against a new category: an image that is alone in its own stays
        unless another one passes it.
        """
        moves, homes = 0, self._settled_homes(beliefs)
        most = max(PRODUCTS // max(beliefs.size, 1), 1)
        looked_at = slice(-(most if newest is None else max(min(newest, most // 8), 1)), None)
        coordinates, own = self._kept("coordinates")[looked_at], homes[looked_at]
        for _ in range(sweeps):
            step = max(BLOCK // max(beliefs.size, 1), 1)
            starts = range(0, len(own), step)
            best = [_best(beliefs, coordinates[i : i + step], own[i : i + step], hurdle) for i in starts]
            found = np.concatenate([own[:0], *best])
            found[own < 0] = -1  # belongs nowhere, or a person has spoken
            found = _one_way(own, found, beliefs.counts)
            moved = found != own
            if not moved.any():
                break
            _move(beliefs, coordinates[moved], own[moved], found[moved])
            own[:] = found
            moves += int(moved.sum())
        return moves

    def regroup(self, beliefs: Beliefs, most: int, held: Ints = NOBODY) -> int:
        """Group the newest images anew into as many categories as there are; returns how many moved.

        Categories without a member besides these images are given up, and the new groups get their ids; all others
        take part as they are without these images, and so do known classes and those that are ``held``, with all of
        theirs. ``most`` bounds images and categories together.
        """
        homes = self._settled_homes(beliefs)
        room = max(most - beliefs.living, 0)
        looked_at = np.flatnonzero((homes >= 0) & ~np.isin(homes, held))[-room:] if room else NOBODY
        counts = _without(beliefs, homes[looked_at])
        bare = np.flatnonzero(counts[: beliefs.known] <= ROUNDING)  # classes that people took all labelled images from
        counts[bare] = beliefs.counts[bare]  # they keep their images, which are looked at no more
        looked_at = looked_at[~np.isin(homes[looked_at], bare)]
        coordinates, own = self._kept("coordinates")[looked_at], homes[looked_at]
        fixed = np.flatnonzero((counts > ROUNDING) & (beliefs.counts > 1.0 - ROUNDING))
        free = np.setdiff1d(own, fixed)
        if len(free) < 2:
            return 0
        groups = self._grouped(beliefs, looked_at, fixed, counts[fixed], len(fixed) + len(free))
        found, old = np.empty_like(own), groups < len(fixed)
        found[old] = fixed[groups[old]]
        _, numbers = np.unique(groups[~old], return_inverse=True)
        found[~old] = carried_over(numbers, self._kept("answers")[looked_at][~old], free)[numbers]
        moved = found != own
        _move(beliefs, coordinates[moved], own[moved], found[moved])
        homes[looked_at] = found
        return int(moved.sum())

    def branch(self, beliefs: Beliefs, labelled: Sequence[Floats], most_chance: float) -> Ints:
        """Let kinds that known classes took in begin categories; returns the classes that they left ``(L,)``.

        ``labelled`` are labelled images of each known class ``(C,)`` of ``(., d)``; see ``offshoots.py``.
        """
        homes, left = self._settled_homes(beliefs), []
        joined = np.bincount(homes[homes >= 0], minlength=beliefs.size)[: len(labelled)]
        crowded = (-joined).argsort(kind="stable")[:CLASSES_AT_ONCE]
        for known in np.sort(crowded[joined[crowded] >= FEWEST_MEMBERS]).tolist():
            images, weight = np.flatnonzero(homes == known), beliefs.answer_weight
            members = self._kept("coordinates")[images]
            count = float(beliefs.counts[known]) - weight * len(images)
            total = beliefs.sums[known] - weight * members.sum(axis=0)
            leaving = offshoot(beliefs.model, members, labelled[known], count, total, most_chance / len(labelled))
            if leaving is None:
                continue
            fresh = np.full(np.count_nonzero(leaving), beliefs.size)
            beliefs.put(fresh[:1], np.zeros(1), np.zeros((1, beliefs.model.size)))
            _move(beliefs, members[leaving], homes[images[leaving]], fresh)
            homes[images[leaving]] = fresh
            left.append(known)
        return np.array(left, np.int64)

    def copy(self) -> Recent:
        """Return a copy whose images can move by themselves; only one of the two may be given more images."""
        other = copy.copy(self)
        other._storage = {**self._storage, "homes": self._storage["homes"].copy()}
        return other

    def keep(self, categories: Ints) -> None:
        """Follow categories ``(L,)``, ascending, that are numbered anew; images of others belong nowhere (-1)."""
        for name in ("answers", "homes"):
            held = self._kept(name)
            held[:] = np.where(np.isin(held, categories), np.searchsorted(categories, held), -1)

    def settle(self, index: int) -> int | None:
        """Let the image at a place in the stream move no more; returns where it was, ``None`` if it is not kept."""
        position = index - self.pushed_out
        if not 0 <= position < self._length:
            return None
        homes = self._kept("homes")
        home = int(homes[position])
        homes[position] = -1
        return home if home >= 0 else None

    def forget(self, pushed_out: int) -> None:
        """Forget all images; the next one is at this place in the stream."""
        self._first, self._length, self.pushed_out = 0, 0, pushed_out

    def thoughts(self) -> tuple[Ints, Ints, Ints]:
        """Return position ``(N,)`` in the stream, answer ``(N,)`` and present category ``(N,)``, oldest first."""
        return self.pushed_out + np.arange(len(self)), self._kept("answers").copy(), self._kept("homes").copy()

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything, oldest image first, ready for safetensors."""
        kept = {name: torch.from_numpy(self._kept(name).copy()) for name in _PARTS}
        return {**kept, "pushed_out": torch.tensor(self.pushed_out)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on with saved images."""
        self._length, self.pushed_out = 0, int(state["pushed_out"])
        self._add(*(state[name].numpy() for name in _PARTS))

    def _grouped(self, beliefs: Beliefs, images: Ints, fixed: Ints, counts: Floats, wanted: int) -> Ints:
        """Return groups ``(N,)`` of images ``(N,)``, below L those of fixed categories ``(L,)`` with other members."""
        coordinates, own = self._kept("coordinates")[images], self._kept("homes")[images]
        sums, place = beliefs.sums[fixed], np.searchsorted(fixed, own)
        known = fixed[np.minimum(place, len(fixed) - 1)] == own if len(fixed) else np.zeros(len(own), np.bool_)
        np.add.at(sums, place[known], -beliefs.weights(own[known])[:, None] * coordinates[known])
        means = sums / counts[:, None]
        # Coordinates that tell classes apart count for what they are: ψ of their variance 1 + ψ comes from classes.
        scale = np.sqrt(beliefs.model.psi / (1.0 + beliefs.model.psi))
        points = np.concatenate([means, coordinates]) * scale
        sizes = np.concatenate([counts, np.ones(len(own))])
        return ward(points, sizes, len(fixed), wanted)[len(fixed) :]

    def _settled_homes(self, beliefs: Beliefs) -> Ints:
        """Return a view of where images belong ``(N,)``, none of them where people left less than that puts there."""
        homes: Ints = self._kept("homes")
        held = np.bincount(homes[homes >= 0], minlength=beliefs.size) * beliefs.weights(np.arange(beliefs.size))
        short = held > beliefs.counts + ROUNDING
        homes[(homes >= 0) & short[homes]] = -1
        return homes

    def _kept(self, name: str) -> np.ndarray:
        return self._storage[name][self._first : self._first + self._length]

    def _add(self, *parts: np.ndarray) -> None:
        """Add images to the end; ``parts`` are in the order of ``_PARTS``."""
        arriving = len(parts[0])
        if not self.capacity:
            self.pushed_out += arriving
            return
        kept = min(arriving, self.capacity)
        leaving = max(self._length + kept - self.capacity, 0)
        self._first, self._length = self._first + leaving, self._length - leaving
        self.pushed_out += leaving + arriving - kept
        if self._first + self._length + kept > len(self._storage["answers"]):
            self._make_room(min(2 * max(self._length + kept, 64), 2 * self.capacity))
        end = self._first + self._length
        for name, part in zip(_PARTS, parts, strict=True):
            self._storage[name][end : end + kept] = part[arriving - kept :]
        self._length += kept

    def _make_room(self, room: int) -> None:
        """Move the kept images to the beginning of a storage with this much room."""
        for name in _PARTS:
            kept = self._kept(name)
            new = np.empty((room, *kept.shape[1:]), kept.dtype)
            new[: len(kept)] = kept
            self._storage[name] = new
        self._first = 0


def _without(beliefs: Beliefs, homes: Ints) -> Floats:
    """Return the counts ``(K,)`` of categories without images at home in ``(N,)``."""
    counts: Floats = beliefs.counts - np.bincount(homes, beliefs.weights(homes), beliefs.size)
    return counts


def _move(beliefs: Beliefs, coordinates: Floats, away: Ints, to: Ints) -> None:
    """Move images ``(N, d)`` from categories ``(N,)`` to others ``(N,)``."""
    touched = np.unique([away, to])
    counts, sums = beliefs.counts[touched], beliefs.sums[touched]
    for sign, where in ((-1.0, away), (1.0, to)):
        weights, place = sign * beliefs.weights(where), np.searchsorted(touched, where)
        np.add.at(counts, place, weights)
        np.add.at(sums, place, weights[:, None] * coordinates)
    counts[counts < ROUNDING] = 0.0
    sums[counts == 0.0] = 0.0
    beliefs.put(touched, counts, sums)


def _one_way(own: Ints, found: Ints, counts: Floats) -> Ints:
    """Return new homes ``(N,)`` such that no two categories change members: they go to the larger one, or the older.

    All images move at once, so that halves of a class which each fit the other best would change places for ever.
    """
    there, back = own * len(counts) + found, found * len(counts) + own
    smaller = (counts[found] < counts[own]) | ((counts[found] == counts[own]) & (found > own))
    return np.where((found != own) & smaller & np.isin(there, back), own, found)


def _best(beliefs: Beliefs, coordinates: Floats, own: Ints, hurdle: float) -> Ints:
    """Return the best category ``(N,)`` of images ``(N, d)``, their own one ``(N,)`` judged without them."""
    screened = beliefs.screen(beliefs.seen(coordinates))
    screened[np.arange(len(own)), own] = np.inf
    others = screened.argmin(axis=1)
    there = beliefs.log_odds(coordinates, others)
    weights = beliefs.weights(own)
    left = beliefs.predict(beliefs.counts[own] - weights, beliefs.sums[own] - weights[:, None] * coordinates)
    here = beliefs.log_density(coordinates, left) + beliefs.model.new_surprise(coordinates)
    here = np.where(np.isneginf(here), hurdle, here)  # alone in its own category
    return np.where((there > here) & (there >= hurdle), others, own)
