from pathlib import Path

import pytest

from talon_ocd.errors import ConfigError, DataError
from talon_ocd.evaluation.datasets import load_dataset
from tests.images.pictures import put


def test_digits() -> None:
    data = load_dataset("digits")
    assert len(data.items) == 1797 and data.known == tuple("012345") and data.classes == tuple("0123456789")
    assert load_dataset("digits", known=3).known == ("0", "1", "2")


def test_glyphs() -> None:
    data = load_dataset("glyphs", classes=4)
    assert len(data.items) == 80 and len(data.known) == 2 and len(data.classes) == 4


def test_a_folder(tmp_path: Path) -> None:
    root = tmp_path / "zoo"
    for number, name in enumerate(("wolf", "ant", "cat", "bee/deep")):
        put(root / name / "1.png", number)
    put(root / "stray.png")
    (root / "ant" / "notes.txt").touch()
    data = load_dataset("folder", root)
    assert data.name == "folder:zoo" and data.known == ("ant", "bee") and data.classes == ("ant", "bee", "cat", "wolf")
    assert len(data.items) == 4 and len(data.skipped) == 1
    listed = tmp_path / "known.txt"
    listed.write_text("wolf\n", encoding="utf-8")
    assert load_dataset("folder", root, str(listed)).classes == ("wolf", "ant", "bee", "cat")


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'digits'"):
        load_dataset("digit")
    with pytest.raises(ConfigError, match="needs --root"):
        load_dataset("folder")
    with pytest.raises(ConfigError, match="--root is for --dataset folder"):
        load_dataset("glyphs", tmp_path)
    with pytest.raises(DataError, match="no labelled images"):
        load_dataset("folder", tmp_path)
