"""Images behind addresses; the file system of this machine stands for a store."""

from __future__ import annotations

import pickle
import tarfile
from pathlib import Path

import pytest

from talon_ocd.errors import DataError, ImageError
from talon_ocd.images import stream

pytest.importorskip("pyarrow", reason="object stores are read with pyarrow, of the extra ray")

from talon_ocd.scale.storage import is_uri, stored


def test_an_address_has_the_images_of_the_folder(incoming_folder: Path) -> None:
    here, there = stream(incoming_folder), stored(incoming_folder.as_uri())
    assert [item.source for item in there.items] == [f"file://{item.source}" for item in here.items]
    assert [item.label for item in there.items] == [item.label for item in here.items]
    assert len({item.key for item in there.items}) == len(there.items)
    travelled = pickle.loads(pickle.dumps(there.items[7]))
    assert travelled.load().tobytes() == here.items[7].load().tobytes()


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


def test_windows_drives_and_paths_are_no_addresses() -> None:
    assert is_uri("gs://bucket/x") and not is_uri("C:/photos") and not is_uri("a//b")
