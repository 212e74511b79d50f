"""Images are found again by their keys, wherever they came from."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from talon_ocd.images import file_item, stream
from talon_ocd.images.again import find_again

ODD = ["plain.png", "with|pipe|1|2.png", "spaces and ünï.png", r"back\x41slash.png"]


def written(path: Path, shade: int = 9) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), (shade, 0, 0)).save(path, "PNG")
    return path


@pytest.mark.parametrize("name", ODD)
def test_a_file(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name)
    item = file_item(path)
    found = find_again("its name", item.key)
    assert found is not None
    assert (found.source, found.key) == ("its name", item.key)
    assert found.load().size == (8, 6)
    os.utime(path, (1, 1))
    assert find_again("its name", item.key) is None
    path.unlink()
    assert find_again("its name", item.key) is None


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))
    try:
        written(path)
    except (OSError, UnicodeError):
        pytest.skip("this disk takes text only")
    found = find_again("x", file_item(path).key)
    assert found is not None and found.load().size == (8, 6)


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
def test_members_of_an_archive(tmp_path: Path, ending: str) -> None:
    for at, name in enumerate(ODD):
        written(tmp_path / "in" / "a" / name, shade=at)
    archive = tmp_path / f"pictures{ending}"
    with tarfile.open(archive, "w:gz" if ending.endswith("gz") else "w") as file:
        file.add(tmp_path / "in", "in")
    items = stream(archive).items
    assert len(items) == len(ODD)
    for item in items:
        found = find_again(item.source, item.key)
        assert found is not None
        assert found.load().tobytes() == item.load().tobytes()
    assert find_again("x", items[0].key + "else") is None
    os.utime(archive, (1, 1))
    assert find_again("x", items[0].key) is None


@pytest.mark.parametrize(
    "key", ["", "sha256:abc", "nothing", "a|1", "/nowhere|1|2", "/nowhere|1|2|member.png", "\0|1|2"]
)
def test_what_is_nowhere(key: str) -> None:
    assert find_again("x", key) is None
