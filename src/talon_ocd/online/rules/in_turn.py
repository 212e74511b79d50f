"""Answers to a batch by evidence, as if its images came one by one (layer: online).

Every answer changes the category that later images meet. There is no loop over images, though: all answers are guessed,
then every image is answered again in front of the categories as the guesses before it would leave them, until no answer
changes. An answer is right once the guesses before it are, and the first one is right from the start; so what stays is
what one answer after another would have been. A few rounds do, because few images of a batch hang together.

*Codes* name categories inside a batch: 0 .. K-1 were there before, K + i is one that image i founds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from talon_ocd.memory.beliefs import Beliefs, Floats32, Prediction, screened
from talon_ocd.online.rules.assignment import Assignment, Floats, Ints

NOBODY = -1e3
"""Log-odds of a category that is not there; JSON has no infinity."""
Bools = npt.NDArray[np.bool_]
Hurdle = Callable[[Ints, Ints, Ints], Floats]
"""``(categories, answers, discovered) -> nats`` that evidence must reach, given how many categories there are when an
image comes ``(B,)``, how many answers came before it, and how many of these were discovered categories."""
Favour = Callable[[Ints, Ints], Floats]
"""``(answers, discovered) -> nats`` that known classes have ahead, given how many answers came before an image
``(B,)`` and how many of these were discovered categories."""


@dataclass(frozen=True)
class Left:
    """Categories as images leave them: row i is the category of image i, with image i in it.

    Attributes:
        codes: the categories ``(B,)``.
        counts: members by then ``(B,)``.
        sums: sums of their coordinates ``(B, d)``.
        prediction: where next members are expected then.
        rows: the same, as ``Beliefs.screen_rows`` has it ``(B, d + 1)``.
        met: whether image j meets the category like this ``(B, B)``, j first.
        first: whether the image is the first to change its category ``(B,)``.
        last: whether it is the last ``(B,)``.
    """

    codes: Ints
    counts: Floats
    sums: Floats
    prediction: Prediction
    rows: Floats32
    met: Bools
    first: Bools
    last: Bools


@dataclass(frozen=True)
class Round:
    """Answers ``(B,)`` to all images as codes, and codes and log-odds of the two best categories ``(B, 2)``."""

    codes: Ints
    best: Ints
    odds: Floats


class Batch:
    """Images ``(B, d)`` in front of categories."""

    def __init__(self, beliefs: Beliefs, coordinates: Floats, hurdle: Hurdle, favour: Favour, learns: bool) -> None:
        self.beliefs, self.hurdle, self.favour, self.learns = beliefs, hurdle, favour, learns
        self._size, self._coordinates, self._order = beliefs.size, coordinates, np.arange(len(coordinates))
        self._earlier = self._order < self._order[:, None]
        self._new = beliefs.model.new_surprise(coordinates)
        self._seen = beliefs.seen(coordinates)
        self._screened = beliefs.screen(self._seen)

    def look(self) -> Assignment:
        """Answer every image as if it came next."""
        found = self._round(None)
        return self._assignment(found, np.minimum(found.codes, self._size), found.best)

    def answer(self) -> Assignment:
        """Answer one image after another and let the beliefs learn from all of them."""
        codes = self._guess()
        while True:
            left = self._left(codes)
            found = self._round(left)
            if np.array_equal(found.codes, codes):
                break
            codes = found.codes
        fresh = self._size - 1 + np.cumsum(self._founded(codes))
        ids = np.concatenate([np.arange(self._size), fresh, [-1]])  # the last one is for code -1, nobody
        last = np.flatnonzero(left.last)
        prediction = Prediction(left.prediction.levels[last], left.prediction.means[last])
        self.beliefs.put(ids[codes[last]], left.counts[last], left.sums[last], (prediction, left.rows[last]))
        return self._assignment(found, ids[codes], ids[found.best])

    def _founded(self, codes: Ints) -> Bools:
        founded: Bools = codes == self._size + self._order
        return founded

    def _guess(self) -> Ints:
        """Return codes ``(B,)`` as if every image came next, from scores alone."""
        if not self._size:
            return self._size + self._order
        scores, nothing = self._screened.copy(), 0 * self._order
        self.beliefs.favour(scores[:, : self.beliefs.known], self.favour(nothing, nothing)[:, None])
        best = scores.argmin(axis=1)
        density = self.beliefs.log_density_of_scores(scores[self._order, best].astype(np.float64))
        joins = density + self._new >= self.hurdle(np.full(len(best), self.beliefs.living), self._order, nothing)
        return np.where(joins, best, self._size + self._order)

    def _left(self, codes: Ints) -> Left:
        """Work out how images would leave their categories if codes ``(B,)`` were the answers."""
        changes = self._founded(codes) | self.learns
        changed = np.where(changes, codes, -1 - self._order)  # who changes nothing has nothing in common with anybody
        same = changed == changed[:, None]
        earlier, later = same & self._earlier, same & self._earlier.T
        counts, sums = 1.0 + earlier.sum(axis=1), self._coordinates.copy()
        follows = np.flatnonzero(counts > 1.0)  # few do, so that this product is small
        sums[follows] += earlier[follows].astype(np.float64) @ self._coordinates
        weights = self.beliefs.weights(codes)
        counts, sums = weights * counts, weights[:, None] * sums
        old = np.flatnonzero(codes < self._size)
        counts[old] += self.beliefs.counts[codes[old]]
        sums[old] += self.beliefs.sums[codes[old]]
        last = ~later.any(axis=1)
        until = np.where(last, len(codes), later.argmax(axis=1))
        met = self._earlier & changes & (self._order[:, None] <= until)
        first = changes & ~earlier.any(axis=1)
        prediction = self.beliefs.predict(counts, sums)
        rows = self.beliefs.screen_rows(prediction)
        return Left(codes, counts, sums, prediction, rows, met, first, changes & last)

    def _round(self, left: Left | None) -> Round:
        """Answer every image in front of the categories that those before it left, or as if there were none."""
        favour = self._favour(left)
        columns = _two_smallest(self._scores(left, favour))
        best, odds = columns.copy(), self._odds(columns, left)
        if left is not None:
            fresh = columns >= self._size
            best[fresh] = left.codes[columns[fresh] - self._size]
        odds += favour[:, None] * ((best >= 0) & (best < self.beliefs.known))
        tied = (odds[:, 1] == odds[:, 0]) & (best[:, 1] >= 0) & (best[:, 1] < best[:, 0])
        swap = tied | (odds[:, 1] > odds[:, 0])
        best[swap], odds[swap] = best[swap, ::-1], odds[swap, ::-1]
        codes = np.where(odds[:, 0] >= 0.0, best[:, 0], self._size + self._order)
        while not np.array_equal(codes, followed := self._followed(codes)):
            codes = followed
        return Round(codes, best, odds)

    def _followed(self, codes: Ints) -> Ints:
        """Send images after a founder that joins another category by now."""
        followed, fresh = codes.copy(), codes >= self._size
        followed[fresh] = codes[codes[fresh] - self._size]
        return followed

    def _favour(self, left: Left | None) -> Floats:
        """Return what known classes have ahead of discovered ones when each image comes ``(B,)``, in nats."""
        if left is None:
            return self.favour(0 * self._order, 0 * self._order)
        return self.favour(self._order, self._discovered(left.codes))

    def _discovered(self, codes: Ints) -> Ints:
        """Return how many images before each one ``(B,)`` are of discovered categories if codes ``(B,)`` are so."""
        discovered = (codes >= self.beliefs.known).astype(np.int64)
        before: Ints = np.cumsum(discovered) - discovered
        return before

    def _scores(self, left: Left | None, favour: Floats) -> Floats32:
        """Return scores ``(B, K + B)`` of categories as they were before, and as each image left its own."""
        batch = len(self._order)
        scores = np.empty((batch, self._size + max(batch, 2)), np.float32)
        scores[:, : self._size], scores[:, self._size :] = self._screened, np.inf
        if left is not None:
            columns = screened(self._seen, left.prediction.levels, left.rows)
            np.copyto(scores[:, self._size : self._size + batch], columns, where=left.met)
            leaving = np.flatnonzero(left.first & (left.codes < self._size))
            later, left_by = np.nonzero(self._earlier[:, leaving])
            scores[later, left.codes[leaving[left_by]]] = np.inf
            own = self._size + np.flatnonzero(left.codes < self.beliefs.known)
            known = scores[:, own]
            self.beliefs.favour(known, favour[:, None])
            scores[:, own] = known
        self.beliefs.favour(scores[:, : self.beliefs.known], favour[:, None])
        return scores

    def _odds(self, columns: Ints, left: Left | None) -> Floats:
        """Return exact log-odds ``(B, 2)`` of scored columns ``(B, 2)`` against a new category, as if discovered."""
        flat = columns.ravel()
        prediction = self.beliefs.prediction(np.where(flat < self._size, flat, 0))
        living, answered, discovered = np.full(len(columns), self.beliefs.living), 0 * self._order, 0 * self._order
        if left is not None:
            fresh = np.flatnonzero(flat >= self._size)
            prediction.levels[fresh] = left.prediction.levels[flat[fresh] - self._size]
            prediction.means[fresh] = left.prediction.means[flat[fresh] - self._size]
            founded = self._founded(left.codes)
            living, answered = living + np.cumsum(founded) - founded, self._order
            discovered = self._discovered(left.codes)
        prediction.levels[flat < 0] = 0
        density = self.beliefs.log_density(np.repeat(self._coordinates, 2, axis=0), prediction)
        odds: Floats = density.reshape(-1, 2) + (self._new - self.hurdle(living, answered, discovered))[:, None]
        return odds

    def _assignment(self, found: Round, ids: Ints, best: Ints) -> Assignment:
        """Return answers ``(B,)`` with ids; who founds a category has the best of the others for its runner-up."""
        founded = self._founded(found.codes)
        odds = np.maximum(found.odds, NOBODY)
        runner_ups = np.where(founded, best[:, 0], best[:, 1])
        return Assignment(ids, founded, odds[:, 0], runner_ups, np.where(founded, odds[:, 0], odds[:, 1]))


def _two_smallest(scores: Floats32) -> Ints:
    """Return where the two smallest of each row ``(B, N)`` are ``(B, 2)``, -1 for infinity; spoils ``scores``."""
    rows = np.arange(len(scores))
    first = scores.argmin(axis=1)
    smallest = scores[rows, first]
    scores[rows, first] = np.inf
    second = scores.argmin(axis=1)
    found = np.stack([first, second], axis=1)
    found[np.isinf(np.stack([smallest, scores[rows, second]], axis=1))] = -1
    return found
