"""What is believed of every category: number and sum of its members (layer: memory).

Known classes come first, discovered categories follow in order of creation; ids are positions and are never reused. A
category that lost all its members to others is *empty*: it keeps its id, and no image joins it any more.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from talon_ocd.errors import DataError
from talon_ocd.memory.two_covariance import MOST_COUNTED, Floats, TwoCovariance

Ints = npt.NDArray[np.int64]
Floats32 = npt.NDArray[np.float32]
GROWTH = 1.5
ROUNDING = 1e-6
"""So that whole numbers of members stay whole, in whatever order parts of them were added."""
MOST_EXPONENT = 60.0
"""Of a factor that makes scores better or worse. Farther from 0, float32 has nothing but 0 and infinity, with room for
the scores of images far away, and infinity times 0 is no number."""
_PARTS = ("_counts", "_sums", "_levels", "_means", "_screen")


class Prediction(NamedTuple):
    """Where the next members of L categories are expected.

    Attributes:
        levels: numbers of members that count ``(L,)``: they say how far members will lie from the mean.
        means: ``(L, d)``.
    """

    levels: Ints
    means: Floats


class Seen(NamedTuple):
    """Images z as the screen wants them.

    Attributes:
        rows: ``z, 1`` ``(B, d + 1)``.
        unplaced: scores for every number of members that counts, were the mean at 0 ``(B, MOST_COUNTED + 1)``.
    """

    rows: Floats32
    unplaced: Floats32


class Beliefs:
    """Counts ``(K,)`` and sums ``(K, d)`` of members in the coordinates of a model.

    Attributes:
        model: the two Gaussians.
        answer_weight: what a member counts that an answer adds to a known class; labelled ones and all members of
            discovered categories count 1.
        known: C, the number of known classes.
        size: K, the number of categories, empty ones included.
        living: categories with members.
    """

    def __init__(self, model: TwoCovariance, counts: Floats, sums: Floats, answer_weight: float = 1.0) -> None:
        _check(model, counts, sums)
        self.answer_weight = answer_weight
        self.model, self.known, self.size, self.living = model, len(counts), len(counts), 0
        levels = np.arange(MOST_COUNTED + 1.0)
        # A mean at 1 shows how far the prior pulls it back. Means aside, all depends on the number of members only.
        self._pull, variances, self._volume = model.predictive(levels, np.repeat(levels[:, None], model.size, axis=1))
        self._precision = 1.0 / variances
        if math.isinf(model.tail):
            weight, base = np.ones(len(levels)), 2.0 * self._volume
        else:
            # Density falls with (ν + distance) e^(2 volume / (ν + d)): a product that is linear in z and z².
            weight = np.exp(2.0 * self._volume / (model.tail + model.size))
            base = model.tail * weight
        base[0] = np.inf  # nobody joins an empty category
        self._weighted = (weight[:, None] * self._precision).astype(np.float32)
        self._unplaced = torch.from_numpy(base.astype(np.float32)), torch.from_numpy(self._weighted).T
        self._counts, self._sums = counts.astype(np.float64), sums.astype(np.float64)
        self._levels, self._means = np.zeros(len(counts), np.int64), np.zeros(sums.shape)
        self._screen = np.zeros((len(counts), model.size + 1), np.float32)
        self._refresh(np.arange(self.size))
        self._grow(max(self.size, 1))

    @property
    def counts(self) -> Floats:
        """Members of each category ``(K,)``, a view."""
        return self._counts[: self.size]

    @property
    def sums(self) -> Floats:
        """Sums of members' coordinates ``(K, d)``, a view."""
        return self._sums[: self.size]

    def prediction(self, categories: Ints) -> Prediction:
        """Say where the next members of categories ``(L,)`` are expected."""
        return Prediction(self._levels.take(categories), self._means.take(categories, axis=0))

    def found(self, member: Floats) -> int:
        """Make a category of one member ``(d,)``; returns its id."""
        self.put(np.array([self.size]), np.ones(1), member[None])
        return self.size - 1

    def weights(self, categories: Ints) -> Floats:
        """Return what a member counts ``(L,)`` that an answer adds to categories ``(L,)``."""
        return np.where(categories < self.known, self.answer_weight, 1.0)

    def join(self, category: int, member: Floats) -> None:
        """Add a member ``(d,)`` to a category: the conjugate update."""
        only = np.array([category])
        weight = self.weights(only)
        self.put(only, self._counts[only] + weight, self._sums[only] + weight * member)

    def leave(self, category: int, member: Floats) -> None:
        """Take a member ``(d,)`` out of a category again; one without members has nothing to give."""
        only = np.array([category])
        weight = self.weights(only)
        count = self._counts[only] - weight
        if count[0] >= -ROUNDING:
            left = count > ROUNDING
            self.put(only, count * left, (self._sums[only] - weight * member) * left)

    def put(
        self, categories: Ints, counts: Floats, sums: Floats, derived: tuple[Prediction, Floats32] | None = None
    ) -> None:
        """Put counts ``(L,)`` and sums ``(L, d)`` in place for distinct categories ``(L,)``; K, K + 1, ... are new.

        ``derived`` are what ``predict`` and ``screen_rows`` make of them, if that is known already.
        """
        self.size = max(self.size, int(categories.max(initial=-1)) + 1)
        if self.size > len(self._counts):
            self._grow(max(int(self.size * GROWTH), 16))
        self._counts[categories], self._sums[categories] = counts, sums
        self._refresh(categories, derived)

    def keep(self, categories: Ints) -> None:
        """Keep only these categories ``(L,)``, ascending, known classes among them; they are numbered anew."""
        for name in _PARTS:
            setattr(self, name, getattr(self, name)[categories].copy())
        self.size = len(categories)
        self.living = int(np.count_nonzero(self._levels))
        self._grow(max(self.size, 1))

    def predict(self, counts: Floats, sums: Floats) -> Prediction:
        """Say where the next members of categories with counts ``(L,)`` and sums ``(L, d)`` are expected."""
        levels = (np.minimum(counts, MOST_COUNTED) + ROUNDING).astype(np.int64)
        means = sums / np.maximum(counts, 1.0)[:, None]
        means *= self._pull.take(levels, axis=0)
        return Prediction(levels, means)

    def screen_rows(self, prediction: Prediction) -> Floats32:
        """Return ``(L, d + 1)``: products with ``z, 1`` are what means of categories change in their scores."""
        rows = np.empty((len(prediction.levels), self.model.size + 1), np.float32)
        means = prediction.means.astype(np.float32)
        leaning = self._weighted.take(prediction.levels, axis=0)
        leaning *= means
        rows[:, -1] = np.einsum("ld,ld->l", leaning, means)
        np.multiply(leaning, -2.0, out=rows[:, :-1])
        return rows

    def seen(self, coordinates: Floats) -> Seen:
        """Return images ``(B, d)`` as the screen wants them."""
        rows = np.empty((len(coordinates), self.model.size + 1), np.float32)
        rows[:, :-1], rows[:, -1] = coordinates, 1.0
        base, weighted = self._unplaced
        unplaced = torch.addmm(base, torch.from_numpy(rows[:, :-1]).square(), weighted)
        return Seen(rows, unplaced.numpy())

    def screen(self, seen: Seen, categories: Ints | slice = slice(None)) -> Floats32:
        """Return float32 ``(B, L)`` that are the smaller, the better a category explains an image."""
        levels, rows = self._levels[: self.size], self._screen[: self.size]
        return screened(seen, levels[categories], rows[categories])

    def log_density(self, coordinates: Floats, prediction: Prediction, spoils: bool = False) -> Floats:
        """Return the log-density ``(L,)``, up to a constant, of coordinates ``(L, d)`` as next members of L categories.

        -inf for an empty one. ``-model.new_surprise`` is that of a new one. L may be more than one dimension. It is
        faster if the means of the prediction aren't needed any more, so that it ``spoils`` them.
        """
        away = np.subtract(coordinates, prediction.means, out=prediction.means if spoils else None)
        away *= away
        distances = np.einsum("...d,...d->...", away, self._precision.take(prediction.levels, axis=0))
        density = -self.model.surprise(distances) - self._volume[prediction.levels]
        density[prediction.levels == 0] = -np.inf
        return density

    def log_density_of_scores(self, scores: Floats) -> Floats:
        """Return what ``log_density`` would be, were the scores ``(B,)`` of ``screen`` exact."""
        if math.isinf(self.model.tail):
            return -0.5 * scores
        tail, size = self.model.tail, self.model.size
        density: Floats = -0.5 * (tail + size) * np.log(np.maximum(scores, tail) / tail)
        return density

    def favour(self, scores: Floats32, nats: float) -> None:
        """Make scores of ``screen`` better in place, as if the densities behind them were larger by so many nats."""
        if math.isinf(self.model.tail):
            scores -= np.float32(2.0 * nats)
        else:
            exponent = -2.0 * nats / (self.model.tail + self.model.size)
            scores *= np.float32(math.exp(min(max(exponent, -MOST_EXPONENT), MOST_EXPONENT)))

    def log_odds(self, coordinates: Floats, categories: Ints) -> Floats:
        """Return the exact evidence ``(B,)`` of a category each against a new one; -inf for an empty one."""
        return self.log_density(coordinates, self.prediction(categories)) + self.model.new_surprise(coordinates)

    def log_evidence(self) -> float:
        """Return the log-density of all members together, but for what is the same however they are grouped.

        With answers in known classes that count less than 1, as everywhere, it leans a little towards discovered
        categories, where they count fully.
        """
        return float(self.model.log_evidence(self.counts, self.sums).sum())

    def copy(self) -> Beliefs:
        """Return a copy that learns by itself."""
        other = copy.copy(self)
        for name in _PARTS:
            setattr(other, name, getattr(self, name).copy())
        return other

    def state_dict(self) -> dict[str, Tensor]:
        """Return counts, sums and the number of known classes, ready for safetensors."""
        return {
            "counts": torch.from_numpy(self.counts.copy()),
            "sums": torch.from_numpy(self.sums.copy()),
            "known": torch.tensor(self.known),
        }

    @classmethod
    def from_state_dict(cls, model: TwoCovariance, state: Mapping[str, Tensor], answer_weight: float = 1.0) -> Beliefs:
        """Go on with saved counts and sums."""
        beliefs = cls(model, state["counts"].numpy(), state["sums"].numpy(), answer_weight)
        beliefs.known = int(state["known"])
        if not 0 <= beliefs.known <= beliefs.size:
            raise DataError(
                f"saved categories: {beliefs.known} of {beliefs.size} can't be known; load another copy of the model."
            )
        return beliefs

    def _refresh(self, categories: Ints, derived: tuple[Prediction, Floats32] | None = None) -> None:
        """Keep what follows from counts and sums of distinct categories ``(L,)``; work it out if it is not given."""
        if derived is None:
            prediction = self.predict(self._counts[categories], self._sums[categories])
            derived = prediction, self.screen_rows(prediction)
        prediction, rows = derived
        self.living += int(np.count_nonzero(prediction.levels)) - int(np.count_nonzero(self._levels[categories]))
        self._levels[categories], self._means[categories] = prediction.levels, prediction.means
        self._screen[categories] = rows

    def _grow(self, capacity: int) -> None:
        for name in _PARTS:
            old = getattr(self, name)
            new = np.zeros((capacity, *old.shape[1:]), old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)


def screened(seen: Seen, levels: Ints, rows: Floats32) -> Floats32:
    """Return scores ``(B, L)`` of categories with levels ``(L,)`` and rows of ``Beliefs.screen_rows`` ``(L, d + 1)``.

    z² meets numbers of members, not categories: there are fewer of those, and the product is half as large.
    """
    result: Floats32 = seen.unplaced.take(levels, axis=1)
    torch.from_numpy(result).addmm_(torch.from_numpy(seen.rows), torch.from_numpy(rows).T)  # faster than numpy's
    return result


def _check(model: TwoCovariance, counts: Floats, sums: Floats) -> None:
    if counts.ndim != 1 or sums.shape != (len(counts), model.size):
        raise DataError(
            f"counts {counts.shape} and sums {sums.shape} of categories don't fit each other or {model.size} "
            "coordinates; load another copy of the model."
        )
    if not np.isfinite(counts).all() or not np.isfinite(sums).all() or (counts < 0).any():
        raise DataError(
            "counts and sums of categories must be finite, and counts not negative; load another copy of the model."
        )
