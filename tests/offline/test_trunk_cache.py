"""The trunk cache: what it returns, what it computes, and that it never trusts a damaged file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from talon_ocd.errors import StorageError
from talon_ocd.images.augment import augment, content_key, view_seed
from talon_ocd.images.items import memory_item
from talon_ocd.offline import cache_folder
from talon_ocd.offline.row_store import FileSegment
from talon_ocd.offline.trunk_cache import TrunkCache, TrunkOutputs
from tests.offline.standin import Listener, StandIn, some_digits

ITEMS, _ = some_digits(100)
ROW_BYTES = 4 * 8 * 4 * 4


def cache(backbone: StandIn, directory: Path | None = None, **changes: object) -> TrunkCache:
    settings: dict[str, object] = {
        "memory_bytes": 10**8,
        "disk_bytes": 10**8,
        "augmentation": "talon",
        "seed": 0,
    }
    return TrunkCache(backbone, directory=directory, **(settings | changes))  # type: ignore[arg-type]


def every(outputs: TrunkOutputs) -> Tensor:
    """All views of all images (V + 1, N, ...)."""
    index = torch.arange(len(outputs))
    return torch.stack([outputs.take(index, view) for view in range(outputs.views + 1)])


@pytest.fixture(scope="module")
def expected() -> Tensor:
    """Views 0 to 3 without a cache."""
    backbone = StandIn()
    preprocessing = backbone.preprocessing
    canvases = [preprocessing.canvas(item.load()) for item in ITEMS]
    rows = [backbone.trunk(preprocessing.pixels(canvases))]
    for view in (1, 2, 3):
        seeds = [view_seed(0, content_key(canvas), view) for canvas in canvases]
        rows.append(backbone.trunk(preprocessing.normalise(augment(canvases, preprocessing, "talon", seeds))))
    return torch.stack(rows)


def test_outputs_are_those_of_the_trunk(expected: Tensor) -> None:
    with cache(StandIn()) as trunk:
        outputs = trunk.outputs(ITEMS, 3)
    assert (len(outputs), outputs.views, outputs.kept, outputs.skipped) == (100, 3, list(range(100)), [])
    torch.testing.assert_close(every(outputs), expected)
    assert outputs.take(torch.tensor([0])).dtype == torch.float32


def test_take_mixes_images_and_views(expected: Tensor) -> None:
    with cache(StandIn()) as trunk:
        outputs = trunk.outputs(ITEMS, 3)
    index, view = torch.tensor([7, 3, 3, 99]), torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(outputs.take(index, view), expected[view, index])
    torch.testing.assert_close(outputs.take(index, view.clamp(min=1)), expected[view.clamp(min=1), index])


def test_only_missing_rows_are_computed(expected: Tensor) -> None:
    backbone = StandIn()
    trunk = cache(backbone)
    trunk.outputs(ITEMS[:40], 2)
    assert backbone.counter.seen == 40 * 3
    trunk.outputs(ITEMS[20:60], 2)
    assert backbone.counter.seen == 60 * 3
    outputs = trunk.outputs(ITEMS[:60], 3)
    assert backbone.counter.seen == 60 * 4
    torch.testing.assert_close(every(outputs), expected[:, :60])


def test_files_serve_other_processes(tmp_path: Path, expected: Tensor) -> None:
    with cache(StandIn(), tmp_path) as trunk:
        trunk.outputs(ITEMS, 3)
    again = StandIn()
    with cache(again, tmp_path) as trunk:
        torch.testing.assert_close(every(trunk.outputs(ITEMS, 3)), expected)
    assert again.counter.seen == 0
    with cache(again, tmp_path, seed=1) as trunk:  # another seed shares the clean view only
        assert not torch.equal(every(trunk.outputs(ITEMS, 3))[1], expected[1])
    assert again.counter.seen == 300
    other = StandIn(seed=5)
    with cache(other, tmp_path) as trunk:
        trunk.outputs(ITEMS, 3)
    assert other.counter.seen == 400


@pytest.mark.parametrize("at", [0, 57 * ROW_BYTES + 100])
def test_a_damaged_row_is_computed_again(tmp_path: Path, expected: Tensor, at: int) -> None:
    with cache(StandIn(), tmp_path) as trunk:
        trunk.outputs(ITEMS)
    (rows,) = [path for path in tmp_path.glob("*.rows") if path.stat().st_size]
    with rows.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    for computed in (1, 0):  # the new row is appended and found the next time
        backbone = StandIn()
        with cache(backbone, tmp_path) as trunk:
            torch.testing.assert_close(every(trunk.outputs(ITEMS)), expected[:1])
        assert backbone.counter.seen == computed


@pytest.mark.parametrize(
    ("suffix", "cut", "lost"), [(".rows", 10, 1), (".index", 5, 1), (".index", 24, 1), (".rows", 3000, 6)]
)
def test_a_torn_file_loses_only_its_end(tmp_path: Path, expected: Tensor, suffix: str, cut: int, lost: int) -> None:
    with cache(StandIn(), tmp_path) as trunk:
        trunk.outputs(ITEMS)
    (path,) = [path for path in tmp_path.glob(f"*{suffix}") if path.stat().st_size]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - cut)
    backbone = StandIn()
    with cache(backbone, tmp_path) as trunk:
        torch.testing.assert_close(every(trunk.outputs(ITEMS)), expected[:1])
    assert backbone.counter.seen == lost


def test_a_damaged_record_is_ignored(tmp_path: Path, expected: Tensor) -> None:
    with cache(StandIn(), tmp_path) as trunk:
        trunk.outputs(ITEMS)
    (path,) = [path for path in tmp_path.glob("*.index") if path.stat().st_size]
    path.write_bytes(b"\0" * 24 + path.read_bytes()[24:])
    backbone = StandIn()
    with cache(backbone, tmp_path) as trunk:
        torch.testing.assert_close(every(trunk.outputs(ITEMS)), expected[:1])
    assert backbone.counter.seen == 1


def test_bad_images_are_skipped_and_duplicates_share_a_row() -> None:
    backbone = StandIn()
    bad = memory_item(b"no image", "bad.jpg")
    listener = Listener()
    outputs = cache(backbone).outputs([bad, ITEMS[0], ITEMS[1], ITEMS[0]], 2, listener)
    assert outputs.kept == [1, 2, 3]
    assert [skipped.source for skipped in outputs.skipped] == ["bad.jpg"]
    assert backbone.counter.seen == 2 * 3
    assert listener.done == 3
    rows = every(outputs)
    assert torch.equal(rows[:, 0], rows[:, 2])


def test_without_augmentation_every_view_is_the_clean_one(expected: Tensor) -> None:
    backbone = StandIn()
    outputs = cache(backbone, augmentation="none").outputs(ITEMS, 3)
    assert backbone.counter.seen == len(ITEMS)
    assert outputs.views == 3
    for view in (0, 1, 3):
        torch.testing.assert_close(outputs.take(torch.arange(100), view), expected[0])
    mixed = outputs.take(torch.arange(2), torch.tensor([0, 3]))
    torch.testing.assert_close(mixed, expected[0, :2])


def test_above_the_memory_limit_rows_go_to_a_temporary_folder(
    tmp_path: Path, expected: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    listener = Listener()
    backbone = StandIn()
    with cache(backbone, memory_bytes=100 * ROW_BYTES) as trunk:
        trunk.outputs(ITEMS[:50], 1, listener)
        assert not listener.notes
        outputs = trunk.outputs(ITEMS, 3, listener)
        assert "it goes to" in listener.notes[0]
        assert len(list(tmp_path.iterdir())) == 1
        torch.testing.assert_close(every(outputs), expected)
        assert backbone.counter.seen == 400
    assert not list(tmp_path.iterdir())


def test_fewer_views_when_they_do_not_fit(expected: Tensor) -> None:
    listener = Listener()
    outputs = cache(StandIn(), memory_bytes=310 * ROW_BYTES, disk_bytes=0).outputs(ITEMS, 3, listener)
    assert outputs.views == 2
    assert any("Only 2 of 3" in note for note in listener.notes)
    torch.testing.assert_close(every(outputs), expected[:3])
    assert cache(StandIn(), memory_bytes=210 * ROW_BYTES, disk_bytes=0).outputs(ITEMS, 3).views == 0
    with pytest.raises(StorageError, match="cache_disk_bytes"):
        cache(StandIn(), memory_bytes=10, disk_bytes=10).outputs(ITEMS, 3)


@pytest.mark.parametrize(("memory_rows", "views"), [(400, 3), (200, 2)])
def test_a_full_disk_is_no_end(
    tmp_path: Path, expected: Tensor, monkeypatch: pytest.MonkeyPatch, memory_rows: int, views: int
) -> None:
    write = FileSegment.append
    calls = iter(range(1000))

    def failing(self: FileSegment, keys: list[bytes], rows: Tensor) -> None:
        if next(calls) >= 4:
            raise StorageError("trunk cache can't grow (No space left on device).")
        write(self, keys, rows)

    monkeypatch.setattr(FileSegment, "append", failing)
    listener, backbone = Listener(), StandIn()
    with cache(backbone, tmp_path, memory_bytes=memory_rows * ROW_BYTES) as trunk:
        outputs = trunk.outputs(ITEMS, 3, listener)
        assert outputs.views == 3 if memory_rows == 400 else outputs.views in (2, 3)
        torch.testing.assert_close(every(outputs), expected[: outputs.views + 1])
    assert "stays in memory" in listener.notes[0]


def test_a_write_that_fails_half_way_leaves_a_good_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = FileSegment(tmp_path / "x", (2,))
    segment.append([b"a" * 16], torch.ones(1, 2))
    (tmp_path / "x.index").chmod(0o400)
    monkeypatch.setattr("talon_ocd.offline.row_store._records", _no_space)
    with pytest.raises(StorageError, match="No space"):
        segment.append([b"b" * 16], torch.ones(1, 2))
    assert (tmp_path / "x.rows").stat().st_size == 8
    assert segment.count == 1


def _no_space(*arguments: object) -> None:
    raise OSError(28, "No space left on device")


def test_least_recently_used_files_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (1, 2):
        with cache(StandIn(seed), tmp_path) as trunk:
            trunk.outputs(ITEMS)
    with cache(StandIn(1), tmp_path) as trunk:  # used again: now 2 is the oldest
        trunk.outputs(ITEMS[:1])
    third = StandIn(3)
    with cache(third, tmp_path, disk_bytes=int(2.5 * 100 * (ROW_BYTES + 24))) as trunk:
        assert len(trunk.outputs(ITEMS)) == 100
    for seed, computed in ((1, 0), (2, 100)):
        backbone = StandIn(seed)
        with cache(backbone, tmp_path) as trunk:
            trunk.outputs(ITEMS)
        assert backbone.counter.seen == computed


def test_a_cache_in_use_is_left_alone(tmp_path: Path, expected: Tensor) -> None:
    listener = Listener()
    with cache(StandIn(), tmp_path) as first, cache(StandIn(), tmp_path) as second:
        first.outputs(ITEMS[:10])
        outputs = second.outputs(ITEMS, 0, listener)
        torch.testing.assert_close(every(outputs), expected[:1])
        first.outputs(ITEMS)
    assert "another process uses it" in listener.notes[0]


def test_a_disk_without_space_is_seen_in_advance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_folder, "SPARE_BYTES", 10**18)
    listener = Listener()
    with cache(StandIn(), tmp_path) as trunk:
        outputs = trunk.outputs(ITEMS, 2, listener)
    assert outputs.views == 2
    assert listener.notes


def test_a_folder_that_cant_be_made_costs_only_a_note(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    listener = Listener()
    with cache(StandIn(), tmp_path / "file" / "folder") as trunk:
        assert len(trunk.outputs(ITEMS, 0, listener)) == 100
    assert "can't be made" in listener.notes[0]
