"""Images behind addresses; the file system of this machine stands for a store, or a small server that speaks S3."""

from __future__ import annotations

import pickle
import tarfile
from pathlib import Path

import pytest

from talon_ocd.errors import DataError, ImageError
from talon_ocd.images import Skipped, stream
from tests.scale.store import BUCKET, KEYS, store_of

pytest.importorskip("pyarrow", reason="object stores are read with pyarrow, of the extra ray")

from talon_ocd.scale.storage import Stored, stored


def test_an_address_has_the_images_of_the_folder(incoming_folder: Path) -> None:
    here, there = stream(incoming_folder), stored(incoming_folder.as_uri())
    assert [item.source for item in there.items] == [f"file://{item.source}" for item in here.items]
    assert [item.label for item in there.items] == [item.label for item in here.items]
    assert len({item.key for item in there.items}) == len(there.items)
    travelled = pickle.loads(pickle.dumps(there.items[7]))
    assert travelled.load().tobytes() == here.items[7].load().tobytes()


def test_a_store_that_speaks_s3_has_the_images_of_the_folder(
    incoming_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    here = stream(incoming_folder).items
    with store_of(incoming_folder) as store:
        there = stored(store.address).items
        assert [item.source for item in there] == [
            item.source.replace(str(incoming_folder), f"s3://{BUCKET}") for item in here
        ]
        assert [item.load().tobytes() for item in there[:9]] == [item.load().tobytes() for item in here[:9]]


def test_shards_are_read_in_place(incoming_folder: Path, tmp_path: Path) -> None:
    items = stream(incoming_folder).items
    for number in (10, 9):
        with tarfile.open(tmp_path / f"shard-{number}.tar", "w") as shard:
            for item in items[:3]:
                shard.add(item.source, f"{item.label}/{number}-{Path(item.source).name}")
    (tmp_path / "broken.tar").write_bytes(b"no archive")
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / ".hidden.png").write_bytes(b"")
    found = stored(tmp_path.as_uri())
    assert [item.source.split("/")[-3] for item in found.items] == ["shard-9.tar"] * 3 + ["shard-10.tar"] * 3
    assert [item.label for item in found.items] == [item.label for item in items[:3]] * 2
    assert found.items[0].load().tobytes() == items[0].load().tobytes()
    assert [left_out.source for left_out in found.skipped] == [f"{tmp_path.as_uri()}/broken.tar"] and found.ignored == 1
    alone = stored(f"{tmp_path.as_uri()}/shard-9.tar")
    assert [item.key for item in alone.items] == [item.key for item in found.items[:3]]


def test_a_shard_has_the_images_of_the_archive_that_it_is(incoming_folder: Path, tmp_path: Path) -> None:
    """In the same order, or ids would depend on the way to it; what can't be used is left out for the same reasons."""
    with tarfile.open(tmp_path / "shard.tar", "w") as shard:
        for at, item in enumerate(reversed(stream(incoming_folder).items[:12])):
            shard.add(item.source, f"./photos/{item.label}/{at}.png")
        shard.add(item.source, "photos/0/3.png")
        shard.add(item.source, "photos/0/._3.png")
        shard.add(item.source, "../outside.png")
        shard.add(tmp_path, "notes.txt", recursive=False)
        shard.addfile(tarfile.TarInfo("notes.md"))
        link = tarfile.TarInfo("photos/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "0/3.png"
        shard.addfile(link)
    here, there = stream(tmp_path / "shard.tar"), stored(f"{tmp_path.as_uri()}/shard.tar")
    assert [item.source for item in there.items] == [f"file://{item.source}" for item in here.items]
    assert [item.load().tobytes() for item in there.items] == [item.load().tobytes() for item in here.items]
    assert there.skipped == [Skipped(f"file://{one.source}", one.reason) for one in here.skipped]
    assert len(there.skipped) == 3 and there.ignored == here.ignored == 1


def test_one_image_is_a_source_too(incoming_folder: Path) -> None:
    item = stream(incoming_folder).items[0]
    assert [found.source for found in stored(Path(item.source).as_uri()).items] == [f"file://{item.source}"]


@pytest.mark.parametrize("address", ["file:///nowhere/at/all", "nosuch://bucket/x"])
def test_an_address_that_leads_nowhere_is_refused(address: str) -> None:
    with pytest.raises(DataError, match="can't be listed"):
        stored(address)


def test_a_store_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no images"):
        stored(tmp_path.as_uri())


def test_an_image_that_went_away_is_an_image_error(tmp_path: Path, incoming_folder: Path) -> None:
    copy = tmp_path / "a.png"
    copy.write_bytes(Path(stream(incoming_folder).items[0].source).read_bytes())
    item = stored(tmp_path.as_uri()).items[0]
    copy.write_bytes(b"short")
    with pytest.raises(ImageError, match="ends too early"):
        item.load()
    copy.unlink()
    with pytest.raises(ImageError, match="is it still there"):
        item.load()


@pytest.mark.parametrize("address", ["s3://KEY:SECRET@birds/a", "s3://KEY:SEC/RET@birds/a", "hdfs://me:SECRET@host/a"])
def test_a_password_in_an_address_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(DataError, match="into the environment") as caught:
        stored(address)
    assert "SEC" not in str(caught.value).replace("AWS_SECRET_ACCESS_KEY", "")


def test_options_of_a_store_open_it_and_are_in_no_name(incoming_folder: Path) -> None:
    plain, opened = (stored(f"{incoming_folder.as_uri()}{query}") for query in ("", "/?use_mmap=true"))
    assert [(item.source, item.key) for item in opened.items] == [(item.source, item.key) for item in plain.items]
    place = opened.items[0].payload
    assert isinstance(place, Stored) and place.query == "use_mmap=true" and "mmap" not in repr(opened)
    assert opened.items[0].load().tobytes() == plain.items[0].load().tobytes()
    with pytest.raises(DataError) as caught:
        stored("nosuch://bucket/x?client_secret=SECRET")
    assert "SECRET" not in str(caught.value)
