"""Archives that Ray embeds: the file of one process, row for row."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest

from talon_ocd.backbones import get_backbone
from talon_ocd.embeddings import archive, write_archive
from talon_ocd.images import stream
from talon_ocd.scale.settings import RaySettings
from tests.cli.running import refused, talon

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of Ray's own models
    pytest.importorskip("ray.data", reason="archives on Ray need the extra ray")
    from talon_ocd.scale.embed import RayEmbedder

pq = pytest.importorskip("pyarrow.parquet", reason="embeddings need the extra parquet")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray Data's context, about itself
def test_ray_writes_the_file_of_one_process(
    known_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "CHUNK", 15)
    data = Path(shutil.copytree(known_folder, tmp_path / "data"))
    (data / "2" / "broken.png").write_bytes(b"no picture")
    source, backbone = stream(data), get_backbone("tiny-vit", image_size=16)
    alone = write_archive(tmp_path / "alone.parquet", source, backbone)
    spread = RayEmbedder(backbone, RaySettings(encoders=2))
    done = write_archive(tmp_path / "ray.parquet", source, backbone, engine=spread.all)
    assert done.images == alone.images == 80 and done.skipped == alone.skipped
    assert pq.read_table(tmp_path / "ray.parquet").equals(pq.read_table(tmp_path / "alone.parquet"))


def test_options_of_ray_are_for_ray(known_folder: Path, tmp_path: Path) -> None:
    words = ("embed", known_folder, "-o", tmp_path / "f.parquet", "-m", "tiny-vit")
    assert "are for --engine ray" in refused(*words, "--encoders", 2)
    assert "give --gpus-per-encoder" in refused(*words, "--engine", "ray", "--device", "cuda")
    assert talon(*words, "--engine", "dask").code == 2
