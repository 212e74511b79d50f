"""Answers to a batch by evidence, as if its images came one by one (layer: online).

Every answer changes the category that later images meet. Images are not answered in a loop, though: all are guessed,
then every image is answered again in front of the categories as the guesses before it would leave them, until no answer
changes. An answer is right once the guesses before it are, and the first one is right from the start; so what stays is
what one answer after another would have been. A few rounds do, because few images of a batch hang together.

*Codes* name categories inside a batch: 0 .. K-1 were there before, K + i is one that image i founds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from talon_ocd.memory.beliefs import Beliefs, Floats32, Prediction, screened
from talon_ocd.online.rules.assignment import Assignment, Floats, Ints

NOBODY = -1e3
"""Log-odds of a category that is not there; JSON has no infinity."""
Bools = npt.NDArray[np.bool_]
Hurdle = Callable[[Ints, Ints], Floats]
"""``(categories, answers) -> nats`` that evidence must reach ``(B,)``, given how many categories there are when an
image comes ``(B,)``, and how many answers came before it."""


class Left(NamedTuple):
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


class Round(NamedTuple):
    """Answers ``(B,)`` to all images as codes, and codes and log-odds of the two best categories ``(B, 2)``."""

    codes: Ints
    best: Ints
    odds: Floats


class Batch:
    """Images ``(B, d)`` in front of categories, of which known classes have ``favour`` nats ahead."""

    def __init__(self, beliefs: Beliefs, coordinates: Floats, hurdle: Hurdle, favour: float, learns: bool) -> None:
        self.beliefs, self.hurdle, self.favour, self.learns = beliefs, hurdle, favour, learns
        self._size, self._coordinates, self._order = beliefs.size, coordinates, np.arange(len(coordinates))
        self._new = beliefs.model.new_surprise(coordinates)
        self._seen = beliefs.seen(coordinates)
        self._screened = beliefs.screen(self._seen)
        beliefs.favour(self._screened[:, : beliefs.known], favour)

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
            if (found.codes == codes).all():
                break
            codes = found.codes
        last = np.flatnonzero(left.last)
        prediction = Prediction(left.prediction.levels[last], left.prediction.means.take(last, axis=0))
        sums, rows = left.sums.take(last, axis=0), left.rows.take(last, axis=0)
        ids = self._ids(codes)
        self.beliefs.put(ids(left.codes[last]), left.counts[last], sums, (prediction, rows))
        return self._assignment(found, ids(codes), ids(found.best))

    def _ids(self, answers: Ints) -> Callable[[Ints], Ints]:
        """Return what makes ids of codes if the codes ``(B,)`` are the answers; code -1 is nobody."""
        founded = self._founded(answers)
        if not founded.any():
            return lambda codes: codes
        ids = np.concatenate([np.arange(self._size), self._size - 1 + founded.cumsum(), [-1]])
        return lambda codes: ids[codes]

    def _founded(self, codes: Ints) -> Bools:
        founded: Bools = codes == self._size + self._order
        return founded

    def _guess(self) -> Ints:
        """Return codes ``(B,)`` as if the categories stayed as they are, from scores alone."""
        if not self._size:
            return self._size + self._order
        best = self._screened.argmin(axis=1)
        scores = self._screened[self._order, best]
        density = self.beliefs.log_density_of_scores(scores.astype(np.float64))
        return np.where(density + self._new >= self._calm, best, self._size + self._order)

    def _left(self, codes: Ints) -> Left:
        """Work out how images would leave their categories if codes ``(B,)`` were the answers."""
        images = self._order if self.learns else np.flatnonzero(self._founded(codes))
        if not len(images):
            return self._nothing_left(codes)
        changed = codes[images]
        order = changed.argsort(kind="stable")
        together = changed[order[1:]] == changed[order[:-1]]
        places, heirs = order[:-1][together], order[1:][together]
        counts, sums = self._handed_on(images, places, heirs)
        weights = self.beliefs.weights(changed)
        counts *= weights
        sums *= weights[:, None]
        old = changed < self._size
        if old.all():
            counts += self.beliefs.counts.take(changed)
            sums += self.beliefs.sums.take(changed, axis=0)
        else:
            counts[old] += self.beliefs.counts[changed[old]]
            sums[old] += self.beliefs.sums[changed[old]]
        prediction = self.beliefs.predict(counts, sums)
        until = np.full(len(images), len(self._order))
        until[places] = images[heirs]
        came = self._order[:, None]
        met = (images < came) & (came <= until)
        last = until == len(self._order)
        return Left(codes, changed, counts, sums, prediction, self.beliefs.screen_rows(prediction), met, last)

    def _nothing_left(self, codes: Ints) -> Left:
        """Return what it is if no image changes anything."""
        none, met = self._order[:0], np.empty((len(codes), 0), np.bool_)
        unchanged = self.beliefs.prediction(none)
        rows, last = self._seen.rows[:0], np.empty(0, np.bool_)
        return Left(codes, none, np.empty(0), unchanged.means, unchanged, rows, met, last)

    def _handed_on(self, images: Ints, places: Ints, heirs: Ints) -> tuple[Floats, Floats]:
        """Return how many images ``(L,)`` and what sums of them ``(L, d)`` each has of its category up to itself.

        Those at ``places`` hand on what they have to their ``heirs``, in turn.
        """
        sums = self._coordinates.take(images, axis=0)
        counts, rows = [1.0] * len(images), list(sums)
        for place, heir in zip(places.tolist(), heirs.tolist(), strict=True):
            counts[heir] += counts[place]
            rows[heir] += rows[place]
        return np.array(counts), sums

    def _round(self, left: Left | None) -> Round:
        """Answer every image in front of the categories that those before it left, or as if there were none."""
        best = _two_smallest(self._scores(left))
        odds = self._density(best, left) + (self._new - self._hurdle_of_each(left))[:, None]
        odds += self.favour * ((best >= 0) & (best < self.beliefs.known))
        # Columns are in the order of codes; only odds that rounding makes equal can come the other way round.
        swap = np.flatnonzero(odds[:, 1] >= odds[:, 0])
        if len(swap):
            tied = (odds[swap, 1] == odds[swap, 0]) & ((best[swap, 1] < 0) | (best[swap, 1] > best[swap, 0]))
            swap = swap[~tied]
            best[swap], odds[swap] = best[swap, ::-1], odds[swap, ::-1]
        codes = np.where(odds[:, 0] >= 0.0, best[:, 0], self._size + self._order)
        return Round(self._followed(codes), best, odds)

    def _followed(self, codes: Ints) -> Ints:
        """Send images after a founder that joins another category by now, as far as that goes."""
        fresh = np.flatnonzero(codes >= self._size)
        while len(fresh):
            followed = codes[codes[fresh] - self._size]
            moved = followed != codes[fresh]
            fresh, followed = fresh[moved], followed[moved]
            codes[fresh] = followed
            fresh = fresh[followed >= self._size]
        return codes

    def _hurdle_of_each(self, left: Left | None) -> Floats:
        """Return what the evidence must reach when each image comes ``(B,)``."""
        if left is None:
            nothing = 0 * self._order
            return self.hurdle(self.beliefs.living + nothing, nothing)
        founded = self._founded(left.answers)
        if not founded.any():
            return self._calm
        return self.hurdle(self.beliefs.living + (founded.cumsum() - founded), self._order)

    @cached_property
    def _calm(self) -> Floats:
        """What it is if no image before founds a category: often none does, and it is asked for twice."""
        return self.hurdle(self.beliefs.living + 0 * self._order, self._order)

    def _scores(self, left: Left | None) -> Floats32:
        """Return scores ``(B, K + B)`` of categories by their codes, as each image meets them."""
        scores = np.full((len(self._order), self._size + max(len(self._order), 2)), np.inf, np.float32)
        scores[:, : self._size] = self._screened
        if left is not None and len(left.codes):
            columns = screened(self._seen, left.prediction.levels, left.rows)
            known = np.flatnonzero(left.codes < self.beliefs.known)
            if len(known):
                favoured = columns[:, known]
                self.beliefs.favour(favoured, self.favour)
                columns[:, known] = favoured
            places = self._order[:, None] * scores.shape[1] + left.codes
            met = np.flatnonzero(left.met)  # a third of what pairs of indices take, half of what masks do
            scores.reshape(-1)[places.take(met)] = columns.take(met)
        return scores

    def _density(self, codes: Ints, left: Left | None) -> Floats:
        """Return exact log-densities ``(B, 2)`` in categories ``(B, 2)`` as each image meets them; -1 is nobody."""
        prediction = self.beliefs.prediction(np.minimum(codes, self._size - 1))
        if left is not None and len(left.codes):
            met = left.met[:, None] & (left.codes == codes[:, :, None])
            pair, by = np.divmod(np.flatnonzero(met), len(left.codes))  # a tenth of what nonzero takes
            prediction.levels.reshape(-1)[pair] = left.prediction.levels.take(by)
            prediction.means.reshape(-1, self.beliefs.model.size)[pair] = left.prediction.means.take(by, axis=0)
        prediction.levels[codes < 0] = 0
        return self.beliefs.log_density(self._coordinates[:, None], prediction, spoils=True)

    def _assignment(self, found: Round, ids: Ints, best: Ints) -> Assignment:
        """Return answers ``(B,)`` with ids; who founds a category has the best of the others for its runner-up."""
        founded = self._founded(found.codes)
        odds = np.maximum(found.odds, NOBODY)
        runner_ups = np.where(founded, best[:, 0], best[:, 1])
        return Assignment(ids, founded, odds[:, 0], runner_ups, np.where(founded, odds[:, 0], odds[:, 1]))


def _two_smallest(scores: Floats32) -> Ints:
    """Return where the two smallest of each row ``(B, N)`` are ``(B, 2)``, -1 for infinity; spoils ``scores``."""
    flat, starts = scores.reshape(-1), np.arange(0, scores.size, scores.shape[1])
    found = np.empty((len(scores), 2), np.int64)
    for place in range(2):
        best = scores.argmin(axis=1)
        where = starts + best
        best[flat.take(where) == np.inf] = -1
        found[:, place] = best
        flat[where] = np.inf
    return found
