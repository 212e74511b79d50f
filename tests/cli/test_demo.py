import json
from pathlib import Path

import pytest

from talon_ocd.cli import demo as module
from talon_ocd.evaluation.datasets import Dataset
from tests import tiny
from tests.cli.running import talon


def test_help() -> None:
    ended = talon("demo", "--help")
    assert ended.code == 0 and "digits" in ended.out and "--output" in ended.out


def test_the_demo_discovers_and_leaves_metrics_and_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = Dataset("digits", list(tiny.part(0, 20, tuple("012345"))), tuple("0123"))
    monkeypatch.setattr(module, "load_dataset", lambda name: few)
    ended = talon("demo", "-o", tmp_path, "-q")
    assert ended.code == 0 and "known digits: 0, 1, 2, 3" in ended.out and "80/80 images" in ended.out
    metrics = json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))
    assert set(metrics["strict"]) == set(metrics["greedy"]) == {"all", "old", "new"}
    assert metrics["categories"]["found"] > 4 and metrics["sizes"]["stream"] == 80 and metrics["strict"]["all"] > 0.3
    assert len((tmp_path / "decisions.jsonl").read_text(encoding="utf-8").splitlines()) == 80
    assert "discovered-1" in (tmp_path / "report.html").read_text(encoding="utf-8")
