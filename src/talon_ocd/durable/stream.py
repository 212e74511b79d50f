"""A stream that survives: what it answers is written down first, and a restart comes to the very same state (layer:
durable).

State = newest whole snapshot + replay. Answers are replayed in the batches that they were written in, events of people
in between at the place where they happened, so that every number comes out as it was. What learns, and when, is here;
what is on the disk is in ``StreamFolder``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from talon_ocd.durable.folder import StreamFolder
from talon_ocd.durable.identity import Identity
from talon_ocd.durable.journal import Draft, Event, Request
from talon_ocd.durable.replay import HELD, demand_same
from talon_ocd.durable.tidy import Keep
from talon_ocd.durable.unseen import each_once, one_by_one
from talon_ocd.errors import StreamError
from talon_ocd.images import ImageItem, Skipped
from talon_ocd.online import Assignment, Decision, DiscoveryStream, SecondThoughts
from talon_ocd.online.stream import OnSkip

SNAPSHOT_EVERY = 4096
"""Answers between two snapshots, unless trunk outputs must be kept for the replay."""
REPLAY_BYTES = 64_000_000
"""Trunk outputs between two snapshots; there is one at every adaptation if they are larger."""
FLUSHED, RETHOUGHT, ROLLED_BACK = "flushed", "rethought", "rolled_back"


class DurableStream(DiscoveryStream):
    """A stream with a folder; open it with ``Talon.stream(folder)``, close it with ``close`` or ``with``.

    One thread at a time may call it; reading through ``journal`` and ``pictures`` is free.

    Attributes:
        folder: where it lives.
        journal: every answer and every event.
        pictures: thumbnails, and originals of what has no file.
        snapshots: states on disk.
        on_event: called with every event that the stream itself writes, after it is on the disk.
    """

    def __init__(self, folder: Path, identity: Identity, *, purpose: str = "a program", **parts: Any) -> None:
        super().__init__(**parts)
        rule = self.discovery.rule
        facts = {"name": rule.name, "unit": rule.unit, "threshold": rule.threshold}
        self._disk = disk = StreamFolder(folder, identity, facts, purpose)
        self.folder, self.journal, self.pictures, self.snapshots = folder, disk.journal, disk.pictures, disk.snapshots
        self.on_event, self.keep = disk.on_event, Keep()
        self._requests: dict[int, Request] = {}
        try:
            self._restore()
        except BaseException:
            self._disk.close()
            raise
        self.journal.learned_by_stream = True

    def __enter__(self) -> DurableStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take a snapshot and let others have the folder; calling it twice does no harm."""
        if not self.journal.writable:
            return
        try:
            self.wait_until_saved()
            if not self.broken and (self.answered, self._disk.event) != self._disk.saved:
                self._snapshot()
                self.wait_until_saved()
        finally:
            self._disk.close()

    def wait_until_saved(self) -> None:
        """Wait until a snapshot that was begun is on the disk; answers need not wait for it."""
        self._disk.wait_until_saved()

    @property
    def broken(self) -> bool:
        """Must the stream be opened again? Answers are safe; only what it holds in memory is not to be trusted."""
        return bool(self._disk.broken)

    # Answers

    def run_items(
        self, items: Iterable[ImageItem], on_skip: OnSkip = lambda skipped: None, batch_size: int | None = None
    ) -> Iterator[tuple[Decision, ImageItem]]:
        """Answer a source of images but for those that were answered before; see ``DiscoveryStream.run_items``."""

        def skip(skipped: Skipped) -> None:
            self.journal.skip(skipped.source, skipped.reason)
            on_skip(skipped)

        fresh = (
            self.unseen(items)
            if isinstance(items, Sequence)
            else one_by_one(items, self.journal, lambda: self.answered)
        )
        return super().run_items(fresh, skip, batch_size)

    def unseen(self, items: Sequence[ImageItem]) -> list[ImageItem]:
        """Return the images that were not answered yet, each once."""
        return each_once(items, self.journal.seen([item.key for item in items]))

    def observe_loaded(
        self,
        items: Sequence[ImageItem],
        canvases: Sequence[Tensor],
        requests: Sequence[Request | None] = (),
        hidden: Tensor | None = None,
    ) -> list[Decision]:
        """Answer decoded images; ``requests`` that may be sent twice are written down with them.

        ``hidden`` is what ``encode_loaded`` gave, if that was done before.
        """
        self._disk.demand_usable()
        if not items:
            return []
        hidden = self.encode_loaded(canvases) if hidden is None else hidden
        if self.backbone.preprocessing.shows_pictures:
            self.pictures.add(self.answered, canvases)
        return self.observe_hidden(hidden, items, requests)

    def observe_hidden(
        self, hidden: Tensor, items: Sequence[ImageItem | str], requests: Sequence[Request | None] = ()
    ) -> list[Decision]:
        """Answer images given by their trunk outputs ``(N, *hidden_shape)``."""
        with self._disk.whole():
            self._requests = {self.answered + at: request for at, request in enumerate(requests) if request is not None}
            return super().observe_hidden(hidden, items)

    def place(self, hidden: Tensor) -> Assignment:
        """Refuse: answers without a name can't be written down."""
        raise StreamError("place() is for streams in memory; a stream with a folder answers through observe_hidden().")

    # People and policy

    def apply(self, event: Event) -> None:
        """Learn at once what a person has said: an event whose data has ``moves``.

        It is written down by now, so that a stream which must be opened again learns it then: nobody is refused what
        the journal has.
        """
        if self.broken:
            return
        with self._disk.whole():
            self._learn(event)
            self._disk.learned(event)

    def relied_on(self) -> set[int]:
        """Return the categories that people named or merged, by whatever process."""
        events = self.journal.events(kinds=("named", "merged"))
        merged = {category for event in events for category in event.data.get("categories", ())}
        return merged | {event.category for event in events if event.category is not None}

    def flush(self) -> None:
        """Adapt to the answers since the last adaptation, however few; written down, because it changes the state."""
        with self._disk.whole():
            self._disk.tell(Draft(FLUSHED), self.answered)
            self._hold()
            super().flush()
            self._disk.heard(self._guarded())

    def second_thoughts(self) -> SecondThoughts | None:
        """Return what would be answered differently by now; written down, because it changes the state."""
        with self._disk.whole():
            self._disk.tell(Draft(RETHOUGHT), self.answered)
            return super().second_thoughts()

    def roll_back(self, name: str, actor: str = "person") -> list[int]:
        """Go back to what a snapshot had learned; answers and ids stay. Returns the categories that are retired."""
        self._disk.demand_usable()
        self.wait_until_saved()
        snapshot = self.snapshots.find(name)
        if self.snapshots.read(snapshot) is None:
            raise StreamError(f"{self.folder}: snapshot {name!r} is damaged; choose another one.")
        with self._disk.whole():
            told = Draft(ROLLED_BACK, data={"snapshot": snapshot.file}, actor=actor)
            retired = self._go_back(self._disk.tell(told, self.answered))
            self._snapshot()
            return retired

    # Within

    def _written(
        self, answers: Sequence[Decision], items: Sequence[ImageItem | str], features: Tensor, hidden: Tensor
    ) -> None:
        """Write answers down before anybody hears of them."""
        replay = hidden if self._keeps_hidden else features
        self._disk.write(answers, items, features, replay, self._requests, self.adapter.steps)

    def _hold(self) -> None:
        """Let names and merges go on meaning what they mean if images are about to be grouped anew.

        What was held is written down: people, who may sit at another process, could name more before a replay asks.
        """
        if not self.discovery.regroups_next:
            return
        if self._disk.replaying is not None:
            self.discovery.hold(self._disk.replaying.held(self.answered))
            return
        held = self.relied_on()
        if held:
            self._disk.tell(Draft(HELD, None, {"categories": sorted(held)}), self.answered)
        self.discovery.hold(held)

    def _adapt_in_time(self) -> list[int]:
        self._hold()
        with self.clock("adapt"):
            super().flush()
            retired = self.discovery.retire()
        self._disk.heard([*self._retired(retired, "policy"), *self._guarded()])
        if self._disk.replaying is None and self._snapshot_due() and not self._disk.saving:
            self._snapshot()
        return retired

    def _learn(self, event: Event) -> None:
        if event.kind == "split":  # its id follows those of the journal, which has none that nobody has heard of
            self.discovery.make_way(int(event.data["into"]))
        for index, away, to in event.data.get("moves", []):
            feature = self._disk.lasting_feature(index, event.answered - self.keep.features)
            if feature is not None:  # else too old: its category is made of many others
                self.discovery.correct(index, feature, away if away >= 0 else None, to if to >= 0 else None)

    def _go_back(self, event: Event) -> list[int]:
        state = self.snapshots.read(self.snapshots.find(event.data["snapshot"]))
        if state is None:
            raise StreamError(
                f"{self.folder}: snapshot {event.data['snapshot']!r} is damaged; it can't be gone back to."
            )
        before = set(self.memory.ids.tolist())
        retired = self.go_back(state)
        revived = [Draft("revived", category) for category in self.discovery.heard_of() if category not in before]
        self._disk.heard([*self._retired(retired, "rollback"), *self._disk.append(revived, self.answered)])
        return retired

    def _retired(self, retired: Sequence[int], why: str) -> list[Event]:
        return self._disk.append([Draft("retired", category, {"reason": why}) for category in retired], self.answered)

    def _guarded(self) -> list[Event]:
        events = [] if self.guard is None else self.guard.take_events()
        return self._disk.append([Draft("guard", None, facts) for facts in events], self.answered)

    def _snapshot(self) -> None:
        """Begin to write the state; what could not be written is tried again when the next one is due."""
        self.wait_until_saved()
        self._disk.save(self.state_dict(), self.answered, self.keep)

    @property
    def _keeps_hidden(self) -> bool:
        return "encoder" in self.config.adapt

    def _snapshot_due(self) -> bool:
        """Is it time for a snapshot? It stays so until one is begun: a disk that is behind makes replays longer."""
        interval = SNAPSHOT_EVERY
        if self._keeps_hidden:
            interval = min(interval, REPLAY_BYTES // (4 * prod(self.backbone.hidden_shape)))
        return self.answered - max(self._disk.saved[0], 0) >= interval

    # From the journal to the state

    def _restore(self) -> None:
        """Come to the state that follows from the journal."""
        fresh = {name: value.clone() for name, value in self.state_dict().items()}
        if not self._disk.load_newest(self.load_state_dict):
            self.load_state_dict(fresh)
        self._disk.replay(self, self.answered)
        threads = torch.get_num_threads()
        if self.journal.meta("threads") != threads:
            self._use_threads(threads)

    def _use_threads(self, threads: int) -> None:
        """Go on with another number of threads, which rounds otherwise: from a snapshot on, or not at all."""
        if self.answered:
            self._snapshot()
            if not self._disk.wait_until_saved():  # a replay will need the rounding of before
                torch.set_num_threads(self.journal.meta("threads", threads))
                return
        self.journal.set_meta(threads=threads)

    def replay_batch(self, content: Sequence[bytes], wanted: Sequence[int]) -> None:
        """Answer a batch of the journal once more; only ``Replay`` calls this."""
        rows = np.stack([np.frombuffer(row, np.float32) for row in content])
        if self._keeps_hidden:
            hidden = torch.from_numpy(rows).reshape(len(rows), *self.backbone.hidden_shape)
            _, assignment = self._place(hidden.to(self.backbone.device))
        else:
            assignment = self.discovery.place(torch.from_numpy(rows))
            self._ids.append(torch.from_numpy(assignment.ids))
        found = self.memory.ids.numpy()[assignment.ids].tolist()
        demand_same(self.folder, found, list(wanted))
        if self.discovery.room == 0:
            self._adapt_in_time()

    def replay_event(self, event: Event) -> None:
        """Do once more what an event did to the state; only ``Replay`` calls this."""
        if event.kind == FLUSHED:
            self._hold()
            super().flush()
            self._guarded()
        elif event.kind == RETHOUGHT:
            self.discovery.second_thoughts()
        elif event.kind == ROLLED_BACK:
            self._go_back(event)
        else:
            self._learn(event)
        self._disk.event = event.seq
