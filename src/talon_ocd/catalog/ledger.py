"""The ledger folded into facts (layer: catalog).

The ledger is only ever appended to. An event counts unless an event that counts undoes it; so undoing an undo brings
the first event back. What is true is the fold of the events that count, in their order: for each question the last one
decides. The fold is kept up event by event; every event changes only what it speaks of.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import replace

from talon_ocd.catalog.aliases import Aliases
from talon_ocd.catalog.corrections import Corrections
from talon_ocd.durable.journal import Event

CORRECTIONS = ("split", "moved", "confirmed", "rejected")
"""Kinds of events that say where images belong."""
FACTS = ("named", "merged", "hidden", "refused", *CORRECTIONS)
"""Kinds of events that people make, and can take back."""
SUGGESTED = "suggested"
"""Kind of an event that leaves two categories for people to judge."""
FOLDED = (*FACTS, "undone", "retired", "revived", SUGGESTED)
"""Kinds of events that the fold looks at."""


class Ledger:
    """What counts by now.

    Attributes:
        last: number of the newest event that was looked at.
        version: how often a fact has changed.
        aliases: which categories are one.
        corrections: where images belong.
        retired: categories that the stream gave up, and the event that says so.
        revivals: events that brought images to categories which had been retired before.
        splits: categories that people made by a split, and the number of that event.
        suggested: pairs that were left for people to judge, oldest first.
    """

    def __init__(self) -> None:
        self.last = self.version = 0
        self.aliases, self.corrections = Aliases(), Corrections()
        self.retired: dict[int, Event] = {}
        self.revivals: dict[int, list[int]] = {}
        self.splits: dict[int, int] = {}
        self.suggested: list[tuple[int, int]] = []
        self._events: dict[int, Event] = {}  # without moves: an import may have a million
        self._undoers: dict[int, list[int]] = {}
        self._undone: set[int] = set()
        self._deciding: dict[tuple[str, int], list[int]] = {}  # active events by (kind, category), oldest first
        self._called: dict[str, dict[int, int]] = {}  # name -> category -> active events that call it so
        self._refused: dict[int, tuple[int, int]] = {}

    # Reading

    def event(self, seq: int) -> Event | None:
        """Return an event that people made, without its moves."""
        return self._events.get(seq)

    def counts(self, seq: int) -> bool:
        """Say whether an event is not undone."""
        return seq not in self._undone

    def undoer(self, seq: int) -> int | None:
        """Return the number of the event that undoes another, if it is undone."""
        return next((undoer for undoer in self._undoers.get(seq, ()) if self.counts(undoer)), None)

    def newest(self) -> Iterator[Event]:
        """Yield the events that people made, newest first, without their moves."""
        return reversed(self._events.values())

    def base(self, seq: int) -> Event:
        """Return the fact that an event is about in the end: itself, or what it undoes."""
        event = self._events[seq]
        while event.undoes is not None:
            event = self._events[event.undoes]
        return event

    def counts_after_undoing(self, seq: int) -> bool:
        """Say whether the fact behind an event that counts will count when that event is undone."""
        counts = False
        while (below := self._events[seq].undoes) is not None:
            others = any(self.counts(other) for other in self._undoers[below] if other != seq)
            counts, seq = not (counts or others), below
        return counts

    def deciding(self, kind: str, category: int) -> Event | None:
        """Return the last event that counts of those that name (``named``) or hide (``hidden``) a category."""
        numbers = self._deciding.get((kind, category))
        return self._events[numbers[-1]] if numbers else None

    def given_name(self, category: int) -> Event | None:
        """Return the event by which a person named a category."""
        return self.deciding("named", category)

    def hidden(self, category: int) -> bool:
        """Say whether a person hides a category."""
        event = self.deciding("hidden", category)
        return event is not None and bool(event.data["hidden"])

    def called(self, name: str) -> Iterable[int]:
        """Return categories that people call or called so; later names may have replaced it."""
        return self._called.get(name, ())

    def names_of(self, category: int) -> list[str]:
        """Return all names that people gave to a category and did not take back, oldest first."""
        return [str(self._events[seq].data["name"]) for seq in self._deciding.get(("named", category), ())]

    def categories_with(self, kind: str) -> list[int]:
        """Return the categories that an event that counts names (``named``) or hides or shows (``hidden``)."""
        return [category for (found, category), numbers in self._deciding.items() if found == kind and numbers]

    def refusals(self) -> set[tuple[int, int]]:
        """Return the pairs, smaller id first, that people say are not one, by what their categories have become."""
        pairs = set()
        for first, second in self._refused.values():
            one, two = sorted((self.aliases.resolve(first), self.aliases.resolve(second)))
            pairs.add((one, two))
        return pairs

    # Folding

    def apply(self, event: Event) -> set[int]:
        """Fold one more event; returns the categories whose images it moved."""
        self.last = max(self.last, event.seq)
        if event.kind not in FOLDED:
            return set()
        self.version += 1
        if event.kind == SUGGESTED:
            self.suggested.append((event.data["pair"][0], event.data["pair"][1]))
            return set()
        if event.kind in ("retired", "revived"):
            if event.category is not None:
                self.retired.pop(event.category, None)
                self.retired |= {event.category: event} if event.kind == "retired" else {}
            return set()
        moves = event.data.get("moves", ())
        light = {key: value for key, value in event.data.items() if key != "moves"}
        self._events[event.seq] = replace(event, data=light)
        if event.undoes is not None:
            self._undoers.setdefault(event.undoes, []).append(event.seq)
            self._reconsider(event.undoes)
        else:
            if event.kind in CORRECTIONS:
                self.corrections.add(event.seq, moves)
                for category in {move[2] for move in moves if move[2] in self.retired}:
                    self.revivals.setdefault(category, []).append(event.seq)
            if event.kind == "split":
                self.splits[int(event.data["into"])] = event.seq
            self._turn(self._events[event.seq], on=True)
        return {category for _, *both in moves for category in both if category >= 0}

    def _reconsider(self, seq: int) -> None:
        """Work out whether an event counts, after one of its undoers has changed, and so on down to the fact."""
        current: int | None = seq
        while current is not None:
            counts = not any(self.counts(undoer) for undoer in self._undoers[current])
            if counts == self.counts(current):
                return
            (self._undone.discard if counts else self._undone.add)(current)
            event = self._events[current]
            if event.undoes is None:
                self._turn(event, on=counts)
            current = event.undoes

    def _turn(self, event: Event, on: bool) -> None:
        """Let a fact count, or count no longer."""
        if event.kind == "merged":
            if on:
                self.aliases.add(event.seq, event.data["categories"], event.data["into"])
            else:
                self.aliases.remove(event.seq)
        elif event.kind == "refused":
            if on:
                self._refused[event.seq] = (event.data["pair"][0], event.data["pair"][1])
            else:
                del self._refused[event.seq]
        elif event.kind == "hidden" and event.category is not None:
            self._decide("hidden", event.category, event.seq, on)
        elif "name" in event.data:  # a name, or a split that names what it makes
            category = event.category if event.kind == "named" else int(event.data["into"])
            if category is not None:
                self._decide("named", category, event.seq, on)
                self._count_name(str(event.data["name"]), category, 1 if on else -1)

    def _decide(self, kind: str, category: int, seq: int, on: bool) -> None:
        numbers = self._deciding.setdefault((kind, category), [])
        if on:
            insort(numbers, seq)
        else:
            del numbers[bisect_left(numbers, seq)]

    def _count_name(self, name: str, category: int, change: int) -> None:
        categories = self._called.setdefault(name, {})
        categories[category] = categories.get(category, 0) + change
        if not categories[category]:
            del categories[category]
