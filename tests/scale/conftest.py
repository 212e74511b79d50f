from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from talon_ocd.images import ImageSource, stream


@pytest.fixture
def packed(incoming_folder: Path, tmp_path: Path) -> ImageSource:
    """Three images in a compressed archive."""
    with tarfile.open(tmp_path / "some.tar.gz", "w:gz") as archive:
        for item in stream(incoming_folder).items[:3]:
            archive.add(item.source, Path(item.source).name)
    return stream(tmp_path / "some.tar.gz")
