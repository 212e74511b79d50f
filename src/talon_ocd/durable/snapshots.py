"""All that a stream has learned, on disk, whole or not at all (layer: durable)."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from talon_ocd.durable.journal import Journal
from talon_ocd.errors import StorageError, StreamError
from talon_ocd.saved import reason

FOLDER = "snapshots"
NEWEST = 3
"""Snapshots that are kept in any case."""


@dataclass(frozen=True)
class Snapshot:
    """A state on disk.

    Attributes:
        file: its name.
        at: when it was taken, in seconds since 1970.
        answered: answers that had been given.
        event: the last event that it knows of.
        sha256: digest of its content.
    """

    file: str
    at: float
    answered: int
    event: int
    sha256: str


class Snapshots:
    """The snapshots of a stream folder, listed in its journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal, self._folder = journal, journal.folder / FOLDER
        if journal.writable:
            self._folder.mkdir(exist_ok=True)
            for part in self._folder.glob(".*.part"):  # of a process that died while it wrote
                part.unlink(missing_ok=True)

    def all(self) -> list[Snapshot]:
        """Return what there is, newest first."""
        rows = self._journal.query("SELECT * FROM snapshots")
        listed = [Snapshot(row["file"], row["at"], row["answered"], row["event"], row["sha256"]) for row in rows]
        return sorted(listed, key=lambda snapshot: (snapshot.answered, snapshot.event), reverse=True)

    def find(self, name: str) -> Snapshot:
        """Return a snapshot by its file's name, with or without the ending."""
        for snapshot in self.all():
            if name in (snapshot.file, Path(snapshot.file).stem):
                return snapshot
        known = ", ".join(Path(snapshot.file).stem for snapshot in self.all()) or "none yet"
        raise StreamError(f"{self._journal.folder}: there is no snapshot {name!r}; there are: {known}.")

    def read(self, snapshot: Snapshot) -> dict[str, Tensor] | None:
        """Return a state, or ``None`` if its file is gone, torn or changed."""
        try:
            data = (self._folder / snapshot.file).read_bytes()
            whole = hashlib.sha256(data).hexdigest() == snapshot.sha256
            return load(data) if whole else None
        except (OSError, SafetensorError):
            return None

    def take(self, state: dict[str, Tensor], answered: int, event: int) -> Snapshot:
        """Write a state; it counts from the moment that the journal lists it."""
        data = save({name: value.detach().cpu().contiguous() for name, value in state.items()})
        name = f"{answered:012d}-{event:08d}.safetensors"
        try:
            write_through(self._folder / name, data)
        except OSError as error:
            raise StorageError(f"{self._folder}: no snapshot could be written ({reason(error)}).") from error
        snapshot = Snapshot(name, time.time(), answered, event, hashlib.sha256(data).hexdigest())
        with self._journal.transaction() as connection:
            row = (name, snapshot.at, answered, event, snapshot.sha256)
            connection.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)", row)
        return snapshot

    def thin(self) -> int:
        """Drop snapshots, the denser the older they are; returns from which answer on a restart may replay."""
        listed = self.all()
        spare, kept = listed[NEWEST:], self._needed(listed)
        ages: dict[int, str] = {}
        for snapshot in spare:  # the oldest of every doubling of the age: so that some grow old
            ages[(listed[0].answered - snapshot.answered).bit_length()] = snapshot.file
        gone = [snapshot.file for snapshot in spare if snapshot.file not in kept | set(ages.values())]
        with self._journal.transaction() as connection:
            connection.executemany("DELETE FROM snapshots WHERE file = ?", [(file,) for file in gone])
        for file in gone:
            with suppress(OSError):
                (self._folder / file).unlink()
        return listed[1].answered if len(listed) > 1 else 0

    def _needed(self, listed: list[Snapshot]) -> set[str]:
        """Return what a replay from the second newest would go back to."""
        since = listed[1].event if len(listed) > 1 else 0
        return {event.data["snapshot"] for event in self._journal.events(since, ("rolled_back",))}


def write_through(path: Path, data: bytes) -> None:
    """Write a file that is there as a whole or not at all, also after a power cut."""
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    with suppress(OSError):  # not every system can open a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
