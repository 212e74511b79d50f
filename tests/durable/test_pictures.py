"""Pictures beside the journal: kept for people as long as they need them, put aside if they are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from talon_ocd.durable import Journal, Keep, Pictures
from talon_ocd.durable.tidy import tidy
from talon_ocd.errors import StorageError
from tests import tiny
from tests.durable.worlds import Open, fitted, ids


def test_pictures_are_kept_for_people(open_stream: Open, tmp_path: Path) -> None:
    file = tiny.write_folder(tmp_path / "files", tiny.incoming(1)).rglob("*.png").__next__()
    data = file.read_bytes()
    with open_stream() as stream:
        stream.observe(file)
        stream.observe(data)
        assert stream.pictures.original(0) == (data, "image/png") == stream.pictures.original(1)
        assert (stream.pictures.thumbnail(1) or b"")[:2] == b"\xff\xd8"
        file.unlink()
        assert stream.pictures.original(0) is None
        assert stream.pictures.original(7) is None
        assert stream.pictures.thumbnail(7) is None


def test_an_upload_is_kept_as_long_as_any_answer_needs_it(tmp_path: Path) -> None:
    data = [item.load() for item in tiny.incoming(8)]
    files = []
    for number, picture in enumerate(data):
        picture.save(tmp_path / f"{number}.png")
        files.append((tmp_path / f"{number}.png").read_bytes())
    with fitted().stream(tmp_path / "s") as stream:
        stream.keep = Keep(features=3, thumbnails=3, originals=3, requests=3)
        for file in (*files, files[1], files[2]):
            stream.observe(file)
        founders = {row["first_idx"] for row in stream.journal.query("SELECT first_idx FROM categories")}
        tidy(stream.journal, stream.pictures, stream.answered, stream.keep)
        kept = {index for index in range(10) if stream.pictures.original(index) is not None}
        assert kept == {1, 2, 7, 8, 9} | (founders & set(range(10)))
        assert {index for index in range(10) if stream.pictures.thumbnail(index)} == {7, 8, 9} | (founders - {None})
        assert {index for index in range(10) if stream.journal.feature(index) is not None} >= {7, 8, 9}
        orphan = tmp_path / "s" / "images" / "ab" / ("ab" * 32)
        orphan.parent.mkdir(exist_ok=True)
        orphan.write_bytes(b"nobody waited for it")
    with fitted().stream(tmp_path / "s") as again:
        assert not orphan.exists()
        assert again.pictures.original(9) is not None


def test_damaged_pictures_are_put_aside(open_stream: Open) -> None:
    with open_stream() as stream:
        ids(stream, tiny.incoming(3))
    (stream.folder / "pictures.sqlite").write_bytes(b"no database" * 500)
    with pytest.warns(UserWarning, match="put aside"), open_stream() as again:
        assert again.answered == 3
        ids(again, tiny.incoming(5))
        assert again.pictures.thumbnail(4) is not None


def test_pictures_that_can_not_be_opened_are_left_where_they_are(open_stream: Open) -> None:
    """A full disk, and media that nobody can write to: sqlite has no place for the file beside its own."""
    with open_stream() as stream:
        ids(stream, tiny.incoming(3))
    beside = stream.folder / "pictures.sqlite-wal"
    beside.mkdir()
    with pytest.raises(StorageError, match="look at permissions and space"):
        open_stream()
    journal = Journal(stream.folder)
    pictures = Pictures(journal)
    assert pictures.thumbnail(2) is not None and pictures.thumbnail(3) is None
    pictures.close()
    journal.close()
    beside.rmdir()
    with open_stream() as again:
        assert again.pictures.thumbnail(2) is not None


def test_who_only_reads_puts_no_pictures_aside(open_stream: Open) -> None:
    with open_stream() as stream:
        ids(stream, tiny.incoming(3))
    damaged = stream.folder / "pictures.sqlite"
    damaged.write_bytes(b"no database" * 500)
    journal = Journal(stream.folder)
    pictures = Pictures(journal)
    assert pictures.thumbnail(0) is None
    pictures.close()
    journal.close()
    assert damaged.read_bytes() == b"no database" * 500


def test_files_that_people_leave_among_the_originals_do_no_harm(open_stream: Open) -> None:
    with open_stream() as stream:
        ids(stream, tiny.incoming(3))
    (stream.folder / "images").mkdir(exist_ok=True)
    stray = stream.folder / "images" / "ab"  # named as a folder of originals is
    stray.write_text("mine")
    with open_stream() as again:
        assert again.answered == 3
    assert stray.read_text() == "mine"
