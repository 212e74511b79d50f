"""The worked example of the documentation is run as it is printed there."""

import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from talon_ocd.errors import ConfigError
from talon_ocd.methods import list_methods, register_file
from talon_ocd.methods.registry import REGISTRY
from tests.cli.running import refused, talon
from tests.methods import test_contract as contract

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "your-own.md"
CONTRACT = [function for name, function in inspect.getmembers(contract, inspect.isfunction) if name.startswith("test_")]


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Path]:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "radius.py"
    path.write_text(code, encoding="utf-8")
    yield path
    REGISTRY.pop("radius", None)


@pytest.mark.parametrize("check", CONTRACT, ids=lambda function: function.__name__)
def test_the_example_keeps_the_contract(example: Path, check: Callable[[str], None]) -> None:
    assert register_file(example) == ["radius"]
    check("radius")


def test_the_example_runs_beside_the_others(
    example: Path, incoming_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALON_CACHE", str(tmp_path / "cache"))
    words = ("-d", "folder", "--root", incoming_folder, "--known", 4, "--seeds", 0, "-o", tmp_path / "out", "-q")
    ended = talon("evaluate", *words, "-b", "tiny-vit", "--image-size", 16, "-m", f"{example},closed", "--epochs", 0)
    assert ended.code == 0, ended
    rows = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert [row["method"] for row in rows] == ["radius", "closed"] and rows[0]["title"] == "Radius of each class"
    shown = talon("tables", tmp_path / "out", "--table", "main-strict")
    assert shown.code == 0 and "Radius of each class" in shown.out


def test_rows_of_a_file_that_was_changed_are_refused(
    example: Path, incoming_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALON_CACHE", str(tmp_path / "cache"))
    data = ("-d", "folder", "--root", incoming_folder, "--known", 4, "--seeds", 0, "-o", tmp_path / "out", "-q")
    words = ("evaluate", *data, "-b", "tiny-vit", "--image-size", 16, "-m", example, "--epochs", 0)
    assert talon(*words).code == 0
    assert talon(*words).code == 0  # the same file: nothing to do
    example.write_text(f"{example.read_text(encoding='utf-8')}\n# another idea\n", encoding="utf-8")
    assert "method file" in refused(*words)


def test_files_that_are_no_methods(example: Path, tmp_path: Path) -> None:
    before = list_methods()
    broken = tmp_path / "broken.py"
    for text, wanted in (
        ("1 / 0", "ZeroDivisionError"),
        ("x = 1", "must define METHODS"),
        ("METHODS = {'a': 1}", "must define METHODS"),
        (example.read_text(encoding="utf-8").replace('"radius": Entry', '"talon": Entry'), "'talon' can't be used"),
    ):
        broken.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=wanted):
            register_file(broken)
    assert list_methods() == before
    assert "there is no such Python file" in refused("evaluate", "-m", "./none.py", "-o", tmp_path / "out")
