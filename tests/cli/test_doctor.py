import importlib
import importlib.util
import json
from typing import Any

import pytest

from talon_ocd import __version__
from talon_ocd.cli import doctor as module
from talon_ocd.errors import BackboneError
from tests.cli.running import talon


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(work: Any, seconds: float = 1.0) -> float:
        work()
        return 12.0

    monkeypatch.setattr(module, "_rate", once)


def test_facts_for_machines() -> None:
    ended = talon("doctor", "--json")
    facts = json.loads(ended.out)
    assert ended.code == 0 and facts["talon-ocd"] == __version__ and facts["torch threads"] >= 1
    assert facts["decode"].startswith("12 photos/s") and facts["encode"].startswith("192 images/s")
    assert isinstance(facts["traps"], list)


def test_traps_are_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    find, load = importlib.util.find_spec, importlib.import_module

    def broken(name: str, package: str | None = None) -> Any:
        if name == "torchvision":
            raise RuntimeError("operator torchvision::nms does not exist")
        return load(name, package)

    absent = {"transformers": None, "torchvision": find("json")}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: absent[name] if name in absent else find(name))
    monkeypatch.setattr(importlib, "import_module", broken)
    ended = talon("doctor")
    assert ended.code == 0
    assert "torchvision::nms does not exist" in ended.out and "pip uninstall torchvision" in ended.out
    assert "pip install 'talon-ocd[hub]'" in ended.out


def test_an_encoder_that_fails_is_a_fact_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise BackboneError("the weights are gone; install them.")

    monkeypatch.setattr(module, "get_backbone", missing)
    ended = talon("doctor")
    assert ended.code == 0 and "failed: the weights are gone; install them." in ended.out
