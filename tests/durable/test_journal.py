"""The journal's file: whose it is, and who reads it, where and until when."""

from __future__ import annotations

import gc
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from talon_ocd.durable import Journal
from talon_ocd.errors import StreamError
from tests import tiny
from tests.durable.worlds import Open, fitted, ids


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stream.sqlite").write_bytes(b"something else " * 100)
    with pytest.raises(StreamError, match=r"no journal|can't be read"):
        fitted().stream(tmp_path)
    with pytest.raises(StreamError, match="no stream here"):
        Journal(tmp_path / "nowhere")


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    with fitted().stream(tmp_path):
        pass
    connection = sqlite3.connect(tmp_path / "stream.sqlite")
    connection.execute("PRAGMA user_version = 77")
    connection.close()
    with pytest.raises(StreamError, match="format version 77"):
        fitted().stream(tmp_path)


def test_readers_end_with_their_threads(open_stream: Open) -> None:
    with open_stream() as stream:
        ids(stream, tiny.incoming(2))
        for _ in range(5):
            thread = threading.Thread(target=lambda: stream.journal.query("SELECT 1"))
            thread.start()
            thread.join()
        gc.collect()
        assert len(stream.journal._readers) == 1


def test_where_nobody_can_write_a_journal_is_read_whole_or_not_at_all(open_stream: Open, tmp_path: Path) -> None:
    """What a process that died has left beside the journal can't be read there, and was answered nevertheless."""
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "stream.sqlite-shm").symlink_to(tmp_path / "read-only" / "media")
    with open_stream() as begun:
        ids(begun, tiny.incoming(3))
    with open_stream() as stream:
        ids(stream, tiny.incoming(5))
        for name in ("stream.sqlite", "stream.sqlite-wal"):
            shutil.copyfile(stream.folder / name, copy / name)
        with pytest.raises(StreamError, match="newest answers are in this file"):
            Journal(copy)
    shutil.copyfile(stream.folder / "stream.sqlite", copy / "stream.sqlite")
    (copy / "stream.sqlite-wal").unlink()
    journal = Journal(copy)
    assert journal.answered == 5
    journal.close()


def test_a_journal_that_is_closed_waits_for_a_query_of_another_thread(tmp_path: Path) -> None:
    """A snapshot's thread may still read: sqlite takes the whole process with it if it is closed under a query."""
    fitted().stream(tmp_path / "stream").close()
    journal = Journal(tmp_path / "stream", write=True)
    slow = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 300000) SELECT count(*) FROM c"
    found, begun = list[Any](), threading.Event()

    def read() -> None:
        journal.query("SELECT 1")
        begun.set()
        try:
            while True:
                found.append(journal.query(slow)[0][0])
        except StreamError as error:
            found.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    begun.wait(60)
    journal.close()
    thread.join(60)
    *counts, error = found
    assert not thread.is_alive() and set(counts) <= {300000} and "can't be read" in str(error)
