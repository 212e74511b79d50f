"""Options of archives that Ray embeds; what it writes is looked at in ``test_streams.py``, which has a Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import refused, talon

pytest.importorskip("ray.data", reason="archives on Ray need the extra ray")


def test_options_of_ray_are_for_ray(known_folder: Path, tmp_path: Path) -> None:
    words = ("embed", known_folder, "-o", tmp_path / "f.parquet", "-m", "tiny-vit")
    assert "are for --engine ray" in refused(*words, "--encoders", 2)
    assert "give --gpus-per-encoder" in refused(*words, "--engine", "ray", "--device", "cuda")
    assert talon(*words, "--engine", "dask").code == 2
