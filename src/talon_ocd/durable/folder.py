"""The open folder of a stream: answers, events and states go there, and come from there (layer: durable).

It knows nothing of learning. The stream says what has happened and what its state is; what of it is on the disk, what a
replay finds there already, who must hear of it, and whether memory and disk still agree, is known here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from talon_ocd.durable.identity import Identity, claim
from talon_ocd.durable.journal import Draft, Entry, Event, Journal, Request
from talon_ocd.durable.pictures import Pictures
from talon_ocd.durable.replay import Replay, Replayed
from talon_ocd.durable.saving import Saver
from talon_ocd.durable.snapshots import Snapshots
from talon_ocd.durable.tidy import Keep
from talon_ocd.errors import StorageError, TalonError
from talon_ocd.images import ImageItem
from talon_ocd.online import Decision
from talon_ocd.saved import make_folder

Load = Callable[[Mapping[str, Tensor]], None]


class StreamFolder:
    """Journal, pictures and snapshots of one stream, open to write; its owner is one thread.

    Attributes:
        journal: every answer and every event.
        pictures: thumbnails, and originals of what has no file.
        snapshots: states on disk.
        on_event: called with every event that the stream itself writes, after it is on the disk.
        event: number of the newest event that the stream's state knows of.
        saved: answers and newest event of the last snapshot; an event of -1 says that it is not on the disk.
        replaying: what is done once more, as long as it is.
        broken: why the stream must be opened again; empty if it need not.
    """

    def __init__(self, folder: Path, identity: Identity, rule: Mapping[str, Any], purpose: str) -> None:
        make_folder(folder)
        self.on_event: list[Callable[[Event], None]] = []
        self.event, self.saved = 0, (-1, -1)
        self.replaying: Replay | None = None
        self.broken = ""
        with ExitStack() as opened:
            self.journal = Journal(folder, write=True, purpose=purpose)
            opened.callback(self.journal.close)
            claim(self.journal, identity, rule)
            self.pictures, self.snapshots = Pictures(self.journal), Snapshots(self.journal)
            opened.callback(self.pictures.close)
            self._saver = Saver(self.journal, self.pictures, self.snapshots)
            self.pictures.sweep()
            opened.pop_all()

    def close(self) -> None:
        """Let others have the folder."""
        self.pictures.close()
        self.journal.close()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Do something to the state as a whole: what is broken off leaves a stream that must be opened again.

        Memory and journal may disagree by then, and only the journal counts.
        """
        self.demand_usable()
        try:
            yield
        except BaseException:
            self.broken = self.broken or "something could not be finished"
            raise

    def demand_usable(self) -> None:
        """Refuse to go on with a stream that must be opened again."""
        if self.broken:
            raise StorageError(f"{self.journal.folder}: the stream must be opened again ({self.broken}).")

    # Answers and events

    def write(
        self,
        answers: Sequence[Decision],
        items: Sequence[ImageItem | str],
        features: Tensor,
        replay: Tensor,
        requests: Mapping[int, Request],
        steps: int,
    ) -> None:
        """Write answers down before anybody hears of them; see ``Entry``. ``requests`` are by the answers' indices."""
        with self.pictures.storing:  # until the journal says that they are needed, nobody may tidy originals up
            entries = [
                Entry(
                    answer,
                    item if isinstance(item, str) else item.key,
                    features[at],
                    replay[at],
                    None if isinstance(item, str) else self.pictures.store(item),
                    requests.get(answer.index),
                )
                for at, (answer, item) in enumerate(zip(answers, items, strict=True))
            ]
            try:
                events = self.journal.write(entries, steps)
            except StorageError as error:
                self.broken = str(error)  # the memory has learned what nobody was told
                raise
        self.heard(events)

    def tell(self, draft: Draft, answered: int) -> Event:
        """Append an event that happened after so many answers, and let others hear of it."""
        event = self.journal.append(draft, answered)
        self.heard([event])
        return event

    def append(self, drafts: Sequence[Draft], answered: int) -> list[Event]:
        """Append events, of which nobody hears yet; those that a replay meets again are written already."""
        if not drafts:
            return []
        if self.replaying is not None:
            drafts = [draft for draft in drafts if not self.replaying.knows(draft, answered)]
        with self.journal.transaction():
            return [self.journal.append(draft, answered) for draft in drafts]

    def learned(self, event: Event) -> None:
        """Remember that the stream's state knows of an event: a replay from that state leaves it out."""
        self.event = max(self.event, event.seq)

    def heard(self, events: Sequence[Event]) -> None:
        """Let others hear of events that are written down."""
        for event in events:
            self.learned(event)
            for listener in self.on_event:
                listener(event)

    # States

    def load_newest(self, load: Load) -> bool:
        """Give ``load`` the newest snapshot that it can take over; returns whether there is one."""
        for snapshot in self.snapshots.all():
            if _loaded(load, self.snapshots.read(snapshot)):
                self.saved, self.event = (snapshot.answered, snapshot.event), snapshot.event
                return True
            warnings.warn(f"snapshot {snapshot.file} is damaged; an older state and the journal do.", stacklevel=3)
        return False

    def replay(self, stream: Replayed, answered: int) -> None:
        """Let a stream whose state has so many answers do again what happened since."""
        threads = torch.get_num_threads()
        self.replaying = Replay(self.journal, answered, self.event)
        try:
            torch.set_num_threads(self.journal.meta("threads", threads))  # sums are rounded as they are shared out
            self.replaying.run(stream)
        finally:
            torch.set_num_threads(threads)
            self.replaying = None

    def save(self, state: Mapping[str, Tensor], answered: int, keep: Keep) -> None:
        """Begin to write a state; who wants to hear that an earlier one failed waits first."""
        self._saver.start(state, answered, self.event, keep)
        self.saved = answered, self.event

    @property
    def saving(self) -> bool:
        """Is a state still being written?"""
        return self._saver.busy

    def wait_until_saved(self) -> bool:
        """Wait for a snapshot that was begun; returns whether the last one is on the disk."""
        try:
            self._saver.wait()
        except StorageError as error:  # the journal still has everything
            self.saved = self.saved[0], -1
            warnings.warn(f"{error} Nothing is lost: a restart takes longer.", stacklevel=3)
        return self.saved[1] >= 0

    def lasting_feature(self, index: int, oldest: int) -> Tensor | None:
        """Return a feature that a replay will find, too: one from ``oldest`` on, or of a category's first image."""
        kept = index >= oldest
        if not kept:
            kept = bool(self.journal.query("SELECT 1 FROM categories WHERE first_idx = ?", (index,)))
        return self.journal.feature(index) if kept else None


def _loaded(load: Load, state: Mapping[str, Tensor] | None) -> bool:
    """Take a state over, if it is one."""
    try:
        if state is not None:
            load(state)
    except (TalonError, KeyError, RuntimeError, ValueError):
        return False
    return state is not None
