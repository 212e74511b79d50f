"""A folder that fills while somebody looks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from talon_ocd.errors import DataError
from talon_ocd.images.watch import watch


def put(path: Path, side: int = 4) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side)).save(path)


class Meanwhile:
    """Lets things happen between two looks; ends the watch when nothing is left to happen."""

    def __init__(self, *steps: object) -> None:
        self.steps = list(steps)

    def __call__(self, seconds: float) -> None:
        assert seconds > 0
        if not self.steps:
            raise KeyboardInterrupt
        step = self.steps.pop(0)
        if callable(step):
            step()


def names(folder: Path, meanwhile: Meanwhile) -> list[list[str]]:
    found: list[list[str]] = []
    try:
        for items in watch(folder, rest=meanwhile):
            found.append([Path(item.source).name for item in items])
    except KeyboardInterrupt:
        return found
    raise AssertionError("a watch does not end")


def test_images_come_once_they_stay_the_same(tmp_path: Path) -> None:
    put(tmp_path / "a.png")

    def grow() -> None:
        put(tmp_path / "b.png", 50)
        os.utime(tmp_path / "b.png", ns=(1, 1))

    steps = Meanwhile(
        lambda: put(tmp_path / "b.png"), grow, None, None, lambda: put(tmp_path / "later" / "c.png"), None
    )
    assert names(tmp_path, steps) == [["a.png"], ["b.png"], ["c.png"]]


def test_an_image_that_changes_comes_again(tmp_path: Path) -> None:
    put(tmp_path / "a.png")
    steps = Meanwhile(None, lambda: put(tmp_path / "a.png", 9), None, lambda: (tmp_path / "a.png").unlink(), None)
    assert names(tmp_path, steps) == [["a.png"], ["a.png"]]


def test_a_folder_that_is_away_is_waited_for(tmp_path: Path) -> None:
    folder, away = tmp_path / "drive", tmp_path / "away"
    put(folder / "a.png")
    steps = Meanwhile(None, lambda: folder.rename(away), None, lambda: away.rename(folder), None, None)
    assert names(folder, steps) == [["a.png"]]


def test_only_a_folder_can_be_watched(tmp_path: Path) -> None:
    put(tmp_path / "a.png")
    with pytest.raises(DataError, match="not a folder"):
        next(watch(tmp_path / "a.png"))
