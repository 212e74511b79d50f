"""From a snapshot to the present (layer: durable)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Protocol

from talon_ocd.durable.journal import Draft, Event, Journal
from talon_ocd.errors import StreamError

STATE_KINDS = ("flushed", "rethought", "rolled_back", "split", "moved", "confirmed", "rejected", "undone")
"""Events that change what a stream has learned."""
HELD = "held"
"""The event that says which categories people had named or merged when images were grouped anew."""
ROWS = 1024
"""Answers that are read at once."""


class Replayed(Protocol):
    """A stream that can do again what it did."""

    def replay_batch(self, content: Sequence[bytes], wanted: Sequence[int]) -> None:
        """Answer a batch; ``wanted`` are the categories that were answered."""

    def replay_event(self, event: Event) -> None:
        """Change the state as an event did."""


class Replay:
    """What happened after a state with ``answered`` answers that knew of the events up to ``event``."""

    def __init__(self, journal: Journal, answered: int, event: int) -> None:
        self._journal, self._answered = journal, answered
        self._events = journal.events(event, STATE_KINDS)
        written = journal.events(event, ("retired", "revived", "guard"))
        self._written = {(e.kind, e.category, e.answered, e.data.get("reason")) for e in written}
        self._held = {e.answered: e.data["categories"] for e in journal.events(event, (HELD,))}

    def run(self, stream: Replayed) -> None:
        """Do it all again, in its order."""
        at, end = self._answered, self._journal.answered
        while at < end:
            rows = self._journal.query(
                "SELECT idx, batch, category, content FROM decisions LEFT JOIN replay USING (idx) "
                "WHERE idx >= ? AND batch < ? ORDER BY idx",
                (at, at + ROWS),
            )
            for first, group in groupby(rows, key=lambda row: row["batch"]):
                batch = list(group)
                if any(row["content"] is None for row in batch):
                    raise StreamError(
                        f"{self._journal.folder}: answer {first} and what follows can't be learned again: the whole "
                        "snapshots are too old; copy the folder's snapshots back, or answer its images anew with "
                        "`talon stream replay`."
                    )
                self._events_before(first, stream)
                stream.replay_batch([row["content"] for row in batch], [row["category"] for row in batch])
                at = batch[-1]["idx"] + 1
        self._events_before(end, stream)

    def held(self, answered: int) -> list[int]:
        """Return the categories that people relied on when images were grouped anew after so many answers."""
        return list(self._held.get(answered, ()))

    def knows(self, draft: Draft, answered: int) -> bool:
        """Was this event written down when it happened first?"""
        return (draft.kind, draft.category, answered, draft.data.get("reason")) in self._written

    def _events_before(self, answered: int, stream: Replayed) -> None:
        while self._events and self._events[0].answered <= answered:
            stream.replay_event(self._events.pop(0))


def demand_same(folder: Path, found: list[int], wanted: list[int]) -> None:
    """Refuse a replay whose categories are not those of the journal."""
    if found != wanted:
        raise StreamError(
            f"{folder}: the journal says {wanted} where a replay says {found}. Another version of "
            "talon-ocd wrote it, whose rule or guard learned otherwise; or another machine or version of torch "
            "rounds otherwise; or the folder was changed. Open and close it once where it was written, which takes "
            "a snapshot that needs no replay, or answer its images anew with `talon stream replay`."
        )
