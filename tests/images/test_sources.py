from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from talon_ocd.errors import DataError, ImageError, StorageError
from talon_ocd.images import (
    ImageSource,
    Limits,
    display,
    file_item,
    in_memory,
    labelled,
    memory_item,
    stdin_items,
    stream,
)
from talon_ocd.images.items import natural
from tests.images.pictures import encoded, photo, put


def names(source: ImageSource) -> list[tuple[str, str | None]]:
    return [(Path(item.source).name, item.label) for item in source.items]


def reasons(source: ImageSource) -> dict[str, str]:
    return {Path(skipped.source).name: skipped.reason for skipped in source.skipped}


def test_folder_of_classes(tmp_path: Path) -> None:
    for name in ("b/10.jpg", "b/9.PNG", "a/deep/er/x.webp", "top.png", ".hidden/x.png", "__MACOSX/x.png"):
        put(tmp_path / name)
    put(tmp_path / "a" / "._x.webp")
    (tmp_path / "a" / "notes.txt").write_text("hello")
    (tmp_path / "c").mkdir()
    source = labelled(tmp_path)
    assert names(source) == [("x.webp", "a"), ("9.PNG", "b"), ("10.jpg", "b")]
    assert source.items[0].source == str(tmp_path / "a/deep/er/x.webp")
    assert source.ignored == 1
    assert reasons(source).keys() == {"top.png", "c"}
    assert "beside the class folders" in reasons(source)["top.png"]
    assert "without images" in reasons(source)["c"]
    assert source.items[0].load().size == (8, 8)


def test_folder_as_a_stream(tmp_path: Path) -> None:
    for name in ("img10.png", "img9.png", "sub/a.png"):
        put(tmp_path / name)
    assert names(stream(tmp_path)) == [("img9.png", None), ("img10.png", None), ("a.png", "sub")]
    assert names(stream(str(tmp_path / "img9.png"))) == [("img9.png", None)]


def test_paths_stay_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "in" / "x.png")
    monkeypatch.chdir(tmp_path)
    assert stream("in").items[0].source == str(Path("in", "x.png"))


def test_links(tmp_path: Path) -> None:
    put(tmp_path / "z" / "x.png")
    put(tmp_path / "z" / "y.png")
    (tmp_path / "z" / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "a").symlink_to(tmp_path / "z", target_is_directory=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "again.png").symlink_to(tmp_path / "z" / "x.png")
    (tmp_path / "b" / "broken.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "b" / "self.png").symlink_to(tmp_path / "b" / "self.png")
    outside = put(tmp_path.parent / f"{tmp_path.name}-outside" / "o.png").parent
    (tmp_path / "linked").symlink_to(outside, target_is_directory=True)
    source = stream(tmp_path)
    assert names(source) == [("o.png", "linked"), ("x.png", "z"), ("y.png", "z")]
    assert reasons(source).keys() == {"loop", "a", "again.png", "broken.png", "self.png"}
    assert "already in the list" in reasons(source)["again.png"]
    assert "repair or remove the link" in reasons(source)["broken.png"]


def test_odd_files_in_a_folder(tmp_path: Path) -> None:
    put(tmp_path / "folder.jpg" / "x.png")
    put(tmp_path / "a.png")
    os.mkfifo(tmp_path / "pipe.png")
    source = stream(tmp_path)
    assert names(source) == [("a.png", None), ("x.png", "folder.jpg")]
    assert "not a regular file" in reasons(source)["pipe.png"]


def test_unreadable_folder_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a.png")
    put(tmp_path / "closed" / "b.png")
    real = os.scandir

    def scandir(path: Path) -> object:
        if Path(path).name == "closed":  # root may enter everything, so chmod would prove nothing
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert "Permission denied" in reasons(stream(tmp_path))["closed"]
    with pytest.raises(DataError, match="Permission denied"):
        stream(tmp_path / "closed")


@pytest.mark.parametrize("raw", ["größe/日本 語.png".encode(), b"caf\xe9/\xff\xfe.png"])
def test_names_of_any_bytes_survive(tmp_path: Path, raw: bytes) -> None:
    try:
        put(tmp_path / os.fsdecode(raw))
    except OSError:
        pytest.skip("this file system only takes UTF-8 names")
    put(tmp_path / "a" / "x.png")
    for source in (labelled(tmp_path), stream(tmp_path)):
        for item in source.items:
            assert json.dumps([item.source, item.label, item.key], ensure_ascii=False).encode()
            assert item.load().size == (8, 8)
    line = f"{tmp_path / os.fsdecode(raw)}\n"
    assert [item.load().size for item in stdin_items([line])] == [(8, 8)]


@given(st.text(alphabet=st.characters(codec=None), max_size=8))
def test_display_is_always_utf8(text: str) -> None:
    assert display(text).encode() or text == ""


@given(st.lists(st.text(alphabet="a1/9é", max_size=6)))
def test_natural_order_is_total(paths: list[str]) -> None:
    assert sorted(paths, key=natural) == sorted(sorted(paths), key=natural)
    assert len({natural(path) for path in paths}) == len(set(paths))


def test_key_changes_with_the_content(tmp_path: Path) -> None:
    path = put(tmp_path / "x.png")
    before = file_item(path).key
    assert stream(tmp_path).items[0].key == before
    path.write_bytes(encoded(photo(9, 9)))
    assert file_item(path).key != before
    assert memory_item(photo(), "a").key == memory_item(photo(), "b").key != memory_item(photo(seed=1), "a").key


@pytest.mark.parametrize("opened", [labelled, stream])
def test_refuses_sources_without_images(tmp_path: Path, opened: object) -> None:
    assert callable(opened)
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("hello")
    for spec, found in {
        "missing": "does not exist",
        "empty": "give the folder",
        "texts": "1 files don't end in .jpg",
        "texts/a.txt": "is not a source of",
        "texts/a.txt/b": "does not exist",
        "nul\0": "can't be read",
    }.items():
        with pytest.raises(DataError, match=found):
            opened(tmp_path / spec)


def test_refuses_a_home_that_does_not_exist() -> None:
    with pytest.raises(DataError, match="no such home folder"):
        stream("~nobody-of-this-name/photos")


def test_refuses_labelled_sources(tmp_path: Path) -> None:
    put(tmp_path / "flat" / "a.png")
    put(tmp_path / "flat" / "b.png")
    with pytest.raises(DataError, match=r"2 images but no class folders; put"):
        labelled(tmp_path / "flat")
    put(tmp_path / "one" / "a" / "a.png")
    with pytest.raises(DataError, match=r"1 labelled images, at least 2 are needed"):
        labelled(tmp_path / "one")
    with pytest.raises(DataError, match="stdin_items"):
        stream("-")


def rows(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("text", ["path,label\n{}", "\ufeffLabel;Path \n{}", "path\tlabel\n{}"])
def test_csv_manifest(tmp_path: Path, text: str) -> None:
    for name in ("b.png", "sub/a, b.png", "c.png"):
        put(tmp_path / "pictures" / name)
    mark = next(mark for mark in ",;\t" if mark in text)
    lines = [
        ("pictures/b.png", "beta"),
        ('"pictures/sub/a, b.png"', "alpha"),
        (f"{tmp_path}/pictures/c.png", ""),
    ]
    body = "\n".join(mark.join(line if text[0] == "p" else line[::-1]) for line in lines)
    manifest = rows(tmp_path / "list.csv", text.format(body))
    assert names(stream(manifest)) == [("b.png", "beta"), ("a, b.png", "alpha"), ("c.png", None)]
    source = labelled(manifest)
    assert names(source) == [("b.png", "beta"), ("a, b.png", "alpha")]
    assert list(reasons(source).values()) == ["has no label; fill the column label."]
    assert ":4 " in source.skipped[0].source


def test_jsonl_manifest(tmp_path: Path) -> None:
    for name in ("b.png", "a.png", "c.png"):
        put(tmp_path / name)
    lines = ['{"path": "b.png", "label": 3}', "", "no json", "[1]", '{"path": "a.png", "label": null}']
    lines += ['{"path": "c.png", "label": ["x"]}', '{"label": "x"}', '{"path": "\\ud800.png", "label": "x"}']
    lines += ["[" * 100_000]
    source = stream(rows(tmp_path / "list.jsonl", "\n".join(lines)))
    assert names(source) == [("b.png", "3"), ("a.png", None), ("c.png", None)]
    found = [skipped.source.rsplit(":", 1)[1].split()[0] for skipped in source.skipped]
    assert found == ["3", "4", "7", "8", "9"]
    assert all(skipped.source.encode() for skipped in source.skipped)


def test_bad_rows_are_listed(tmp_path: Path) -> None:
    put(tmp_path / "a.png")
    put(tmp_path / "b.png")
    text = "path,label,more\na.png,x,1\na.png,x,1\n./a.png,y\n,x\nmissing.png,x\n.,x\n"
    text += "b.png,x,1,2,3\n\nnul\0.png,x\n"
    source = labelled(rows(tmp_path / "list.csv", text))
    assert names(source) == [("a.png", "x"), ("b.png", "x")]
    assert [skipped.reason.split(";")[0] for skipped in source.skipped][:5] == [
        "is already in the list",
        "is already in the list with the label 'x'",
        "has no path",
        "does not exist",
        "is not a regular file",
    ]
    assert len(source.skipped) == 6


def test_refuses_manifests(tmp_path: Path) -> None:
    for name, text, found in [
        ("a.csv", "file,label\na.png,x\n", r"no column path \(columns: file, label\)"),
        ("b.csv", "", r"columns: none"),
        ("c.csv", "path,label\n", "no images"),
        (
            "d.csv",
            "path,label\nmissing.png,x\n",
            r"1 were left out, the first: .*d.csv:2 missing.png does not exist",
        ),
        ("e.csv", 'path,label\n"' + "x" * 200_000, "is not CSV"),
        ("f.jsonl", '{"file": "a.png"}\n', 'has no "path"'),
        ("g.jsonl", "", "no images"),
    ]:
        with pytest.raises(DataError, match=found):
            stream(rows(tmp_path / name, text))


def pack(path: Path, members: dict[str, bytes], links: tuple[str, ...] = ()) -> Path:
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for name in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(info)
    return path


PACKED = {f"./top/{label}/{at}.png": encoded(photo(8, 8 + at)) for label in "ba" for at in (10, 9)}


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tgz"])
def test_tar(tmp_path: Path, ending: str) -> None:
    extra = {"top/stray.png": b"x", "__MACOSX/a.png": b"x", "top/read.txt": b"x", "top/../up.png": b"x"}
    archive = pack(tmp_path / f"x{ending}", PACKED | extra | {"top/a/empty.png": b""}, ("top/a/link.png",))
    source = labelled(archive)
    assert names(source) == [("9.png", "a"), ("10.png", "a"), ("9.png", "b"), ("10.png", "b")]
    assert source.items[0].source == str(archive / "top/a/9.png")
    assert reasons(source).keys() == {"stray.png", "link.png", "up.png", "empty.png"}
    assert source.ignored == 1
    with ThreadPoolExecutor(4) as pool:
        sizes = list(pool.map(lambda item: item.load().size, source.items * 20))
    assert sizes == [(8, 17), (8, 18)] * 40
    assert len({item.key for item in source.items}) == 4
    with pytest.raises(ImageError, match="max_bytes=20"):
        source.items[0].load(Limits(max_bytes=20))
    with pytest.raises(DataError, match="max_bytes=20"):
        labelled(archive, Limits(max_bytes=20))


def test_tar_labels(tmp_path: Path) -> None:
    data = encoded(photo(8, 8))
    flat = pack(tmp_path / "flat.tar", {"in/a.png": data, "in/b.png": data})
    assert names(stream(flat)) == [("a.png", None), ("b.png", None)]
    assert names(labelled(flat)) == [("a.png", "in"), ("b.png", "in")]
    bare = pack(tmp_path / "bare.tar", {"a.png": data, "k/b.png": data})
    assert names(stream(bare)) == [("a.png", None), ("b.png", "k")]


@pytest.mark.parametrize("ending", [".tar", ".tgz"])
def test_damaged_tar(tmp_path: Path, ending: str) -> None:
    rng = np.random.default_rng(0)
    members = {f"a/{at}.png": rng.bytes(4000) for at in range(20)}
    archive = pack(tmp_path / f"x{ending}", members)
    archive.write_bytes(archive.read_bytes()[:40_000])
    source = stream(archive)
    assert 5 < len(source.items) < 20
    assert "ends too early" in source.skipped[-1].reason
    for data in (b"", b"no archive at all", archive.read_bytes()[:20]):
        archive.write_bytes(data)
        with pytest.raises(DataError, match=r"can't be read as|no images"):
            stream(archive)
    archive.unlink()
    if ending == ".tar":
        with pytest.raises(ImageError, match="is the archive still there"):
            source.items[0].load()


def test_a_full_disk_is_no_end_of_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    with pytest.raises(StorageError, match="set TMPDIR"):
        stream(pack(tmp_path / "x.tgz", PACKED))


def test_tar_with_a_member_twice(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for height in (8, 9):
            data = encoded(photo(8, height))
            info = tarfile.TarInfo("a.png")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    source = stream(tmp_path / "x.tar")
    assert source.items[0].load().size == (8, 9)
    assert "twice" in reasons(source)["a.png"]


def test_stdin_is_read_lazily(tmp_path: Path) -> None:
    path = put(tmp_path / "a b.png")
    asked = 0

    def lines() -> Iterator[str]:
        nonlocal asked
        for line in (f"{path}\n", "\n", "missing.png\r\n"):
            asked += 1
            yield line

    items = stdin_items(lines())
    assert next(items).load().size == (8, 8)
    assert asked == 1
    with pytest.raises(ImageError, match=r"missing.png: does not exist"):
        next(items).load()


def test_pictures_in_memory() -> None:
    pictures: list[Any] = [photo(), np.asarray(photo()), torch.zeros(3, 4, 4), encoded(photo())]
    source = in_memory(pictures, ["a", 1, 2.5, "b"])
    assert [item.label for item in source.items] == ["a", "1", "2.5", "b"]
    assert [item.load().size for item in source.items] == [(40, 30), (40, 30), (4, 4), (40, 30)]
    assert len({item.key for item in source.items}) == 4
    with pytest.raises(DataError, match="4 pictures came with 1 labels"):
        in_memory(pictures, ["a"])


def test_a_damaged_picture_in_memory_is_refused_when_loaded() -> None:
    data = encoded(photo(200, 200))
    (item,) = in_memory([Image.open(io.BytesIO(data[: len(data) // 2]))]).items
    with pytest.raises(ImageError, match="truncated"):
        item.load()
