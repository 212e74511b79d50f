"""The sqlite file of a stream folder: who may write to it, who reads, what is on the disk when (layer: durable).

One process writes (``FolderLock``); any thread, and any other process, reads. A commit is on the disk when it returns.
What the rows mean is the ``Journal``'s.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from talon_ocd.durable.lock import FolderLock
from talon_ocd.durable.schema import FORMAT_VERSION, TABLES
from talon_ocd.errors import StorageError, StreamError

JOURNAL = "stream.sqlite"
MOST_PARAMETERS = 500
"""Values in one ``IN (...)``."""


class JournalFile:
    """One connection that writes, if the folder's lock was asked for, and one that reads for every thread.

    Attributes:
        folder: where it is.
    """

    def __init__(self, folder: Path, write: bool = False, purpose: str = "a program") -> None:
        self.folder = folder
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
