"""What is true of each category by now: ledger and totals taken together (layer: catalog).

Whoever asks holds the lock of the catalog, so that nothing changes between two questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from talon_ocd.catalog.ledger import FOLDED, Ledger
from talon_ocd.catalog.names import NameKey, normal, sort_key
from talon_ocd.catalog.pairs import Standing
from talon_ocd.catalog.totals import Bools, Ints, Totals
from talon_ocd.catalog.views import SUPPORT, Category, State
from talon_ocd.durable.journal import Event, Journal, as_event
from talon_ocd.errors import CatalogError
from talon_ocd.online.decision import category_name

Named = tuple[NameKey, int, str]
STATES = ("active", "tentative", "hidden", "merged", "retired", "known", "discovered", "all")
"""What categories can be listed by; the first five part them."""


class Facts:
    """The fold of a journal's events, and the totals of its answers.

    Attributes:
        known_names: names of the known classes, as the model has them.
        ledger: what people said.
        totals: what the stream answered.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.known_names: list[str] = list(journal.meta("names", []))
        bounds = journal.meta("settings", {}).get("bounds", {})
        self._support = int(bounds.get("tentative_below", SUPPORT))
        self.ledger = Ledger()
        self.totals = Totals(len(self.known_names))
        self._touched: set[int] = set()
        self._answered = -1
        self._moved: dict[int, int] = {}
        self._texts: tuple[tuple[int, int], list[str]] | None = None
        self._sorted: tuple[tuple[int, int], list[Named]] | None = None
        self.refresh()

    # Keeping up

    def fold_new(self) -> None:
        """Fold the events that were appended since."""
        newest = self.journal.query("SELECT max(seq) AS last FROM events")[0]["last"] or 0
        if newest <= self.ledger.last:
            return
        marks = ",".join("?" * len(FOLDED))
        rows = self.journal.query(
            f"SELECT * FROM events WHERE seq > ? AND seq <= ? AND kind IN ({marks}) ORDER BY seq",
            (self.ledger.last, newest, *FOLDED),
        )
        for row in rows:
            event = as_event(row)
            touched = self.ledger.apply(event)
            self._touched |= touched
            self._moved.update(dict.fromkeys(touched, event.seq))
        self.ledger.last = newest

    def refresh(self) -> None:
        """Fold new events and read what answers have changed."""
        self.fold_new()
        answered = self.journal.answered
        if answered != self._answered or self._touched:
            self.totals.refresh(self.journal, self._touched)
            self._answered, self._touched = answered, set()

    def demand(self, category: int) -> None:
        """Refuse what is no category."""
        if not self.exists(category):
            self.refresh()
        if not self.exists(category):
            raise CatalogError(f"there is no category {category}; the newest one is {self.totals.size - 1}.")

    # One category

    def exists(self, category: int) -> bool:
        """Say whether an id is one of a category."""
        return 0 <= category < self.totals.size and bool(self.totals.exists[category])

    def known(self, category: int) -> bool:
        """Say whether a category is a known class."""
        return category < len(self.known_names)

    def end(self, category: int) -> int:
        """Return what a category has become by merges."""
        return self.ledger.aliases.resolve(category)

    def together(self, category: int) -> list[int]:
        """Return a category and those that were merged into it."""
        return [category, *self.ledger.aliases.of(category)]

    def count(self, category: int) -> int:
        """Return how many images are at home in a category."""
        return int(self.totals.members[self.together(category)].sum())

    def naming(self, category: int) -> Event | None:
        """Return the event that a category has its name by; a nameless one takes that of one merged into it."""
        own = self.ledger.given_name(category)
        if own is not None or self.known(category):
            return own
        others = (self.ledger.given_name(alias) for alias in self.ledger.aliases.of(category))
        return max((event for event in others if event is not None), key=lambda event: event.seq, default=None)

    def name(self, category: int) -> str:
        """Return what a category is called; merges never lose a name: given ones go first, then those of classes."""
        event = self.naming(category)
        if event is not None:
            return str(event.data["name"])
        if not self.known(category):
            category = min((alias for alias in self.together(category) if self.known(alias)), default=category)
        return category_name(category, self.known_names)

    def called(self, name: str) -> list[int]:
        """Return the categories that have a name, oldest first; however its accents are written."""
        name = normal(name)
        found = set(self.ledger.called(name))
        found |= {category for category, known in enumerate(self.known_names) if normal(known) == name}
        number = name.rpartition("-")[2]
        if number.isascii() and number.isdigit() and len(number) < 19:  # perhaps the name of a nameless one
            found.add(len(self.known_names) + int(number) - 1)
        ends = {self.end(category) for category in found if self.exists(category)}
        return sorted(end for end in ends if normal(self.name(end)) == name and not self._taken_back(end))

    def state(self, category: int) -> State:
        """Return the state of one category: what ``in_states`` says, without looking at all of them."""
        ledger, count = self.ledger, self.count(category)
        if self.end(category) != category:
            return "merged"
        if all(map(self._retired, self.together(category))) or self._taken_back(category):
            return "retired"
        if ledger.hidden(category):
            return "hidden"
        sure = self.known(category) or count >= self._support or self.naming(category) is not None
        return "active" if sure else "tentative"

    def category(self, category: int, exemplars: tuple[int, ...]) -> Category:
        """Return a category as people see it."""
        totals, together, end = self.totals, self.together(category), self.end(category)
        known = self.known(category)
        begun = [int(totals.first[one]) for one in together if totals.first[one] >= 0 and not self.known(one)]
        firsts, lasts = (column[~np.isnan(column)] for column in totals.times[:, together])
        return Category(
            category, self.name(category), self.naming(category) is not None, "known" if known else "discovered",
            self.state(category), None if end == category else end, tuple(sorted(together[1:])),
            self.count(category), self._verdicts(together), float(firsts.min()) if len(firsts) else None,
            float(lasts.max()) if len(lasts) else None, None if known or not begun else min(begun), exemplars,
        )  # fmt: skip

    def _retired(self, category: int) -> bool:
        """Say whether the stream gave a category up, and neither a person nor an answer has come back to it since."""
        ledger, event = self.ledger, self.ledger.retired.get(category)
        if event is None or self.totals.last[category] >= event.answered:
            return False
        return not any(seq > event.seq and ledger.counts(seq) for seq in ledger.revivals.get(category, ()))

    def _taken_back(self, category: int) -> bool:
        """Say whether a category was made by a split that is undone, and nothing has come to it since."""
        split = self.ledger.splits.get(category)
        return split is not None and not self.ledger.counts(split) and not self.count(category)

    def _verdicts(self, together: Sequence[int]) -> dict[str, int]:
        """Return answers by verdict: a known class has one kind of them, a discovered one was new just once."""
        verdicts = {"known": 0, "discovered": 0, "new": 0}
        for one in together:
            answers = int(self.totals.answers[one])
            if self.known(one):
                verdicts["known"] += answers
            else:
                founded = min(answers, 0 if one in self.ledger.splits else 1)
                verdicts["new"] += founded
                verdicts["discovered"] += answers - founded
        return verdicts

    # All categories

    def ends(self) -> Ints:
        """Return what every category has become ``(size,)``."""
        ends = np.arange(self.totals.size)
        for category, end in self.ledger.aliases.pairs():
            ends[category] = end
        return ends

    def in_states(self, ends: Ints) -> dict[str, Bools]:
        """Return for each state which categories ``(size,)`` are in it."""
        size, ledger, exists = self.totals.size, self.ledger, self.totals.exists
        merged, known = ends != np.arange(size), np.arange(size) < self.totals.known
        counts = np.bincount(ends, self.totals.members, size)
        taken_back = [category for category, seq in ledger.splits.items() if not ledger.counts(seq)]
        gone = self._marked(filter(self._retired, ledger.retired))
        living = np.bincount(ends, exists & ~gone, size) > 0  # one part that lives is enough
        retired = ~merged & (~living | (self._marked(taken_back) & (counts == 0)))
        hidden = ~merged & ~retired & self._marked(filter(ledger.hidden, ledger.categories_with("hidden")))
        shown = exists & ~merged & ~retired & ~hidden
        few = shown & ~known & (counts < self._support) & ~self._marked(ends[ledger.categories_with("named")].tolist())
        return {
            "active": shown & ~few, "tentative": few, "hidden": exists & hidden, "merged": exists & merged,
            "retired": exists & retired, "known": shown & known, "discovered": shown & ~known, "all": exists,
        }  # fmt: skip

    def standing(self) -> Standing:
        """Return what must be known of all categories to compare them; it does not change afterwards."""
        ends = self.ends()
        states = self.in_states(ends)
        shown = states["known"] | states["discovered"]
        moved = np.zeros(self.totals.size, np.int64)
        moved[list(self._moved)] = list(self._moved.values())
        refused = frozenset(self.ledger.refusals())
        return Standing(ends, shown[ends], self.totals.members.copy(), moved, self.totals.known, refused)

    def search_texts(self) -> Sequence[str]:
        """Return for every category all names that it may be found by; worked out again when a fact has changed."""
        version = (self.ledger.version, self.totals.size)
        if self._texts is None or self._texts[0] != version:
            texts = []
            for category in range(self.totals.size):
                together = self.together(category)
                names = [category_name(one, self.known_names) for one in together]
                names += [name for one in together for name in self.ledger.names_of(one)]
                texts.append("\n".join(names).casefold())
            self._texts = version, texts
        return self._texts[1]

    def by_name(self) -> Sequence[Named]:
        """Return sort key, id and name of every category, sorted; worked out again when a fact has changed."""
        version = (self.ledger.version, self.totals.size)
        if self._sorted is None or self._sorted[0] != version:
            names = ((category, self.name(category)) for category in np.flatnonzero(self.totals.exists).tolist())
            self._sorted = version, sorted((sort_key(name), category, name) for category, name in names)
        return self._sorted[1]

    def _marked(self, categories: Iterable[int]) -> Bools:
        marked = np.zeros(self.totals.size, np.bool_)
        marked[[category for category in categories if category < len(marked)]] = True
        return marked
