"""What people said of one stream, said of another one with the same images (layer: catalog).

After a model was fitted anew its stream has other ids. Images have the same keys, though: a category goes where most of
its images are now. Where that is not clear, nothing is guessed; it is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from talon_ocd.catalog.categories import Catalog
from talon_ocd.catalog.names import NameTakenError
from talon_ocd.catalog.reading import MOST_ROWS, CatalogReader
from talon_ocd.catalog.views import Category
from talon_ocd.durable.journal import Event, Journal

LOOKED_FOR = 10_000
"""Images of a category that are looked for, newest first."""


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """A category whose facts could not be carried over, and why."""

    category: int
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Carried:
    """What was carried over, as the events that say so, and what was not.

    Attributes:
        events: of the new stream.
        left: categories whose facts could not be carried.
        corrected: images that people moved, split off, confirmed or rejected, which is never carried.
    """

    events: tuple[Event, ...]
    left: tuple[LeftBehind, ...]
    corrected: int = 0

    @property
    def told(self) -> str:
        """What became of corrections, in words; empty if there were none."""
        return f"images whose corrections are not carried over: {self.corrected}" if self.corrected else ""


def carry(old: CatalogReader, new: Catalog, actor: str = "person") -> Carried:
    """Carry names, merges, hiding and refusals over to another stream.

    A category goes to the one that holds more than half of those of its images that the new stream has seen. A renamed
    known class goes to the class that the new model calls as the old one did. Corrections of single images stay behind:
    the new model has made up its own mind about them.
    """
    work = _Carrying(old, new, actor)
    for category in work.said_of():
        work.carry(category)
    work.carry_refusals()
    return Carried(tuple(work.events), tuple(work.left), len(old.corrected()))


class _Carrying:
    def __init__(self, old: CatalogReader, new: Catalog, actor: str) -> None:
        self.old, self.new, self.actor = old, new, actor
        self.events: list[Event] = []
        self.left: list[LeftBehind] = []
        self._targets: dict[int, tuple[int | None, str]] = {}
        self._names: dict[int, str] = {}

    def said_of(self) -> Sequence[Category]:
        """Return the categories that people said something about, oldest first."""
        found, after = list[Category](), None
        while True:
            page = self.old.list("all", sort="created", limit=MOST_ROWS, after=after, exemplars=0)
            found += [
                one for one in page.items if one.into is None and (one.named or one.aliases or one.state == "hidden")
            ]
            after = page.next
            if after is None:
                return sorted(found, key=lambda one: one.id)

    def carry(self, category: Category) -> None:
        note = self._note(category.id)
        targets = {one: self._target(one) for one in (category.id, *category.aliases)}
        there = {one: target for one, (target, _) in targets.items() if target is not None}
        self.left += [LeftBehind(one, category.name, why) for one, (target, why) in targets.items() if target is None]
        if not there:
            return
        into = there.get(category.id, next(iter(there.values())))
        others = {self.new.resolve(target) for target in there.values()} - {self.new.resolve(into)}
        if others:
            self.events.append(self.new.merge(sorted(others), into, self.actor, note))
        if category.named:
            self._carry_name(category, self.new.resolve(into), note)
        if category.state == "hidden" and self.new.get(self.new.resolve(into), exemplars=0).state != "hidden":
            self.events.append(self.new.hide(into, True, self.actor, note))

    def _carry_name(self, category: Category, into: int, note: Mapping[str, Any]) -> None:
        if self.new.name(into) == category.name and self.new.get(into, exemplars=0).named:
            return
        if into in self._names:
            why = f"category {into} of the new stream is called {self._names[into]!r} already: the two are one there"
            self.left.append(LeftBehind(category.id, category.name, why))
            return
        try:
            self.events.append(self.new.rename(into, category.name, self.actor, note=note))
            self._names[into] = category.name
        except NameTakenError as error:
            why = f"category {error.existing} has the name there; merge it with {into} if they are one"
            self.left.append(LeftBehind(category.id, category.name, why))

    def carry_refusals(self) -> None:
        """Carry over what people said are not the same, where both are found."""
        known = self.new.refusals()
        for first, second in sorted(self.old.refusals()):
            targets = [self._target(one)[0] for one in (first, second)]
            if targets[0] is None or targets[1] is None:
                continue
            ends = sorted((self.new.resolve(targets[0]), self.new.resolve(targets[1])))
            if ends[0] != ends[1] and (ends[0], ends[1]) not in known:
                self.events.append(self.new.refuse(ends[0], ends[1], self.actor, self._note(first)))

    def _target(self, category: int) -> tuple[int | None, str]:
        """Return where a category, without those merged into it, is in the new stream, or why nobody knows."""
        if category not in self._targets:
            self._targets[category] = self._by_class(category) or self._by_images(category)
        return self._targets[category]

    def _by_class(self, category: int) -> tuple[int, str] | None:
        was, now = self.old.known_names, self.new.known_names
        return (now.index(was[category]), "") if category < len(was) and was[category] in now else None

    def _by_images(self, category: int) -> tuple[int | None, str]:
        rows = self.old.journal.query(
            "SELECT key FROM decisions WHERE home = ? ORDER BY idx DESC LIMIT ?", (category, LOOKED_FOR)
        )
        found = _homes_of(self.new.journal, [row["key"] for row in rows])
        ends = Counter(self.new.resolve(home) for home in found)
        if not ends:
            return None, f"none of its {len(rows)} images are in the new stream"
        (best, most), total = ends.most_common(1)[0], sum(ends.values())
        if 2 * most <= total:
            return None, f"its images are in {len(ends)} categories of the new stream, at most {most} of {total} in one"
        return best, ""

    def _note(self, category: int) -> dict[str, Any]:
        return {"carried_from": {"stream": self.old.journal.folder.name, "category": category}}


def _homes_of(journal: Journal, keys: Sequence[str]) -> list[int]:
    """Return the homes of the images with these keys; of one that came twice the last home, of rejected ones none."""
    rows = journal.query_in("SELECT key, home FROM decisions WHERE key IN (*) ORDER BY idx", keys)
    homes: dict[str, int] = {row["key"]: row["home"] for row in rows}
    return [home for home in homes.values() if home >= 0]
