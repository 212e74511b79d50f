"""Options of archives that Ray embeds; what it writes is looked at in ``test_streams.py``, which has a Ray."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from talon_ocd.images import ImageSource, stream
from talon_ocd.scale.portable import bytes_to_send
from tests.cli.running import refused, talon

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of Ray's own models
    pytest.importorskip("ray.data", reason="archives on Ray need the extra ray")
    from talon_ocd.scale.embed import turns


def test_options_of_ray_are_for_ray(known_folder: Path, tmp_path: Path) -> None:
    words = ("embed", known_folder, "-o", tmp_path / "f.parquet", "-m", "tiny-vit")
    assert "are for --engine ray" in refused(*words, "--encoders", 2)
    assert "give --gpus-per-encoder" in refused(*words, "--engine", "ray", "--device", "cuda")
    assert talon(*words, "--engine", "dask").code == 2


def test_images_of_compressed_archives_go_in_turns(packed: ImageSource, known_folder: Path) -> None:
    """Others are read where they are, however many there are."""
    chunks = [[item] for item in packed.items]
    assert list(turns(chunks, 1)) == [[chunk] for chunk in chunks]
    assert list(turns(chunks, 10**9)) == [chunks]
    assert [len(turn) for turn in turns(chunks, bytes_to_send(packed.items[0]) + 1)] == [2, 1]
    files = [[item] for item in stream(known_folder).items]
    assert list(turns(files, 1)) == [files]
