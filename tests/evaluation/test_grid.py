import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from talon_ocd.config import TalonConfig
from talon_ocd.errors import ConfigError
from talon_ocd.evaluation.datasets import Dataset
from talon_ocd.evaluation.grid import FITS, ROWS, Grid
from talon_ocd.evaluation.plan import Cell, Plan
from talon_ocd.methods import Method, get_method
from talon_ocd.methods.registry import with_setting
from talon_ocd.methods.talon import TalonRecipe
from tests import tiny
from tests.offline.standin import StandIn

DATA = Dataset("some digits", list(tiny.part(0, 12, tuple("01234567"))), tuple("01234"))
CONFIG = TalonConfig().override(epochs=1, views=2, rounds=1, orders=1, grid=5, try_untrained=False, threshold=0.6)


def cell(name: str, **settings: Any) -> Cell:
    method: Method = get_method(name, CONFIG)
    method = replace(method, recipe=method.recipe.with_epochs(1))
    for key, value in settings.items():
        method = with_setting(method, key, value)
    return Cell(name, method, settings)


def grid(folder: Path, *cells: Cell, seeds: tuple[int, ...] = (0, 1), orders: int = 2, **about: Any) -> Grid:
    plan = Plan(cells or [cell("mlc"), cell("talon"), cell("smile")], CONFIG, seeds, orders)
    return Grid(plan, StandIn(), folder, {"command": "talon evaluate", "commit": None, **about})


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often TALON was trained."""
    count: Counter[str] = Counter()
    fit = TalonRecipe.fit

    def counted(self: TalonRecipe, *words: Any, **options: Any) -> Any:
        count["fits"] += 1
        return fit(self, *words, **options)

    monkeypatch.setattr(TalonRecipe, "fit", counted)
    return count


def test_every_row_is_a_file_of_plain_data(tmp_path: Path, fits: Counter[str]) -> None:
    rows = grid(tmp_path).run([DATA])
    assert len(rows) == 3 * 2 * 2 and len(list((tmp_path / ROWS).rglob("*.json"))) == 12
    assert fits["fits"] == 2  # mlc and talon share one for each seed
    assert {(row["method"], row["seed"], row["order"]["number"]) for row in rows} == {
        (name, seed, number) for name in ("mlc", "talon", "smile") for seed in (0, 1) for number in (0, 1)
    }
    for row in rows:
        json.dumps(row, allow_nan=False)
        share = row["sizes"]["old_share"]
        for protocol in ("strict", "greedy"):
            accuracy = row[protocol]
            assert accuracy["all"] == pytest.approx(share * accuracy["old"] + (1 - share) * accuracy["new"])
        assert row["strict"]["all"] <= row["greedy"]["all"] + 1e-12 and row["epochs"] == 1
        assert row["timings"]["fit_seconds"] > 0 and row["pipeline"]["augmentation"] == "talon"


def test_a_grid_that_was_stopped_goes_on(tmp_path: Path, fits: Counter[str]) -> None:
    expected = grid(tmp_path / "whole").run([DATA])
    stopped = grid(tmp_path / "stopped")

    def stop(*told: Any) -> None:
        if told[1].name == "talon" and told[2] == 1:
            raise KeyboardInterrupt

    stopped.on_stream = stop
    with pytest.raises(KeyboardInterrupt):
        stopped.run([DATA])
    assert len(list((tmp_path / "stopped" / FITS).iterdir())) == 1
    before, fits["fits"] = len(list((tmp_path / "stopped" / ROWS).rglob("*.json"))), 0
    assert before == 3  # mlc twice, and talon's first order
    rows = grid(tmp_path / "stopped").run([DATA])
    assert fits["fits"] == 1  # that of seed 1; the other was on disk
    assert [row["strict"] for row in rows] == [row["strict"] for row in expected]
    assert [row["categories"] for row in rows] == [row["categories"] for row in expected]


def test_a_finished_grid_computes_nothing(tmp_path: Path) -> None:
    first = grid(tmp_path).run([DATA])
    again = grid(tmp_path)
    again.on_stream = lambda *told: pytest.fail("nothing is left to stream")
    assert again.run([DATA]) == first


def test_a_damaged_fit_is_trained_again(tmp_path: Path, fits: Counter[str]) -> None:
    grid(tmp_path, cell("mlc"), seeds=(0,), orders=1).run([DATA])
    for file in (tmp_path / FITS).iterdir():
        file.write_bytes(b"torn")
    grid(tmp_path, cell("mlc"), cell("talon"), seeds=(0,), orders=1).run([DATA])
    assert fits["fits"] == 2


def test_a_fit_with_evidence_is_read_again(tmp_path: Path, fits: Counter[str]) -> None:
    def run() -> dict[str, Any]:
        (row,) = grid(tmp_path, cell("evidence"), seeds=(0,), orders=1).run([DATA])
        return row

    first = run()
    for file in (tmp_path / ROWS).rglob("*.json"):
        file.unlink()
    again = run()
    assert fits["fits"] == 1 and first["rethought"] == again["rethought"] and first["along"] == again["along"]
    assert first["threshold"] == 0 and first["settings"]["recipe"]["config"]["offline"]["keep_pretrained"]


def test_rows_of_another_protocol_are_refused(tmp_path: Path) -> None:
    grid(tmp_path, cell("mlc"), seeds=(0,), orders=1).run([DATA])
    other = Dataset("some digits", DATA.items[:-1], DATA.known)
    with pytest.raises(ConfigError, match="made with other settings, data or encoder"):
        grid(tmp_path, cell("mlc"), seeds=(0,), orders=1).run([other])


def test_variants_are_told_apart_and_share_a_fit(tmp_path: Path, fits: Counter[str]) -> None:
    cells = [cell("mlc", threshold=value) for value in (-1.0, 0.5, 1.5)]
    rows = grid(tmp_path, *cells, seeds=(0,), orders=1).run([DATA])
    assert fits["fits"] == 1 and [row["variant"] for row in rows] == [{"threshold": v} for v in (-1.0, 0.5, 1.5)]
    memory = [row["categories"]["memory"] for row in rows]
    assert memory[0] == 5 and memory[2] == 5 + rows[2]["sizes"]["stream"] and memory[0] <= memory[1] <= memory[2]


def test_few_labels_are_told_in_the_row_and_kept_apart(tmp_path: Path) -> None:
    few = grid(tmp_path, cell("mlc"), seeds=(0,), orders=1)
    few.plan = replace(few.plan, labelled=3)
    (row,) = few.run([DATA])
    assert row["sampling"] == "gcd, at most 3 of a class" and row["sizes"]["labelled"] == 15
    with pytest.raises(ConfigError, match="was made with other settings"):
        grid(tmp_path, cell("mlc"), seeds=(0,), orders=1).run([DATA])


def test_plans_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--orders 2: give 1 or more; the order of the data set is a single one"):
        Plan([cell("mlc")], CONFIG, (0,), 2, "dataset")
    with pytest.raises(ConfigError, match="at least one method and one seed"):
        Plan([], CONFIG)
