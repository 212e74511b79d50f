"""Reading a catalog: categories, pages of them, their images, what happened (layer: catalog).

Everything here may be called from any thread, also while the stream answers and people edit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from heapq import merge as merge_sorted
from heapq import nlargest
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from talon_ocd.catalog.centres import Centres
from talon_ocd.catalog.cursors import read_cursor, write_cursor
from talon_ocd.catalog.facts import STATES, Facts
from talon_ocd.catalog.paging import SORTS, page
from talon_ocd.catalog.pairs import NearestPairs, Pair, worth_asking
from talon_ocd.catalog.views import Category, Member, Page, Suggestion
from talon_ocd.durable.journal import Event, Journal, as_event
from talon_ocd.errors import CatalogError, nearest

MOST_ROWS = 1000
"""Rows of one page."""
FIRST_IMAGES = 32
"""Images of a category that exemplars are chosen from: its first ones, so that its face does not change every day."""

NEWEST_IMAGES = 64
"""Images of a category, besides, that are compared with one that somebody looks at."""


class CatalogReader:
    """The facts of a stream folder; new events and answers are seen at the next question."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._reading = threading.RLock()
        self._facts = Facts(journal)
        self._comparing = threading.Lock()
        self._pairs = NearestPairs(Centres(journal))
        self._threshold = float(journal.meta("rule", {}).get("threshold", 0.0))

    @property
    def known_names(self) -> Sequence[str]:
        """Names of the known classes, as the model has them."""
        return self._facts.known_names

    # One category

    def resolve(self, category: int) -> int:
        """Return what a category has become by merges: an id that was answered once is good for ever."""
        with self._reading:
            self._facts.fold_new()
            self._facts.demand(category)
            return self._facts.end(category)

    def name(self, category: int) -> str:
        """Return what a category, or the one that it was merged into, is called now."""
        with self._reading:
            return self._facts.name(self.resolve(category))

    def get(self, category: int, exemplars: int = 4) -> Category:
        """Return a category; one that was merged into another comes with its own images only."""
        with self._reading:
            self._facts.refresh()
            self._facts.demand(category)
            return self._facts.category(category, tuple(self.exemplars(category, exemplars)))

    def find(self, name: str) -> int | None:
        """Return the category with a name, if there is one; of several the oldest."""
        with self._reading:
            self._facts.refresh()
            return next(iter(self._facts.called(name)), None)

    def preferred(self, categories: Iterable[int]) -> int:
        """Return which of some categories a merge keeps unless told: the named, then the known, then the larger."""
        with self._reading:
            facts = self._facts
            facts.refresh()
            ends = {self.resolve(category) for category in categories}
            if not ends:
                raise CatalogError("no categories were given; give at least one.")
            return max(ends, key=lambda end: (bool(facts.naming(end)), facts.known(end), facts.count(end), -end))

    def next_id(self) -> int:
        """Return the id that the next category would get."""
        with self._reading:
            self._facts.refresh()
            return self._facts.totals.size

    # Many categories

    def list(
        self, state: str = "active", query: str = "", sort: str = "recent", limit: int = 50, after: str | None = None,
        exemplars: int = 4,
    ) -> Page[Category]:  # fmt: skip
        """Return a page of categories.

        Args:
            state: one of the states of categories, ``known`` or ``discovered`` (of those that are active or tentative),
                or ``all``.
            query: part of any name that a category or one merged into it has or had.
            sort: ``recent`` (last image first), ``count`` (largest first), ``name`` or ``created`` (newest first).
            limit: most rows.
            after: ``next`` of the page before.
            exemplars: typical images of each.
        """
        _demand_word("state", state, STATES)
        _demand_word("sort", sort, SORTS)
        _demand_limit(limit)
        with self._reading:
            self._facts.refresh()
            chosen = np.flatnonzero(self._facts.in_states(self._facts.ends())[state])
            if wanted := query.strip().casefold():
                texts = self._facts.search_texts()
                chosen = np.array([category for category in chosen.tolist() if wanted in texts[category]], np.int64)
            ids, following = page(self._facts, chosen, sort, limit, after)
            rows = [self._facts.category(found, tuple(self.exemplars(found, exemplars))) for found in ids]
            return Page(rows, following, len(chosen))

    def totals(self) -> dict[str, int]:
        """Return how many categories there are in each state that ``list`` takes."""
        with self._reading:
            self._facts.refresh()
            states = self._facts.in_states(self._facts.ends())
            return {state: int(chosen.sum()) for state, chosen in states.items()}

    # Images

    def members(self, category: int, limit: int = 50, after: str | None = None) -> Page[Member]:
        """Return a page of the images that are at home in a category, newest first."""
        _demand_limit(limit)
        below = 2**62 if after is None else int(read_cursor(after, "members")[0])
        with self._reading:
            self._facts.refresh()
            self._facts.demand(category)
            total, homes = self._facts.count(category), self._facts.together(category)
        columns = [self._newest(home, limit + 1, below) for home in homes]
        indices = list(islice(merge_sorted(*columns, reverse=True), limit + 1))
        following = write_cursor("members", indices[limit - 1], 0) if len(indices) > limit else None
        return Page(self.images(indices[:limit]), following, total)

    def images(self, indices: Sequence[int]) -> Sequence[Member]:
        """Return images by their index, in this order; unknown ones are left out."""
        found: dict[int, Member] = {}
        for row in self.journal.query_in("SELECT * FROM decisions WHERE idx IN (*)", indices):
            other = row["runner_up"]
            found[row["idx"]] = Member(
                row["idx"], row["source"], row["at"], row["category"], row["verdict"], row["similarity"], other,
                self.name(other) if other >= 0 else "", row["runner_up_similarity"],
                row["similarity"] - self._threshold,
            )  # fmt: skip
        return [found[index] for index in indices if index in found]

    def exemplars(self, category: int, n: int = 4) -> Sequence[int]:
        """Return a few typical images that can still be shown: of the first ones those that fitted best."""
        if n < 1:
            return []
        with self._reading:
            self._facts.demand(category)
            homes = self._facts.together(category)[:FIRST_IMAGES]
            founders = [int(self._facts.totals.first[home]) for home in homes]
        shown_from = self.journal.meta("tidied", {}).get("thumbnails", 0)  # older ones are gone, but for founders
        found: set[tuple[float, int]] = set()
        for home, founder in zip(homes, founders, strict=True):
            rows = self.journal.query(
                "SELECT idx, similarity FROM decisions WHERE home = ? AND idx >= ? ORDER BY idx LIMIT ?",
                (home, shown_from, FIRST_IMAGES),
            )
            if founder < shown_from:
                rows += self.journal.query(
                    "SELECT idx, similarity FROM decisions WHERE idx = ? AND home = ?", (founder, home)
                )
            found |= {(-row["similarity"], row["idx"]) for row in rows}
        return [index for _, index in sorted(found)[:n]]

    def nearest_images(self, category: int, feature: Tensor, n: int = 4) -> Sequence[int]:
        """Return the images of a category that look most like a unit feature ``(D,)``, nearest first.

        Looked at are its newest ones and the typical ones, as far as their features are stored.
        """
        with self._reading:
            self._facts.demand(category)
            homes = self._facts.together(category)[:FIRST_IMAGES]
        newest = nlargest(
            NEWEST_IMAGES, (index for home in homes for index in self._newest(home, NEWEST_IMAGES, 2**62))
        )
        shown_from = self.journal.meta("tidied", {}).get("thumbnails", 0)
        known = {index for index in newest if index >= shown_from} | set(self.exemplars(category, FIRST_IMAGES))
        indices, features = self.journal.features(sorted(known))
        if not indices:
            return []
        order = torch.argsort(features @ feature, descending=True, stable=True)[:n]
        return [indices[place] for place in order.tolist()]

    def corrected(self) -> set[int]:
        """Return the images whose home a person has confirmed or chosen."""
        with self._reading:
            self._facts.fold_new()
            return self._facts.ledger.corrections.corrected(self._facts.ledger.counts)

    # Are these the same?

    def suggestions(self, limit: int = 20, odds: Callable[[int], Iterable[Pair]] | None = None) -> Sequence[Suggestion]:
        """Return pairs of categories that look like one; one of each pair is discovered.

        What a merge of streams left for people to judge comes first, also if one of the two is hidden; then what looks
        most like one.

        The score is the cosine between centres of stored features. Where evidence decides, a running stream knows
        better: ``odds`` gives so many pairs of category ids with their log-odds in nats, surest first.
        """
        _demand_limit(limit)
        with self._reading:
            self._facts.refresh()
            standing, asked = self._facts.standing(), list(self._facts.ledger.suggested)
        with self._comparing:
            left = worth_asking(self._pairs.scored(standing, asked), standing, limit, shown=1)
            pairs = [] if odds is not None else self._pairs.best(standing, limit)
        if odds is not None:
            pairs = worth_asking(odds(MOST_ROWS), standing, limit)
        once = {pair[:2] for pair in left}
        others = [pair for pair in pairs if pair[:2] not in once][: limit - len(left)]
        unit = "cosine" if odds is None else "log-odds"
        return [*self._suggested(left, "cosine"), *self._suggested(others, unit)]

    def similar(self, category: int, limit: int = 10) -> Sequence[Suggestion]:
        """Return the categories that look most like one, which comes first in each pair."""
        _demand_limit(limit)
        with self._reading:
            end = self.resolve(category)
            self._facts.refresh()
            standing = self._facts.standing()
        with self._comparing:
            found = self._pairs.near(standing, end, limit)
        own = self.get(end)
        return [Suggestion(own, self.get(other), score, "cosine") for other, score in found]

    def refusals(self) -> set[tuple[int, int]]:
        """Return the pairs of categories, smaller id first, that people say are not the same."""
        with self._reading:
            self._facts.fold_new()
            return self._facts.ledger.refusals()

    def _suggested(self, pairs: Iterable[Pair], unit: str) -> Iterable[Suggestion]:
        for pair in pairs:
            kept = self.preferred(pair[:2])
            other = pair[1] if kept == pair[0] else pair[0]
            yield Suggestion(self.get(kept), self.get(other), pair[2], unit)

    # What happened

    def history(self, limit: int = 50, before: int | None = None, everything: bool = False) -> Sequence[Event]:
        """Return events, newest first: what people did, or everything; ``before`` is the number of an event."""
        _demand_limit(limit)
        with self._reading:
            self._facts.fold_new()
            below = self._facts.ledger.last + 1 if before is None else before
            numbers = list(islice((event.seq for event in self._facts.ledger.newest() if event.seq < below), limit))
        if not everything:
            found = {event.seq: event for event in self._events(numbers)}
            return [found[seq] for seq in numbers]
        rows = self.journal.query("SELECT * FROM events WHERE seq < ? ORDER BY seq DESC LIMIT ?", (below, limit))
        return [as_event(row) for row in rows]

    def undone(self, seq: int) -> bool:
        """Say whether an event was undone, and that not undone again."""
        with self._reading:
            self._facts.fold_new()
            return not self._facts.ledger.counts(seq)

    def _newest(self, home: int, limit: int, below: int) -> Sequence[int]:
        rows = self.journal.query(
            "SELECT idx FROM decisions WHERE home = ? AND idx < ? ORDER BY idx DESC LIMIT ?", (home, below, limit)
        )
        return [row["idx"] for row in rows]

    def _events(self, numbers: Sequence[int]) -> Iterable[Event]:
        """Return events with all that belongs to them, in any order."""
        return map(as_event, self.journal.query_in("SELECT * FROM events WHERE seq IN (*)", numbers))


def _demand_word(what: str, word: str, words: Sequence[str]) -> None:
    if word not in words:
        raise CatalogError(f"{what}={word!r} is not known; choose from {', '.join(words)}.{nearest(word, words)}")


def _demand_limit(limit: int) -> None:
    if not 1 <= limit <= MOST_ROWS:
        raise CatalogError(f"limit={limit}: a page has 1 to {MOST_ROWS} rows.")
