"""Which categories are one by what people merged (layer: catalog).

Merges are folded in their order: each lets the categories that its own ones have become by then follow ``into``. So no
circle can come about, whatever is undone and redone in whatever order, and every category is one step from its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Aliases:
    """The active merges, folded."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}  # only of categories that were merged into another
        self._merged: dict[int, list[int]] = {}
        self._merges: dict[int, tuple[int, ...]] = {}  # its last one is `into`
        self._touching: dict[int, set[int]] = {}
        self._newest = -1

    def resolve(self, category: int) -> int:
        """Return what a category has become."""
        return self._ends.get(category, category)

    def of(self, category: int) -> Sequence[int]:
        """Return the other categories that have become this one."""
        return self._merged.get(category, ())

    def pairs(self) -> Iterable[tuple[int, int]]:
        """Return every merged category with what it has become."""
        return self._ends.items()

    def add(self, seq: int, categories: Sequence[int], into: int) -> None:
        """Let a merge count; the usual one, newer than all others, costs no more than the categories it moves."""
        merge = (*categories, into)
        self._merges[seq] = merge
        for category in merge:
            self._touching.setdefault(category, set()).add(seq)
        if seq > self._newest:
            self._newest = seq
            self._follow(merge)
        else:
            self._fold(self._connected(merge))

    def remove(self, seq: int) -> None:
        """Let a merge count no longer."""
        merge = self._merges[seq]
        categories = self._connected(merge)
        del self._merges[seq]
        for category in merge:
            self._touching[category].discard(seq)
        self._fold(categories)

    def merging(self, category: int) -> list[int]:
        """Return the numbers of the active merges that name a category, oldest first."""
        return sorted(self._touching.get(category, ()))

    def _connected(self, categories: Iterable[int]) -> set[int]:
        """Return all categories that active merges connect to these."""
        found: set[int] = set()
        waiting = list(categories)
        while waiting:
            category = waiting.pop()
            if category not in found:
                found.add(category)
                for seq in self._touching.get(category, ()):
                    waiting.extend(self._merges[seq])
        return found

    def _fold(self, categories: set[int]) -> None:
        """Work out anew what categories have become that no merge connects to others."""
        merges = sorted({seq for category in categories for seq in self._touching.get(category, ())})
        for category in categories:
            self._ends.pop(category, None)
            self._merged.pop(category, None)
        for seq in merges:
            self._follow(self._merges[seq])

    def _follow(self, merge: Sequence[int]) -> None:
        into = self.resolve(merge[-1])
        for category in merge[:-1]:
            end = self.resolve(category)
            if end == into:
                continue
            moving = [end, *self._merged.pop(end, ())]
            for member in moving:
                self._ends[member] = into
            self._merged.setdefault(into, []).extend(moving)
