from pathlib import Path

import pytest

from tests.cli.running import refused, talon
from tests.evaluation.grid_rows import row, write


@pytest.fixture
def out(tmp_path: Path) -> Path:
    rows = [
        row(dataset, method, seed) for dataset in ("pets", "cub") for method in ("talon", "baseline") for seed in (0, 1)
    ]
    return write(tmp_path / "out", *rows)


def test_all_tables_that_have_rows(out: Path) -> None:
    ended = talon("tables", out)
    assert ended.code == 0
    for word in ("Strict accuracy in percent", "Greedy accuracy", "Ablation of TALON", "± 0.0", "efficientnet-lite0"):
        assert word in ended.out, word


def test_one_table_as_markdown_and_csv(out: Path) -> None:
    ended = talon("tables", out, "--table", "ablation", "--format", "markdown", "--only", "pets")
    assert ended.code == 0 and ended.out.count("**Ablation") == 1 and "cub" not in ended.out
    ended = talon("tables", out, "-t", "main-strict", "-f", "csv")
    assert ended.out.startswith("method,cub All,cub All std") and "# Commit: abc123def456." in ended.out


def test_skipped_files_are_told(out: Path) -> None:
    (out / "rows" / "half.json").write_text("{")
    ended = talon("tables", out, "-t", "ablation")
    assert ended.code == 0 and "half.json: skipped" in ended.err


def test_refusals(out: Path, tmp_path: Path) -> None:
    assert "text, markdown, csv" in refused("tables", out, "--format", "html")
    assert "Did you mean 'timing'" in refused("tables", out, "--table", "timings")
    assert "no such folder" in refused("tables", tmp_path / "nowhere")
    broken = row()
    broken["strict"]["all"] = 0.9
    assert "seed 0, order 0" in refused("tables", write(tmp_path / "broken", broken))


def test_figures_are_written_and_missing_ones_told(out: Path, tmp_path: Path) -> None:
    ended = talon("figures", out, "-o", tmp_path / "figures", "--only", "pets")
    assert ended.code == 0
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{name}-pets.{ending}" for name in ("angles", "time", "along") for ending in ("png", "svg")
    }
    assert "along-pets.png" in ended.out and "--sweep online.threshold=" in ended.err
    assert "there are" in refused("figures", out, "-o", tmp_path / "figures", "--only", "cars")
