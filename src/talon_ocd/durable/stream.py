"""A stream that survives: what it answers is written down first, and a restart comes to the very same state (layer:
durable).

State = newest whole snapshot + replay. Answers are replayed in the batches that they were written in, events of people
in between at the place where they happened, so that every number comes out as it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from talon_ocd.durable.identity import Identity, claim
from talon_ocd.durable.journal import Draft, Entry, Event, Journal, Request
from talon_ocd.durable.pictures import Pictures
from talon_ocd.durable.replay import HELD, Replay
from talon_ocd.durable.saving import Saver
from talon_ocd.durable.snapshots import Snapshots
from talon_ocd.durable.tidy import Keep
from talon_ocd.durable.unseen import each_once, one_by_one
from talon_ocd.errors import StorageError, StreamError, TalonError
from talon_ocd.images import ImageItem, Skipped
from talon_ocd.online import Assignment, Decision, DiscoveryStream, SecondThoughts
from talon_ocd.online.stream import OnSkip
from talon_ocd.saved import make_folder

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
        make_folder(folder)
        self.folder = folder
        self.on_event: list[Callable[[Event], None]] = []
        self.keep = Keep()
        self._replaying: Replay | None = None
        self._broken, self._requests = "", dict[int, Request]()
        self._snapshot_at, self._event = (-1, -1), 0
        self.journal = Journal(folder, write=True, purpose=purpose)
        try:
            rule = self.discovery.rule
            claim(self.journal, identity, {"name": rule.name, "unit": rule.unit, "threshold": rule.threshold})
            self.pictures, self.snapshots = Pictures(self.journal), Snapshots(self.journal)
            self._saver = Saver(self.journal, self.pictures, self.snapshots)
            self.pictures.sweep()
            self._restore()
            self.journal.learned_by_stream = True
        except BaseException:
            self.journal.close()
            raise

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
            if not self._broken and (self.answered, self._event) != self._snapshot_at:
                self._snapshot()
                self.wait_until_saved()
        finally:
            self.pictures.close()
            self.journal.close()

    def wait_until_saved(self) -> None:
        """Wait until a snapshot that was begun is on the disk; answers need not wait for it."""
        try:
            self._saver.wait()
        except StorageError as error:  # the journal still has everything
            self._snapshot_at = self._snapshot_at[0], -1
            warnings.warn(f"{error} Nothing is lost: a restart takes longer.", stacklevel=2)

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
        self._usable()
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
        with self._whole():
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
        with self._whole():
            self._learn(event)
            self._event = max(self._event, event.seq)

    def relied_on(self) -> set[int]:
        """Return the categories that people named or merged, by whatever process."""
        events = self.journal.events(kinds=("named", "merged"))
        merged = {category for event in events for category in event.data.get("categories", ())}
        return merged | {event.category for event in events if event.category is not None}

    def flush(self) -> None:
        """Adapt to the answers since the last adaptation, however few; written down, because it changes the state."""
        with self._whole():
            self._tell(Draft(FLUSHED))
            self._hold()
            super().flush()
            self._heard(self._guarded())

    def second_thoughts(self) -> SecondThoughts | None:
        """Return what would be answered differently by now; written down, because it changes the state."""
        with self._whole():
            self._tell(Draft(RETHOUGHT))
            return super().second_thoughts()

    def roll_back(self, name: str, actor: str = "person") -> list[int]:
        """Go back to what a snapshot had learned; answers and ids stay. Returns the categories that are retired."""
        self._usable()
        self.wait_until_saved()
        snapshot = self.snapshots.find(name)
        if self.snapshots.read(snapshot) is None:
            raise StreamError(f"{self.folder}: snapshot {name!r} is damaged; choose another one.")
        with self._whole():
            event = self._tell(Draft(ROLLED_BACK, data={"snapshot": snapshot.file}, actor=actor))
            retired = self._go_back(event)
            self._snapshot()
            return retired

    # Within

    def _written(
        self, answers: Sequence[Decision], items: Sequence[ImageItem | str], features: Tensor, hidden: Tensor
    ) -> None:
        """Write answers down before anybody hears of them."""
        replay = hidden if self._keeps_hidden else features
        with self.pictures.storing:  # until the journal says that they are needed, nobody may tidy originals up
            entries = [
                Entry(
                    answer,
                    item if isinstance(item, str) else item.key,
                    features[at],
                    replay[at],
                    None if isinstance(item, str) else self.pictures.store(item),
                    self._requests.get(answer.index),
                )
                for at, (answer, item) in enumerate(zip(answers, items, strict=True))
            ]
            try:
                events = self.journal.write(entries, self.adapter.steps)
            except StorageError as error:
                self._broken = str(error)  # the memory has learned what nobody was told
                raise
        self._heard(events)

    def _hold(self) -> None:
        """Let names and merges go on meaning what they mean if images are about to be grouped anew.

        What was held is written down: people, who may sit at another process, could name more before a replay asks.
        """
        if not self.discovery.regroups_next:
            return
        if self._replaying is not None:
            self.discovery.hold(self._replaying.held(self.answered))
            return
        held = self.relied_on()
        if held:
            self._tell(Draft(HELD, None, {"categories": sorted(held)}))
        self.discovery.hold(held)

    def _adapt_in_time(self) -> list[int]:
        self._hold()
        with self.clock("adapt"):
            super().flush()
            retired = self.discovery.retire()
        self._heard([*self._retired(retired, "policy"), *self._guarded()])
        if self._replaying is None and self._snapshot_due() and not self._saver.busy:
            self._snapshot()
        return retired

    def _restore(self) -> None:
        """Come to the state that follows from the journal."""
        fresh = {name: value.clone() for name, value in self.state_dict().items()}
        for snapshot in self.snapshots.all():
            if self._loaded(self.snapshots.read(snapshot)):
                self._snapshot_at, self._event = (snapshot.answered, snapshot.event), snapshot.event
                break
            warnings.warn(f"snapshot {snapshot.file} is damaged; an older state and the journal do.", stacklevel=2)
        else:
            self.load_state_dict(fresh)
        threads = torch.get_num_threads()
        self._replaying = Replay(self.journal, self.answered, self._event)
        try:
            torch.set_num_threads(self.journal.meta("threads", threads))  # sums are rounded as they are shared out
            self._replaying.run(self)
        finally:
            torch.set_num_threads(threads)
            self._replaying = None
        if self.journal.meta("threads") != threads:
            self._use_threads(threads)

    def _use_threads(self, threads: int) -> None:
        """Go on with another number of threads, which rounds otherwise: from a snapshot on, or not at all."""
        if self.answered:
            self._snapshot()
            self.wait_until_saved()
            if self._snapshot_at[1] < 0:  # it could not be written: a replay will need the rounding of before
                torch.set_num_threads(self.journal.meta("threads", threads))
                return
        self.journal.set_meta(threads=threads)

    def _loaded(self, state: Mapping[str, Tensor] | None) -> bool:
        """Take a state over, if it is one."""
        try:
            if state is not None:
                self.load_state_dict(state)
        except (TalonError, KeyError, RuntimeError, ValueError):
            return False
        return state is not None

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
        if found != list(wanted):
            raise StreamError(
                f"{self.folder}: the journal says {list(wanted)} where a replay says {found}. Another version of "
                "talon-ocd wrote it, whose rule or guard learned otherwise; or another machine or version of torch "
                "rounds otherwise; or the folder was changed. Open and close it once where it was written, which takes "
                "a snapshot that needs no replay, or answer its images anew with `talon stream replay`."
            )
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
        self._event = event.seq

    def _learn(self, event: Event) -> None:
        for index, away, to in event.data.get("moves", []):
            feature = self._feature(index, event.answered)
            if feature is not None:  # else too old: its category is made of many others
                self.discovery.correct(index, feature, away if away >= 0 else None, to if to >= 0 else None)

    def _feature(self, index: int, answered: int) -> Tensor | None:
        """Return a feature that a replay will find, too: one of the newest by then, or of a category's first image."""
        kept = index >= answered - self.keep.features
        if not kept:
            kept = bool(self.journal.query("SELECT 1 FROM categories WHERE first_idx = ?", (index,)))
        return self.journal.feature(index) if kept else None

    def _go_back(self, event: Event) -> list[int]:
        state = self.snapshots.read(self.snapshots.find(event.data["snapshot"]))
        if state is None:
            raise StreamError(
                f"{self.folder}: snapshot {event.data['snapshot']!r} is damaged; it can't be gone back to."
            )
        before = set(self.memory.ids.tolist())
        retired = self.go_back(state)
        revived = [Draft("revived", category) for category in self.memory.ids.tolist() if category not in before]
        self._heard([*self._retired(retired, "rollback"), *self._write(revived)])
        return retired

    def _retired(self, retired: Sequence[int], why: str) -> list[Event]:
        return self._write([Draft("retired", category, {"reason": why}) for category in retired])

    def _guarded(self) -> list[Event]:
        events = [] if self.guard is None else self.guard.take_events()
        return self._write([Draft("guard", None, facts) for facts in events])

    def _write(self, drafts: Sequence[Draft]) -> list[Event]:
        """Append events; those that a replay meets again are written already."""
        if not drafts:
            return []
        if self._replaying is not None:
            drafts = [draft for draft in drafts if not self._replaying.knows(draft, self.answered)]
        with self.journal.transaction():
            return [self.journal.append(draft, self.answered) for draft in drafts]

    def _tell(self, draft: Draft) -> Event:
        event = self.journal.append(draft, self.answered)
        self._heard([event])
        return event

    def _heard(self, events: Sequence[Event]) -> None:
        for event in events:
            self._event = max(self._event, event.seq)
            for listener in self.on_event:
                listener(event)

    def _snapshot(self) -> None:
        """Begin to write the state; what could not be written is tried again when the next one is due."""
        self.wait_until_saved()
        self._saver.start(self.state_dict(), self.answered, self._event, self.keep)
        self._snapshot_at = self.answered, self._event

    @property
    def broken(self) -> bool:
        """Must the stream be opened again? Answers are safe; only what it holds in memory is not to be trusted."""
        return bool(self._broken)

    @property
    def _keeps_hidden(self) -> bool:
        return "encoder" in self.config.adapt

    def _snapshot_due(self) -> bool:
        """Is it time for a snapshot? It stays so until one is begun: a disk that is behind makes replays longer."""
        interval = SNAPSHOT_EVERY
        if self._keeps_hidden:
            interval = min(interval, REPLAY_BYTES // (4 * prod(self.backbone.hidden_shape)))
        return self.answered - max(self._snapshot_at[0], 0) >= interval

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Do something to the state as a whole: what is broken off leaves a stream that must be opened again.

        Memory and journal may disagree by then, and only the journal counts.
        """
        self._usable()
        try:
            yield
        except BaseException:
            self._broken = self._broken or "something could not be finished"
            raise

    def _usable(self) -> None:
        if self._broken:
            raise StorageError(f"{self.folder}: the stream must be opened again ({self._broken}).")
