from __future__ import annotations

import tarfile
from collections.abc import Generator
from pathlib import Path

import pytest

from talon_ocd.images import ImageSource, stream
from tests.time_limit import time_limit


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    with time_limit():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    with time_limit():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    with time_limit():
        return (yield)


@pytest.fixture
def packed(incoming_folder: Path, tmp_path: Path) -> ImageSource:
    """Three images in a compressed archive."""
    with tarfile.open(tmp_path / "some.tar.gz", "w:gz") as archive:
        for item in stream(incoming_folder).items[:3]:
            archive.add(item.source, Path(item.source).name)
    return stream(tmp_path / "some.tar.gz")
