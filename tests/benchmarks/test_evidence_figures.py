"""The figures of docs/evidence.md show what was measured, and what the rule does."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from talon_ocd.evaluation.drawing import Drawing
from talon_ocd.evaluation.rows import read_rows
from tests.benchmarks.test_ceilings import SCRIPTS

pytestmark = pytest.mark.skipif(not SCRIPTS.is_dir(), reason="installed without the scripts")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield importlib.import_module("evidence_figures")
    del sys.modules["evidence_figures"]


@pytest.fixture
def drawn(script: ModuleType) -> dict[str, Drawing]:
    return {drawing.name: drawing for drawing in script.drawings()}


def test_densities_are_densities_and_priors_those_of_the_formulas(drawn: dict[str, Drawing]) -> None:
    data = drawn["evidence-rule"].data
    for label, density in data["densities"].items():
        assert 0.05 * np.sum(density) == pytest.approx(1.0, abs=0.01), label
    theta = 5 / 6 * 100 / 0.5
    hurdles = data["hurdles"]["100 known classes"]
    assert hurdles[-1] == pytest.approx(np.log(100) + 3.5 * np.log(theta / (theta + 8192)))
    assert data["favours"]["favours"][0] == pytest.approx(5.0 * np.log(0.93 / 0.07))


def test_curves_along_the_stream_end_at_what_the_tables_say(drawn: dict[str, Drawing], script: ModuleType) -> None:
    curves = drawn["evidence-along"].data
    for name in ("pets", "cub"):
        rows = read_rows([script.RESULTS / f"grid-lite0-{name}.json"]).rows
        ours = [row for row in rows if row.method == "evidence" and row.get("preset") == "default"]
        ends = [row.get("strict", "all") for row in ours if row.setup.epochs == "10"]
        assert len(ends) == 9
        assert curves[name]["the default"]["strict_all"][0][-1] == pytest.approx(100 * np.mean(ends), abs=0.02)
        assert set(curves[name]) == set(script.ALONG.values())


def test_rehearsals_are_drawn_with_the_mean_that_a_fit_takes(
    drawn: dict[str, Drawing], script: ModuleType, tmp_path: Path
) -> None:
    for name in ("pets", "cub"):
        for curve in drawn["evidence-rehearsals"].data[name].values():
            best = curve["offsets"][int(np.argmax(curve["strict_all"]))]
            assert curve["offsets"][0] < curve["mean"] < curve["offsets"][-1] and abs(curve["mean"] - best) < 2.5
    assert [path.suffix for path in drawn["evidence-rehearsals"].save(tmp_path)] == [".png", ".svg"]
