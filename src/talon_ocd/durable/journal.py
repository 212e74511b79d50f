"""The journal of a stream: every answer before it is given, every event, in one sqlite file (layer: durable).

One process writes (``FolderLock``); any thread, and any other process, reads. A commit is on the disk when it returns.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from talon_ocd.durable.lock import FolderLock
from talon_ocd.durable.schema import FORMAT_VERSION, TABLES
from talon_ocd.errors import StorageError, StreamError
from talon_ocd.online import Decision
from talon_ocd.online.decision import category_name

JOURNAL = "stream.sqlite"
MOST_PARAMETERS = 500
"""Values in one ``IN (...)``."""


@dataclass(frozen=True)
class Event:
    """Something that happened to categories: a line of the ledger.

    Attributes:
        seq: its number, from 1.
        at: when, in seconds since 1970.
        answered: answers that had been given before.
        kind: ``created``, ``retired``, ``revived``, ``named``, ``merged`` ...
        category: the category it is about, if it is about one.
        data: whatever belongs to it, as plain data.
        actor: who: ``stream`` or a person's name.
        undoes: the event that this one takes back.
    """

    seq: int
    at: float
    answered: int
    kind: str
    category: int | None
    data: dict[str, Any]
    actor: str
    undoes: int | None = None


@dataclass(frozen=True)
class Draft:
    """An event to be: what ``Event`` has, without number and time."""

    kind: str
    category: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    actor: str = "stream"
    undoes: int | None = None


@dataclass(frozen=True)
class Request:
    """A request for one image that may be sent twice: its key, and a digest of what was sent."""

    key: str
    digest: str


@dataclass(frozen=True)
class Entry:
    """An answer with all that is written down about it.

    Attributes:
        decision: the answer.
        key: of the image, see ``ImageItem``.
        feature: unit vector ``(D,)``.
        replay: what a restart needs: the feature, or the trunk output ``hidden_shape`` while the encoder adapts.
        stored: name of the picture in the folder's ``images/``, if it has no file of its own.
        request: the request that brought it, if it may be sent twice.
    """

    decision: Decision
    key: str
    feature: Tensor
    replay: Tensor
    stored: str | None = None
    request: Request | None = None


class Journal:
    """The sqlite file of a stream folder.

    Attributes:
        folder: where it is.
        learned_by_stream: whether an open stream must hear of corrections.
    """

    def __init__(self, folder: Path, write: bool = False, purpose: str = "a program") -> None:
        self.folder = folder
        self.learned_by_stream = False
        path = folder / JOURNAL
        if not write and not path.is_file():
            raise StreamError(f"{folder}: no stream here ({JOURNAL} is missing); give the folder of --stream.")
        self._lock = FolderLock(folder, purpose) if write else None
        self._writing = threading.RLock()
        self._local = threading.local()
        self._readers: weakref.WeakSet[_Reader] = weakref.WeakSet()
        self._connection: sqlite3.Connection | None = None
        if write:
            try:
                self._connection = _writer(path)
            except BaseException:
                self.close()
                raise
        self._check()

    @property
    def writable(self) -> bool:
        """Does this object hold the folder's lock?"""
        return self._connection is not None

    def copy_to(self, folder: Path) -> None:
        """Write the file as it is at one moment into another folder; whoever answers meanwhile is not disturbed."""
        copy = sqlite3.connect(folder / JOURNAL)
        try:
            self._reader().copy_to(copy)
        except sqlite3.Error as error:
            raise StorageError(
                f"{folder}: the journal can't be copied ({error}); look at permissions and space."
            ) from error
        finally:
            copy.close()

    def close(self) -> None:
        """Close the file and let others write."""
        with self._writing:
            for reader in list(self._readers):
                reader.close()
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    # Writing

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Give the connection for changes that happen together or not at all; they are on the disk afterwards."""
        with self._writing:
            if self._connection is None:
                raise StorageError(f"{self.folder}: the journal is not open for writing.")
            if self._connection.in_transaction:  # inside another one: it commits
                yield self._connection
                return
            connection = self._connection
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            except BaseException as error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise StorageError(
                        f"{self.folder}: the journal can't be written ({error}); free some space or look at the disk. "
                        "What was answered before is safe."
                    ) from error
                raise

    def set_meta(self, **values: Any) -> None:
        """Write facts about the stream, as JSON."""
        with self.transaction() as connection:
            rows = [(key, json.dumps(value, ensure_ascii=False)) for key, value in values.items()]
            connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)

    def write(self, entries: Sequence[Entry], steps: int = 0) -> list[Event]:
        """Write answers down, in one commit; returns the events of the categories that they founded."""
        now, batch = time.time(), entries[0].decision.index
        with self.transaction() as connection:
            connection.executemany(
                "INSERT INTO decisions VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
                [_row(entry, now, batch, steps) for entry in entries],
            )
            for table, blobs in (
                ("features", _rows_as_bytes([entry.feature for entry in entries], torch.float16)),
                ("replay", _rows_as_bytes([entry.replay for entry in entries], torch.float32)),
            ):
                numbered = zip((entry.decision.index for entry in entries), blobs, strict=True)
                connection.executemany(f"INSERT INTO {table} VALUES (?, ?)", numbered)
            connection.executemany(
                "INSERT INTO categories VALUES (?, ?, 1, 1, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                "answers = answers + 1, members = members + 1, first_idx = coalesce(first_idx, excluded.first_idx), "
                "first_at = coalesce(first_at, excluded.first_at), last_idx = excluded.last_idx, "
                "last_at = excluded.last_at",
                [(e.decision.category, 0, *(e.decision.index, now) * 2) for e in entries],
            )
            connection.executemany(
                "INSERT INTO requests VALUES (?, ?, ?, ?)",
                [(e.request.key, now, e.request.digest, e.decision.index) for e in entries if e.request is not None],
            )
            connection.executemany("DELETE FROM skipped WHERE source = ?", [(e.decision.source,) for e in entries])
            founders = [entry.decision for entry in entries if entry.decision.verdict == "new"]
            return [
                self.append(Draft("created", founder.category, {"image": founder.index}), founder.index)
                for founder in founders
            ]

    def append(self, draft: Draft, answered: int) -> Event:
        """Append an event to the ledger."""
        event = (time.time(), answered, draft.kind, draft.category, dict(draft.data), draft.actor, draft.undoes)
        with self.transaction() as connection:
            columns = (*event[:4], json.dumps(event[4], ensure_ascii=False), *event[5:])
            cursor = connection.execute(
                "INSERT INTO events (at, answered, kind, category, data, actor, undoes) VALUES (?,?,?,?,?,?,?)", columns
            )
            return Event(int(cursor.lastrowid or 0), *event)

    def skip(self, source: str, reason: str) -> None:
        """Write down that an image could not be used."""
        with self.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO skipped VALUES (?, ?, ?)", (source, time.time(), reason))

    # Reading

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Read rows; every thread has a connection of its own, so that readers wait for nobody."""
        try:
            return self._reader().rows(sql, parameters)
        except sqlite3.Error as error:
            raise StreamError(f"{self.folder}: the journal can't be read ({error}).") from error

    def query_in(self, sql: str, values: Sequence[Any]) -> Iterator[sqlite3.Row]:
        """Yield rows for any number of values: ``sql`` has ``IN (*)`` where they belong; order holds in parts only."""
        for start in range(0, len(values), MOST_PARAMETERS):
            part = values[start : start + MOST_PARAMETERS]
            yield from self.query(sql.replace("(*)", f"({','.join('?' * len(part))})"), part)

    def meta(self, key: str, default: Any = None) -> Any:
        """Return a fact about the stream."""
        rows = self.query("SELECT value FROM meta WHERE key = ?", (key,))
        return json.loads(rows[0]["value"]) if rows else default

    @property
    def answered(self) -> int:
        """Answers written down."""
        rows = self.query("SELECT max(idx) AS last FROM decisions")
        return 0 if rows[0]["last"] is None else int(rows[0]["last"]) + 1

    def decision(self, index: int) -> Decision | None:
        """Return an answer as it was given; its name is the category's first one."""
        rows = self.query("SELECT * FROM decisions WHERE idx = ?", (index,))
        return self.as_decision(rows[0]) if rows else None

    def steps(self, index: int) -> int:
        """Return how many encoder updates there had been before an answer."""
        return int(self.query("SELECT steps FROM decisions WHERE idx = ?", (index,))[0]["steps"])

    def as_decision(self, row: sqlite3.Row) -> Decision:
        """Return the answer of a row of ``decisions``."""
        names, rule = self._facts()
        return Decision(
            row["idx"], row["source"], row["category"], category_name(row["category"], names), row["verdict"],
            row["similarity"], rule["threshold"], row["runner_up"], row["runner_up_similarity"], rule["unit"],
        )  # fmt: skip

    def feature(self, index: int) -> Tensor | None:
        """Return the unit feature ``(D,)`` of an answer, rounded to float16; ``None`` if it was dropped."""
        rows = self.query("SELECT feature FROM features WHERE idx = ?", (index,))
        return torch.from_numpy(_from_half(rows[0]["feature"])) if rows else None

    def features(self, indices: Sequence[int]) -> tuple[list[int], Tensor]:
        """Return the indices ``(N,)`` whose features are still there, and those ``(N, D)``."""
        rows = self.query_in("SELECT idx, feature FROM features WHERE idx IN (*)", indices)
        found: dict[int, bytes] = {row["idx"]: row["feature"] for row in rows}
        there = [index for index in indices if index in found]
        if not there:
            return [], torch.empty(0, 0)
        return there, torch.from_numpy(np.stack([_from_half(found[index]) for index in there]))

    def events(self, after: int = 0, kinds: Collection[str] | None = None) -> list[Event]:
        """Return the events that follow number ``after``, oldest first; all, or those of some kinds."""
        chosen = f" AND kind IN ({','.join('?' * len(kinds))})" if kinds else ""
        rows = self.query(f"SELECT * FROM events WHERE seq > ?{chosen} ORDER BY seq", (after, *(kinds or ())))
        return [as_event(row) for row in rows]

    def seen(self, keys: Sequence[str]) -> set[str]:
        """Return those of the keys that were answered."""
        return {row["key"] for row in self.query_in("SELECT key FROM decisions WHERE key IN (*)", keys)}

    def stored(self, names: Sequence[str]) -> set[str]:
        """Return those of the names of originals that an answer needs."""
        return {row["stored"] for row in self.query_in("SELECT stored FROM decisions WHERE stored IN (*)", names)}

    def request(self, key: str) -> tuple[str, Decision] | None:
        """Return digest and answer of a request that was answered before."""
        rows = self.query("SELECT * FROM requests JOIN decisions USING (idx) WHERE requests.key = ?", (key,))
        return (rows[0]["digest"], self.as_decision(rows[0])) if rows else None

    def _facts(self) -> tuple[list[str], dict[str, Any]]:
        """Names of the known classes, and threshold and unit of the rule: they never change."""
        if not hasattr(self, "_known_facts"):
            self._known_facts = self.meta("names", []), self.meta("rule", {"threshold": 0.0, "unit": "cosine"})
        return self._known_facts

    def _reader(self) -> _Reader:
        reader: _Reader | None = getattr(self._local, "reader", None)
        if reader is None:
            reader = self._local.reader = _Reader(self.folder / JOURNAL)
            with self._writing:
                self._readers.add(reader)
        return reader

    def _check(self) -> None:
        version = self.query("PRAGMA user_version")[0][0]
        if version != FORMAT_VERSION:
            self.close()
            raise StreamError(
                f"{self.folder}: the stream has format version {version}, this program reads {FORMAT_VERSION}; "
                "install the talon-ocd that wrote it, or begin another folder."
            )


class _Reader:
    """A connection to read with; it ends with the thread that it belongs to."""

    def __init__(self, path: Path) -> None:
        self._reading, self._closed = threading.Lock(), False
        uri = f"{path.resolve().as_uri()}?mode=ro"
        self.connection = _connected(uri)
        try:
            self.connection.execute("PRAGMA user_version")
        except sqlite3.OperationalError as error:  # on media that nobody can write to, sqlite must be told so
            self.connection.close()
            _demand_all_in_one_file(path, error)
            self.connection = _connected(f"{uri}&immutable=1")

    def rows(self, sql: str, parameters: Sequence[Any]) -> list[sqlite3.Row]:
        """Read rows; whoever closes meanwhile waits, because sqlite does not survive to be closed under a query."""
        with self._reading:
            if self._closed:
                raise sqlite3.ProgrammingError("it is closed")
            return self.connection.execute(sql, parameters).fetchall()

    def copy_to(self, target: sqlite3.Connection) -> None:
        """Copy the whole file."""
        with self._reading:
            self.connection.backup(target)

    def close(self) -> None:
        """Close the connection, after a query that another thread has begun."""
        self._closed = True  # first, because a thread that reads again and again might never let go
        with self._reading:
            self.connection.close()

    def __del__(self) -> None:
        self.close()


def as_event(row: sqlite3.Row) -> Event:
    """Return the event of a row of ``events``."""
    return Event(
        row["seq"], row["at"], row["answered"], row["kind"], row["category"], json.loads(row["data"]), row["actor"],
        row["undoes"],
    )  # fmt: skip


def _connected(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=30.0, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    return connection


def _demand_all_in_one_file(path: Path, error: sqlite3.Error) -> None:
    """Refuse to read a journal without its newest answers, which a process that died has left in a file beside it."""
    beside = path.with_name(f"{path.name}-wal")
    if beside.is_file() and beside.stat().st_size:
        raise StreamError(
            f"{beside}: the newest answers are in this file and can't be read here ({error}); make the folder "
            "writable or free some space, or copy it to where there is some."
        ) from error


def _writer(path: Path) -> sqlite3.Connection:
    connection = _connected(path.resolve().as_uri())
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # an answer outlives a power cut
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            connection.executescript(f"BEGIN;{TABLES}PRAGMA user_version = {FORMAT_VERSION};COMMIT;")
    except sqlite3.OperationalError as error:
        connection.close()
        raise StorageError(f"{path}: the journal can't be written ({error}); look at permissions and space.") from error
    except sqlite3.DatabaseError as error:
        connection.close()
        raise StreamError(f"{path}: this is no journal of a stream ({error}); choose another folder.") from error
    return connection


def _row(entry: Entry, now: float, batch: int, steps: int) -> tuple[Any, ...]:
    d = entry.decision
    return (
        d.index, now, d.source, entry.key, d.category, d.category, d.verdict, d.similarity, d.runner_up,
        d.runner_up_similarity, batch, steps, entry.stored,
    )  # fmt: skip


def _rows_as_bytes(rows: Sequence[Tensor], kind: torch.dtype) -> list[bytes]:
    """Return each of some tensors of one shape as bytes; together they cost hardly more than one does."""
    return [row.tobytes() for row in torch.stack(list(rows)).detach().to("cpu", kind).numpy()]


def _from_half(data: bytes) -> np.ndarray:
    wide = np.frombuffer(data, np.float16).astype(np.float32)
    return wide / max(float(np.sqrt(wide @ wide)), 1e-12)
