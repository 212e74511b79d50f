import copy
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from talon_ocd import Talon
from tests import tiny

settings.register_profile("suite", deadline=None, derandomize=True, database=None)
settings.load_profile("suite")
torch.set_num_threads(1)  # the networks of the tests are so small that threads would only wait for each other


@pytest.fixture(scope="session")
def rehearsed() -> Talon:
    """A model as ``fit`` leaves it, with a rehearsed offset."""
    talon = tiny.tiny_talon(epochs=8)
    talon.fit(tiny.labelled())
    return talon


@pytest.fixture(scope="session")
def fitted(rehearsed: Talon) -> Talon:
    """The same with an offset that lets streams open some categories: what four tiny classes say of it is an accident.

    Streams adapt copies of it, so that tests may share it.
    """
    talon = copy.copy(rehearsed)
    assert talon.evidence is not None
    talon.evidence = talon.evidence.with_offset(2.0)
    return talon


@pytest.fixture(scope="session")
def model(fitted: Talon, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "model"
    fitted.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def known_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_folder(tmp_path_factory.mktemp("known") / "known", tiny.labelled())


@pytest.fixture(scope="session")
def incoming_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_folder(tmp_path_factory.mktemp("incoming") / "incoming", tiny.incoming())
