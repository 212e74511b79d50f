"""Embeddings as a source of images: ours, those of others, and damaged ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from talon_ocd.backbones import TinyViT, Vectors
from talon_ocd.errors import DataError, ImageError
from talon_ocd.images import ImageItem, VectorSource, load_canvases, memory_item, stream
from talon_ocd.images import labelled as list_labelled
from talon_ocd.images import vectors as module
from tests.images.pictures import photo

pa = pytest.importorskip("pyarrow", reason="reading embeddings needs the extra parquet")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3) + 1


def write(file: Path, groups: int = 2, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), file, row_group_size=-(-4 // groups))
    return file


def loaded(source: VectorSource, size: int = 3) -> list[Any]:
    return [value for _, value in load_canvases(source.items, Vectors(size=size).preprocessing)]


def read(path: Path, **options: Any) -> VectorSource:
    source = stream(path, **options)
    assert isinstance(source, VectorSource)
    return source


@pytest.mark.parametrize("kind", [pa.list_(pa.float32(), 3), pa.list_(pa.float16(), 3), pa.list_(pa.float64())])
def test_vectors_of_others_are_read_as_they_are(tmp_path: Path, kind: Any) -> None:
    rows = pa.array(
        [row.astype(np.float16) for row in ROWS] if kind.value_type == pa.float16() else ROWS.tolist(), kind
    )
    path = write(tmp_path / "them.parquet", path=["a", "b", "c", "d"], label=[1, 2, None, 1], emb=rows)
    source = read(path)
    assert (source.facts.size, source.facts.encoder) == (3, "")
    assert [item.source for item in source.items] == ["a", "b", "c", "d"]
    assert [item.label for item in source.items] == ["1", "2", None, "1"]
    assert [vector.tolist() for vector in loaded(source)] == ROWS.tolist()
    known = list_labelled(path)
    assert [item.source for item in known.items] == ["a", "b", "d"] and known.skipped[0].source == "c"


def test_rows_without_a_name_have_a_number_and_keys_follow_the_file(tmp_path: Path) -> None:
    source = read(write(tmp_path / "plain.parquet", v=list(ROWS)))
    assert [item.source for item in source.items] == [f"plain.parquet:{row}" for row in range(4)]
    assert len({item.key for item in source.items}) == 4
    again = read(write(tmp_path / "plain.parquet", v=list(ROWS), more=[1, 2, 3, 4]))
    assert not {item.key for item in source.items} & {item.key for item in again.items}


def test_bad_vectors_are_left_out_one_by_one(tmp_path: Path) -> None:
    rows = [[1.0, 2.0, 3.0], None, [1.0, 2.0], [0.0, 0.0, 0.0], [1.0, float("nan"), 2.0], [4.0, 5.0, 6.0]]
    source = read(write(tmp_path / "bad.parquet", groups=1, v=pa.array(rows, pa.list_(pa.float32()))))
    found = loaded(source)
    assert [value.tolist() for value in (found[0], found[5])] == [rows[0], rows[5]]
    assert all(isinstance(value, ImageError) and "no vector of 3 numbers" in str(value) for value in found[1:5])


def test_the_column_is_found_or_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "two.parquet", first=list(ROWS), second=list(ROWS * 2), name=list("abcd"))
    with pytest.raises(DataError, match=r"which column holds the vectors\? Give --column; .*: first, second\."):
        stream(path)
    assert loaded(read(path, column="second"))[0].tolist() == [2, 4, 6]
    with pytest.raises(DataError, match=r"'secnd' holds no vectors.*Did you mean 'second'"):
        stream(path, column="secnd")
    with pytest.raises(DataError, match="'name' holds no vectors"):
        stream(path, column="name")


def test_what_is_no_parquet_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "junk.parquet").write_bytes(b"junk")
    with pytest.raises(DataError, match="can't be read as a Parquet file"):
        stream(tmp_path / "junk.parquet")
    empty = write(tmp_path / "empty.parquet", v=pa.array([None, None], pa.list_(pa.float32())))
    with pytest.raises(DataError, match="'v' has no vector"):
        stream(empty)
    damaged = pa.table({"v": list(ROWS)}).replace_schema_metadata({module.METADATA: b"{}"})
    pq.write_table(damaged, tmp_path / "damaged.parquet")
    with pytest.raises(DataError, match="metadata is damaged"):
        stream(tmp_path / "damaged.parquet")


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_BYTES", 30)  # a group of two rows has 24
    file = module.VectorFile(write(tmp_path / "v.parquet", groups=2, v=list(ROWS)), None)
    for row in (0, 3, 1, 2):
        assert (vector := file.vector(row)) is not None and vector.tolist() == ROWS[row].tolist()
        assert len(file._held) == 1


def test_the_row_groups_in_use_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_BYTES", 30)  # a group of one row has 12
    file = module.VectorFile(write(tmp_path / "v.parquet", groups=4, v=list(ROWS)), None)
    for row in (0, 1, 0, 2):
        file.vector(row)
    assert list(file._held) == [0, 2]


@pytest.mark.parametrize("kind", [pa.list_(pa.float32(), 3), pa.list_(pa.float32())])
def test_damaged_row_groups_are_told(tmp_path: Path, kind: Any) -> None:
    vectors = pa.array(ROWS.tolist(), kind)
    path = write(tmp_path / "v.parquet", name=["one", "two", "three", "four"], v=vectors)
    columns = pq.ParquetFile(path).metadata.row_group(1)

    def damaged(column: int) -> Path:
        chunk = columns.column(column)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        content = bytearray(path.read_bytes())
        content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
        target = tmp_path / f"damaged{column}.parquet"
        target.write_bytes(content)
        return target

    with pytest.raises(DataError, match="can't be read as a Parquet file"):
        stream(damaged(0))
    found = loaded(read(damaged(1)))
    assert [vector.tolist() for vector in found[:2]] == ROWS[:2].tolist()
    assert all(isinstance(value, ImageError) and "vector that is lost" in str(value) for value in found[2:])


def test_vectors_of_no_numbers_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "v.parquet", v=pa.array([[], []], pa.list_(pa.float32(), 0)))
    with pytest.raises(DataError, match="'v' have 0 numbers"):
        stream(path)


def test_pictures_and_embeddings_are_told_apart(tmp_path: Path) -> None:
    row = read(write(tmp_path / "v.parquet", v=list(ROWS))).items[0]
    picture: ImageItem = memory_item(photo(), "photo")
    for item, preprocessing, words in (
        (row, TinyViT().preprocessing, "is an embedding"),
        (picture, Vectors(size=3).preprocessing, "is a picture"),
    ):
        ((_, found),) = load_canvases([item], preprocessing)
        assert isinstance(found, ImageError) and words in str(found)
