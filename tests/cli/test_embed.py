"""``talon embed``, and everything downstream on what it wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.nn import functional as F

from talon_ocd import Talon
from talon_ocd.backbones import get_backbone
from talon_ocd.embeddings import Embedder, archive, write_archive
from talon_ocd.embeddings.archive import Chunks, Embedding
from talon_ocd.images import stream
from talon_ocd.images import vectors as vectors_module
from tests.cli.running import bad_folder, refused, talon
from tests.offline.standin import Listener

pa = pytest.importorskip("pyarrow", reason="embeddings need the extra parquet")
pq = pytest.importorskip("pyarrow.parquet")

TINY = ("-m", "tiny-vit", "--image-size", 16, "-q")


def decisions(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "decisions.jsonl").read_text(encoding="utf-8").splitlines()]


def ids(folder: Path) -> list[tuple[str, int]]:
    return [(decision["source"], decision["category"]) for decision in decisions(folder)]


@pytest.fixture(scope="module")
def features(known_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Embeddings of the labelled digits by an encoder that was never trained."""
    path = tmp_path_factory.mktemp("embed") / "features.parquet"
    assert talon("embed", known_folder, "-o", path, *TINY).code == 0
    return path


def test_the_file_says_what_it_holds(known_folder: Path, features: Path) -> None:
    table = pq.read_table(features)
    assert table.column_names == ["source", "label", "key", "feature"]
    assert table.schema.field("feature").type == pa.list_(pa.float32(), 96)
    items, backbone = stream(known_folder).items, get_backbone("tiny-vit", image_size=16)
    assert table["source"].to_pylist() == [item.source for item in items]
    assert table["label"].to_pylist() == [item.label for item in items] and table["key"][0].as_py() == items[0].key
    pixels = backbone.preprocessing.pixels([backbone.preprocessing.loaded(item) for item in items[:3]])
    expected = F.normalize(backbone(pixels), dim=1).numpy()
    np.testing.assert_allclose(np.array(table["feature"].to_pylist()[:3]), expected, atol=1e-6)
    facts = json.loads(table.schema.metadata[b"talon_ocd"])
    assert facts["encoder"] == {
        "name": "tiny-vit", "fingerprint": backbone.fingerprint(), "size": 96,
        "preprocessing": json.loads(json.dumps(backbone.preprocessing.to_dict())),
    }  # fmt: skip
    assert [path.name for path in features.parent.iterdir()] == [features.name]


def test_half_precision_and_bad_images(tmp_path: Path) -> None:
    good, bad = bad_folder(tmp_path / "images")
    ended = talon("embed", tmp_path / "images", "-o", tmp_path / "f.parquet", "--half", *TINY)
    assert ended.code == 0 and f"{len(good)} embeddings of 96 numbers by tiny-vit" in ended.out
    assert f"{len(bad)} skipped" in ended.out and "truncated.jpg" in ended.err
    table = pq.read_table(tmp_path / "f.parquet")
    assert table.schema.field("feature").type == pa.list_(pa.float16(), 96)
    assert {Path(name).name for name in table["source"].to_pylist()} == good


def test_fit_discover_and_evaluate_take_embeddings(features: Path, incoming_folder: Path, tmp_path: Path) -> None:
    assert talon("fit", features, "-o", tmp_path / "model", "--set", "rounds=1", "-q").code == 0
    assert talon("embed", incoming_folder, "-o", tmp_path / "incoming.parquet", *TINY).code == 0
    words = ("-m", tmp_path / "model", "-q")
    ended = talon("discover", tmp_path / "incoming.parquet", "-o", tmp_path / "out", *words)
    assert ended.code == 0 and "100 images" in ended.out and "strict accuracy" in ended.out
    assert "data:image/jpeg" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")  # files are still there
    assert talon("discover", tmp_path / "incoming.parquet", "-s", tmp_path / "stream", *words).code == 0
    assert ids(tmp_path / "stream" / "report") == ids(tmp_path / "out")
    ended = talon("evaluate", "-d", "folder", "--root", features, "-o", tmp_path / "rows", "--seeds", 0, "-q")
    assert ended.code == 0 and "vectors of tiny-vit" in ended.out
    assert "these are pictures" in refused("discover", incoming_folder, "-o", tmp_path / "no", *words)


def test_a_linear_map_can_be_trained_on_embeddings(features: Path, tmp_path: Path) -> None:
    ended = talon("fit", features, "-o", tmp_path / "model", "--epochs", 2, "--threshold", 0.9, "-q")
    assert ended.code == 0
    model = Talon.from_pretrained(tmp_path / "model")
    assert len(model.report["training"]["losses"]) == 2 and model.backbone.feature_size == 192  # with the old beside
    assert talon("discover", features, "-m", tmp_path / "model", "-o", tmp_path / "out", "-q").code == 0


def test_a_model_of_images_answers_embeddings_of_its_own_encoder(
    model: Path, features: Path, incoming_folder: Path, tmp_path: Path
) -> None:
    assert talon("embed", incoming_folder, "-o", tmp_path / "own.parquet", "-m", model, "-q").code == 0
    for data, name in ((incoming_folder, "images"), (tmp_path / "own.parquet", "vectors")):
        assert talon("discover", data, "-m", model, "-o", tmp_path / name, "-q").code == 0
    assert ids(tmp_path / "images") == ids(tmp_path / "vectors")
    words = ("-m", model, "-o", tmp_path / "no")
    assert "made by tiny-vit, not by this model's own encoder" in refused("discover", features, *words)
    wish = refused("discover", tmp_path / "own.parquet", *words, "--adapt", "encoder")
    assert "adapt=encoder needs images" in wish


def test_a_stream_of_images_goes_on_with_embeddings(model: Path, incoming_folder: Path, tmp_path: Path) -> None:
    names = sorted(incoming_folder.rglob("*.png"))
    (tmp_path / "first.csv").write_text("path\n" + "\n".join(map(str, names[:50])), encoding="utf-8")
    talon("embed", incoming_folder, "-o", tmp_path / "all.parquet", "-m", model, "-q")
    talon("discover", incoming_folder, "-m", model, "-o", tmp_path / "whole", "-q")
    for data, out in ((tmp_path / "first.csv", "a"), (tmp_path / "all.parquet", "b")):
        words = ("-m", model, "-s", tmp_path / "stream", "-o", tmp_path / out, "-q")
        assert talon("discover", data, *words).code == 0
    parts = [decision["category"] for out in ("a", "b") for decision in decisions(tmp_path / out)]
    assert parts == [decision["category"] for decision in decisions(tmp_path / "whole")]


def test_vectors_of_other_spaces_are_refused(features: Path, known_folder: Path, tmp_path: Path) -> None:
    assert talon("fit", features, "-o", tmp_path / "model", "--threshold", 0.9, "-q").code == 0
    table = pq.read_table(features)
    small = [row[:5] for row in table["feature"].to_pylist()]
    pq.write_table(pa.table({"v": small}), tmp_path / "small.parquet")
    words = ("-m", tmp_path / "model", "-o", tmp_path / "out")
    assert "vectors have 5 numbers, the model's 96" in refused("discover", tmp_path / "small.parquet", *words)
    facts = json.loads(table.schema.metadata[b"talon_ocd"])
    facts["encoder"]["fingerprint"] = "another"
    other = table.replace_schema_metadata({"talon_ocd": json.dumps(facts)})
    pq.write_table(other, tmp_path / "other.parquet")
    assert "embed with the same encoder" in refused("discover", tmp_path / "other.parquet", *words)
    pq.write_table(table.replace_schema_metadata({}), tmp_path / "unknown.parquet")  # nothing but the size is known
    assert talon("discover", tmp_path / "unknown.parquet", *words, "-q").code == 0
    assert "--aspect is for pictures" in refused("fit", features, "-o", tmp_path / "m", "--aspect", "keep")
    assert "can't be embedded once more" in refused("embed", features, "-o", tmp_path / "twice.parquet", *TINY)
    assert "has no encoder" in refused("embed", known_folder, "-o", tmp_path / "n.parquet", "-m", tmp_path / "model")
    assert "--device 'nonsense' can't be used" in refused("fit", features, "-o", tmp_path / "m", "--device", "nonsense")
    assert "a .parquet file" in refused("embed", tmp_path, "-o", tmp_path / "no.npz")


def test_an_interrupted_archive_goes_on(
    known_folder: Path, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "CHUNK", 20)
    source, backbone = stream(known_folder), get_backbone("tiny-vit", image_size=16)
    path, listener = tmp_path / "f.parquet", Listener()

    def stops(chunks: Chunks) -> Iterator[Embedding]:
        yield from Embedder(backbone).all(chunks[:2])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_archive(path, source, backbone, engine=stops)
    assert not path.exists()
    again = write_archive(path, source, backbone, progress=listener)
    assert (again.resumed, again.images, listener.done) == (40, 80, 80)
    assert pq.ParquetFile(path).num_row_groups == 4
    assert pq.read_table(path).equals(pq.read_table(features))
    with pytest.raises(KeyboardInterrupt):
        write_archive(path, source, backbone, engine=stops)
    other = write_archive(path, source, backbone, half=True, progress=listener)  # another file: nothing to go on with
    assert other.resumed == 0 and "begun anew" in listener.notes[-1]
    assert [item.name for item in tmp_path.iterdir()] == ["f.parquet"]


def test_files_of_others_beside_the_archive_stay(known_folder: Path, tmp_path: Path) -> None:
    parts = tmp_path / "f.parquet.parts"
    parts.mkdir()
    (parts / "thesis.txt").write_text("years of work", encoding="utf-8")
    assert "files of somebody else" in refused("embed", known_folder, "-o", tmp_path / "f.parquet", *TINY)
    (parts / archive.MARK).write_text("of another run", encoding="utf-8")
    (parts / "00000007.parquet").write_bytes(b"old")
    assert talon("embed", known_folder, "-o", tmp_path / "f.parquet", *TINY).code == 0
    assert [path.name for path in parts.iterdir()] == ["thesis.txt"]
    assert pq.read_metadata(tmp_path / "f.parquet").num_rows == 80


def test_without_pyarrow_the_message_says_what_to_install(
    features: Path, known_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors_module, "find_spec", lambda name: None)
    for words in (
        ("embed", known_folder, "-o", tmp_path / "f.parquet", *TINY),
        ("fit", features, "-o", tmp_path / "m"),
    ):
        assert "pip install 'talon-ocd[parquet]'" in refused(*words)
