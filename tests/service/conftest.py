from collections.abc import Iterator
from pathlib import Path

import pytest

from talon_ocd import Talon
from tests.service.running import Client, Running, digits, running


@pytest.fixture(scope="module")
def served(fitted: Talon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service that the tests of a module share; it has answered some images."""
    with running(fitted, tmp_path_factory.mktemp("shared") / "stream") as service:
        answer = service.client().batch(digits(40))
        assert answer.status == 200
        yield service


@pytest.fixture
def client(served: Running) -> Client:
    return served.client()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "stream"
