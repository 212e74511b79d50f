"""One writer a stream folder (layer: durable).

The lock is sqlite's own, held on a file beside the journal: the system takes it away from a process that dies, so that
nothing stale can be left behind, on any platform.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from talon_ocd.errors import StorageError, StreamInUseError

LOCK, OWNER = "lock.sqlite", "owner.txt"


class FolderLock:
    """Holds a folder until ``release`` or the end of the process."""

    def __init__(self, folder: Path, purpose: str) -> None:
        try:
            self._connection = sqlite3.connect(
                folder / LOCK, timeout=0.0, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise StorageError(f"{folder}: can't be locked ({error}); look at its permissions.") from error
        try:
            self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.DatabaseError as error:
            self._connection.close()
            if "locked" not in str(error):
                raise StorageError(
                    f"{folder / LOCK}: can't be used ({error}); look at permissions and space, or remove it if it is "
                    "damaged and no program uses the stream."
                ) from error
            raise StreamInUseError(
                f"{folder}: this stream is in use{_by_whom(folder)}; stop that one first, or talk to its service."
            ) from error
        with suppress(OSError):  # only for the message above
            (folder / OWNER).write_text(f"{purpose}, process {os.getpid()}", encoding="utf-8")

    def release(self) -> None:
        """Let others have the folder."""
        with suppress(sqlite3.Error):
            self._connection.execute("ROLLBACK")
        self._connection.close()


def in_use(folder: Path) -> bool:
    """Say whether a process writes to a folder, without touching it."""
    if not (folder / LOCK).is_file():
        return False
    connection = sqlite3.connect(f"{(folder / LOCK).resolve().as_uri()}?mode=ro", uri=True, timeout=0.0)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.DatabaseError as error:
        return "locked" in str(error)
    finally:
        connection.close()
    return False


def _by_whom(folder: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return f" ({(folder / OWNER).read_text(encoding='utf-8')})"
    return ""
