from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from talon_ocd.errors import ConfigError, ImageError
from talon_ocd.images import ImageItem, Limits, Preprocessing, Skipped, batches, load_canvases, memory_item
from tests.images.pictures import photo

SMALL = Preprocessing(resize=16, crop=12)


@dataclass(frozen=True)
class Trouble:
    error: BaseException | None
    delay: float = 0.0

    def read(self, source: str, limits: Limits) -> Image.Image:
        time.sleep(self.delay)
        if self.error is not None:
            raise self.error
        return photo(16, 16)


def item(number: int, error: BaseException | None = None, delay: float = 0.0) -> ImageItem:
    return ImageItem(str(number), None, str(number), Trouble(error, delay))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_canvases_come_in_order(workers: int) -> None:
    items = [memory_item(photo(20 + at, 30), str(at)) for at in range(40)]
    loaded = list(load_canvases(items, SMALL, workers=workers))
    assert [found for found, _ in loaded] == items
    for found, canvas in loaded:
        assert isinstance(canvas, Tensor) and canvas.dtype == torch.uint8
        assert torch.equal(canvas, SMALL.canvas(found.load()))


def test_slow_images_keep_their_place() -> None:
    items = [item(at, delay=0.02 * (at % 3 == 0)) for at in range(12)]
    assert [found.source for found, _ in load_canvases(items, SMALL, workers=3)] == [str(at) for at in range(12)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ImageError("1", "is bad."), "is bad."),
        (MemoryError(), "needs more memory than there is; make the image smaller."),
        (OSError("plugin"), "could not be loaded (OSError: plugin); export it again."),
        (RecursionError("deep"), "could not be loaded (RecursionError: deep); export it again."),
    ],
)
def test_a_stream_never_dies_of_one_image(workers: int, error: Exception, reason: str) -> None:
    skipped: list[Skipped] = []
    items = [item(0), item(1, error), item(2), item(3), item(4)]
    sizes = [
        [found.source for found in batch.items] for batch in batches(items, SMALL, 2, skipped.append, workers=workers)
    ]
    assert sizes == [["0", "2"], ["3", "4"]]
    assert skipped == [Skipped("1", reason)]


def test_batches_are_full_except_the_last(tmp_path: Path) -> None:
    skipped: list[Skipped] = []
    items = [ImageItem(str(at), None, str(at), tmp_path / "missing") if at % 4 == 0 else item(at) for at in range(21)]
    found = list(batches(items, SMALL, 4, skipped.append))
    assert [len(batch) for batch in found] == [4, 4, 4, 3]
    assert all(len(batch.canvases) == len(batch) for batch in found)
    assert len(skipped) == 6
    assert list(batches([], SMALL, 4, skipped.append)) == []


def test_lazy_iterables_are_not_read_ahead() -> None:
    asked: list[int] = []

    def lazy() -> Iterator[ImageItem]:
        for at in range(3):
            asked.append(at)
            yield item(at)

    loaded = load_canvases(lazy(), SMALL, workers=2)
    for at in range(3):
        assert next(iter(loaded))[0].source == str(at)
        assert asked == list(range(at + 1))


def test_stopping_early_leaves_no_thread_and_does_not_load_everything() -> None:
    started: list[int] = []

    @dataclass(frozen=True)
    class Counted:
        number: int

        def read(self, source: str, limits: Limits) -> Image.Image:
            started.append(self.number)
            return photo(16, 16)

    items = [ImageItem(str(at), None, str(at), Counted(at)) for at in range(500)]
    found = batches(items, SMALL, 2, lambda skipped: None)
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert len(started) < 100
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("talon-images")]


def test_interrupts_are_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        list(load_canvases([item(0, KeyboardInterrupt())], SMALL, workers=0))


def test_refuses_settings() -> None:
    with pytest.raises(ConfigError, match="workers=-1"):
        load_canvases([], SMALL, workers=-1)
    with pytest.raises(ConfigError, match="batch_size=0"):
        next(batches([], SMALL, 0, lambda skipped: None))


@pytest.mark.parametrize("aspect", ["squash", "keep"])
def test_draft_gives_nearly_the_same_canvas(aspect: str, tmp_path: Path) -> None:
    preprocessing = Preprocessing(resize=64, crop=56, aspect=aspect)  # type: ignore[arg-type]
    photo(900, 600).save(tmp_path / "x.jpg", quality=92)
    whole = ImageItem("x", None, "x", tmp_path / "x.jpg")
    ((_, canvas),) = load_canvases([whole], preprocessing)
    assert isinstance(canvas, Tensor)
    full = preprocessing.canvas(whole.load())
    assert canvas.shape == full.shape
    assert (canvas.float() - full.float()).abs().mean() < 1
