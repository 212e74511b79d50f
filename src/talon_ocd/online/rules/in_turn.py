"""Answers to a batch by evidence, as if its images came one by one (layer: online).

Every answer changes the category that later images meet. Images are not answered in a loop, though: all are guessed,
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
Prior = Callable[[Ints, Ints, Ints], tuple[Floats, Floats]]
"""``(categories, answers, discovered) -> nats`` that evidence must reach ``(B,)``, and that known classes have ahead
``(B,)``, given how many categories there are when an image comes ``(B,)``, how many answers came before it, and how
many of these were discovered categories."""


@dataclass(frozen=True)
class Left:
    """Categories as L images leave them: those that change something, all of them if the stream learns.

    Attributes:
        answers: codes of all images ``(B,)``.
        codes: the categories ``(L,)``.
        counts: members by then ``(L,)``.
        sums: sums of their coordinates ``(L, d)``.
        prediction: where next members are expected then.
        rows: what ``Beliefs.screen_rows`` makes of it ``(L, d + 1)``.
        met: whether image j meets the category like this ``(B, L)``, j first.
        last: whether no other image changes the category later ``(L,)``.
    """

    answers: Ints
    codes: Ints
    counts: Floats
    sums: Floats
    prediction: Prediction
    rows: Floats32
    met: Bools
    last: Bools


@dataclass(frozen=True)
class Round:
    """Answers ``(B,)`` to all images as codes, and codes and log-odds of the two best categories ``(B, 2)``."""

    codes: Ints
    best: Ints
    odds: Floats


class Batch:
    """Images ``(B, d)`` in front of categories."""

    def __init__(self, beliefs: Beliefs, coordinates: Floats, prior: Prior, learns: bool) -> None:
        self.beliefs, self.prior, self.learns = beliefs, prior, learns
        self._size, self._coordinates, self._order = beliefs.size, coordinates, np.arange(len(coordinates))
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
        for _ in range(len(self._order) + 1):  # each round makes at least one more answer right
            left = self._left(codes)
            found = self._round(left)
            if np.array_equal(found.codes, codes):
                break
            codes = found.codes
        fresh = self._size - 1 + np.cumsum(self._founded(codes))
        ids = np.concatenate([np.arange(self._size), fresh, [-1]])  # the last one is for code -1, nobody
        last = np.flatnonzero(left.last)
        prediction = Prediction(left.prediction.levels[last], left.prediction.means[last])
        self.beliefs.put(ids[left.codes[last]], left.counts[last], left.sums[last], (prediction, left.rows[last]))
        return self._assignment(found, ids[codes], ids[found.best])

    def _founded(self, codes: Ints) -> Bools:
        founded: Bools = codes == self._size + self._order
        return founded

    def _guess(self) -> Ints:
        """Return codes ``(B,)`` as if every image came next, from scores alone."""
        if not self._size:
            return self._size + self._order
        hurdle, favour = self._prior_of_each(None)
        scores = self._scores(None, favour)
        best = scores.argmin(axis=1)
        density = self.beliefs.log_density_of_scores(scores[self._order, best].astype(np.float64))
        return np.where(density + self._new >= hurdle, best, self._size + self._order)

    def _left(self, codes: Ints) -> Left:
        """Work out how images would leave their categories if codes ``(B,)`` were the answers."""
        images = self._order if self.learns else np.flatnonzero(self._founded(codes))
        changed, came = codes[images], self._order[:, None]
        later = (changed == changed[:, None]) & (images > images[:, None])
        last = ~later.any(axis=1)
        heirs = later.argmax(axis=1) if len(images) else images
        counts, sums = np.ones(len(images)), self._coordinates[images]
        for place in np.flatnonzero(~last):  # in turn: each hands on what it has from those before
            counts[heirs[place]] += counts[place]
            sums[heirs[place]] += sums[place]
        weights = self.beliefs.weights(changed)
        counts *= weights
        sums *= weights[:, None]
        old = np.flatnonzero(changed < self._size)
        counts[old] += self.beliefs.counts[changed[old]]
        sums[old] += self.beliefs.sums[changed[old]]
        prediction = self.beliefs.predict(counts, sums)
        met = (images < came) & (last | (came <= images[heirs]))
        return Left(codes, changed, counts, sums, prediction, self.beliefs.screen_rows(prediction), met, last)

    def _round(self, left: Left | None) -> Round:
        """Answer every image in front of the categories that those before it left, or as if there were none."""
        hurdle, favour = self._prior_of_each(left)
        best = _two_smallest(self._scores(left, favour))
        odds = self._density(best, left) + (self._new - hurdle)[:, None]
        odds += favour[:, None] * ((best >= 0) & (best < self.beliefs.known))
        # Columns are in the order of codes; only odds that rounding makes equal can come the other way round.
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

    def _prior_of_each(self, left: Left | None) -> tuple[Floats, Floats]:
        """Return what the evidence must reach, and what known classes have ahead, when each image comes ``(B,)``."""
        living, nothing = np.full(len(self._order), self.beliefs.living), 0 * self._order
        if left is None:
            return self.prior(living, nothing, nothing)
        discovered = _number_before(left.answers >= self.beliefs.known)
        return self.prior(living + _number_before(self._founded(left.answers)), self._order, discovered)

    def _scores(self, left: Left | None, favour: Floats) -> Floats32:
        """Return scores ``(B, K + B)`` of categories by their codes, as each image meets them."""
        scores = np.full((len(self._order), self._size + max(len(self._order), 2)), np.inf, np.float32)
        scores[:, : self._size] = self._screened
        if left is not None:
            columns = screened(self._seen, left.prediction.levels, left.rows)
            places = self._order[:, None] * scores.shape[1] + left.codes
            np.put(scores, places[left.met], columns[left.met])  # a third of what pairs of indices take
        self.beliefs.favour(scores[:, : self.beliefs.known], favour[:, None])
        return scores

    def _density(self, codes: Ints, left: Left | None) -> Floats:
        """Return exact log-densities ``(B, 2)`` in categories ``(B, 2)`` as each image meets them; -1 is nobody."""
        prediction = self.beliefs.prediction(np.where(codes < self._size, codes, 0))
        if left is not None:
            met = left.met[:, None] & (left.codes == codes[:, :, None])
            image, place, by = np.unravel_index(np.flatnonzero(met), met.shape)  # a tenth of what nonzero takes
            prediction.levels[image, place] = left.prediction.levels[by]
            prediction.means[image, place] = left.prediction.means[by]
        prediction.levels[codes < 0] = 0
        return self.beliefs.log_density(self._coordinates[:, None], prediction)

    def _assignment(self, found: Round, ids: Ints, best: Ints) -> Assignment:
        """Return answers ``(B,)`` with ids; who founds a category has the best of the others for its runner-up."""
        founded = self._founded(found.codes)
        odds = np.maximum(found.odds, NOBODY)
        runner_ups = np.where(founded, best[:, 0], best[:, 1])
        return Assignment(ids, founded, odds[:, 0], runner_ups, np.where(founded, odds[:, 0], odds[:, 1]))


def _number_before(happens: Bools) -> Ints:
    """Return how often something that happens or not with each image ``(B,)`` did before it ``(B,)``."""
    before: Ints = happens.cumsum() - happens
    return before


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
