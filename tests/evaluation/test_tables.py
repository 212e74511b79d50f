import csv
from typing import Any

import pytest

from talon_ocd.errors import ConfigError, DataError
from talon_ocd.evaluation.rows import Row
from talon_ocd.evaluation.table import DASH, Column, Figure, Table
from talon_ocd.evaluation.tables import ABLATION, TABLES, make_table
from tests.evaluation.grid_rows import row

CLIP: dict[str, Any] = {"backbone": "openai/clip-vit-base-patch16", "family": "clip"}


def table(name: str, *contents: dict[str, Any], only: str | None = None) -> Table:
    return make_table(name, [Row(content) for content in contents], only)


def cells(made: Table) -> dict[str, list[str]]:
    return {line[0]: line[1:] for line in made.rows}


def test_methods_by_data_sets_with_mean_and_deviation() -> None:
    rows = [row(seed=seed, old=0.6 + 0.02 * seed, new=0.5) for seed in range(3)]
    made = table("main-strict", *rows, row("cub", "slc"), row("pets", "mlc"), row("pets", "tent"))
    assert made.header == [
        "method", "cub All", "cub Old", "cub New", "cub categories",
        "pets All", "pets Old", "pets New", "pets categories",
    ]  # fmt: skip
    lines = cells(made)
    assert set(lines) == {"TALON", "SLC"}  # switches and adapters have tables of their own
    assert lines["TALON"] == [DASH] * 4 + ["54.1 ± 0.7", "62.0 ± 2.0", "50.0 ± 0.0", "61 ± 1"]
    assert lines["SLC"] == ["53.3", "60.0", "50.0", "60", *[DASH] * 4]
    greedy = cells(table("main-greedy", *rows))
    assert greedy["TALON"][1] == "72.0 ± 2.0"


def test_what_stands_below() -> None:
    rows = [row(seed=seed, order=order) for seed in (0, 1) for order in (0, 1, 2)]
    notes = "\n".join(table("main-strict", *rows, row(method="slc", epochs=0)).notes)
    assert "1 to 2 samplings x 1 to 3 orders (gcd sampling, shuffled order)" in notes
    assert "Epochs: 10 (TALON); 0 (SLC)." in notes
    assert "Pipeline: aspect keep, augmentation gcd." in notes and "pets 0.344" in notes
    assert "`talon evaluate --dataset pets --method all -o out`" in notes and "Commit: abc123def456." in notes
    assert "no paper used the backbone efficientnet-lite0" in notes


def test_published_figures_only_beside_their_own_backbone_and_split() -> None:
    ours = [row("cub", **CLIP), row("cifar10-6-4", **CLIP), row("cifar10", **CLIP), row("cub", "closed", **CLIP)]
    made = table("main-strict", *ours)
    lines = cells(made)
    assert lines["TALON, published"] == [
        *[DASH] * 4,  # cifar10 with 5/5 is another task than the one that TALON published
        "56.9", "31.1", "76.3", DASH,
        "45.5", "60.7", "37.8", DASH,
    ]  # fmt: skip
    assert list(lines) == ["TALON", "TALON, published", "Closed set (floor)"]
    assert "Published TALON: TALON (Wu et al., 2026), main table." in made.notes
    assert "Not beside cifar10: TALON is published for the split 6/4." in made.notes
    for backbone in ("efficientnet-lite0", "openai/clip-vit-large-patch14"):
        other = table("main-strict", row("cub", backbone=backbone, family="clip" if "clip" in backbone else backbone))
        assert list(cells(other)) == ["TALON"] and f"the backbone {backbone}" in other.notes[-1]


def test_text_shows_one_data_set_at_a_time() -> None:
    made = table("main-strict", row("cub", **CLIP), row("cifar10", **CLIP), row("cifar10", "slc", **CLIP))
    part = made.part("cifar10")
    assert part.header == ["method", "All", "Old", "New", "categories"]
    assert [line[0] for line in part.rows] == ["TALON", "SLC"]
    assert [line[0] for line in made.part("cub").rows] == ["TALON", "TALON, published", "SLC"]


def test_the_ablation_has_eight_rows_in_the_order_of_the_paper() -> None:
    made = table("ablation", row("cub", "talon", **CLIP), row("cub", "mlc", **CLIP))
    assert [line[0] for line in made.rows if "published" not in line[0]] == [
        "Baseline", "Baseline+MLC", "Baseline+TTA-P", "Baseline+MLC+TTA-P", "Baseline+TTA-M", "Baseline+MLC+TTA-M",
        "Baseline+TTA-P-M", "TALON",
    ]  # fmt: skip
    lines = cells(made)
    assert lines["Baseline"] == ["", "", "", DASH, DASH, DASH]
    assert lines["Baseline+MLC"] == ["yes", "", "", "53.3", "60.0", "50.0"]
    assert lines["Baseline+MLC, published"][3:] == ["45.7", "58.6", "39.2"]
    assert lines["TALON"][:3] == ["yes", "yes", "yes"] and set(ABLATION) > {"tta-p-m"}


def test_categories_against_code_length() -> None:
    def coded(method: str, bits: int, **more: Any) -> dict[str, Any]:
        return row("cub", method, settings={"recipe": {"bits": bits, "epochs": 10}}, **CLIP, **more)

    swept = coded("smile", 64, variant={"recipe.bits": 64})
    others = [coded("phe-16", 16), coded("phe-legacy", 12), row("cub", variant={"online.threshold": 0.5})]
    made = table("counts", coded("smile", 12), swept, row("cub", **CLIP), *others)
    assert [tuple(line[:3]) for line in made.rows] == [
        ("SMILE", "64", "60"), ("SMILE", "32", DASH), ("SMILE", "16", DASH), ("SMILE", "12", "60"),
        ("PHE", "64", DASH), ("PHE", "32", DASH), ("PHE", "16", "60"), ("PHE", "12", DASH),
        ("TALON", "", "60"), ("TALON, published", "", "153"),
    ]  # fmt: skip
    assert made.header[:4] == ["method", "bits", "cub categories", "cub All"]
    shown = [line[0] for line in table("main-strict", coded("phe-16", 16), coded("phe", 12)).rows]
    assert shown == ["PHE", "PHE, published"]


def test_adapters_and_backbones() -> None:
    made = cells(table("adapters", row("pets", "tent", **CLIP), row("pets", **CLIP)))
    assert made["MLC+TENT, published"] == ["58.4", "66.1", "54.3"] and made["MLC+AEO"] == [DASH] * 3
    both = table("backbones", row("cub", **CLIP), row("cub"))
    assert [line[:2] for line in both.rows] == [
        ["TALON", CLIP["backbone"]], ["TALON, published", CLIP["backbone"]], ["TALON", "efficientnet-lite0"],
    ]  # fmt: skip
    assert both.rows[1][2:] == ["45.5", "60.7", "37.8", "58.9", "87.3", "44.7"]


def test_times() -> None:
    made = table("timing", row("cub", **CLIP), row("pets", timings={}))
    assert cells(made)[f"TALON (backbone {CLIP['backbone']})"][:6] == [
        "750.00",
        "1500.0",
        "6.09",
        "0.61",
        "1.22",
        "36.0",
    ]
    assert any("TALON stream 1753.67 ms" in note for note in made.notes)
    assert not any("1472.48" in note for note in made.notes)  # Pets is not CLIP here
    total = table("training-time", row("cub", **CLIP))
    assert total.rows == [["TALON", "60.0", "80.0"]]
    assert any("TALON total training 1452.3 s" in note for note in total.notes)
    assert not any("A6000" in note for note in total.notes)  # that was DINO


def test_lines_made_in_different_ways_say_so() -> None:
    longer = row(settings={"recipe": {"epochs": 100}}, epochs=100)
    wider = row(settings={"recipe": {"epochs": 100, "bits": 3}}, epochs=100)
    labels = [line[0] for line in table("main-strict", row(), longer, row(method="slc")).rows]
    assert labels == ["TALON (epochs 10)", "TALON (epochs 100)", "SLC"]
    labels = [line[0] for line in table("main-strict", longer, wider).rows]
    assert len(set(labels)) == 2 and all("settings" in label and "epochs" not in label for label in labels)


def test_a_row_that_says_little_gives_dashes() -> None:
    poor = {"dataset": "x", "method": "y", "seed": 0, "order": {}, "strict": {}, "greedy": {}}
    for name in ("main-strict", "main-greedy", "backbones", "timing", "training-time"):
        made = table(name, poor)
        assert set(made.rows[0][1:]) <= {DASH, ""} and made.markdown() and made.csv()


def test_csv_for_programs() -> None:
    made = table("main-strict", row(old=0.6), row(seed=1, old=0.7))
    lines = [line for line in made.csv().splitlines() if not line.startswith("#")]
    found = list(csv.DictReader(lines))
    assert found[0]["method"] == "TALON" and float(found[0]["pets Old"]) == 65.0
    assert float(found[0]["pets Old std"]) == pytest.approx(7.07, abs=0.005)
    assert made.csv().count("\n# ") == len(made.notes)


def test_markdown_is_a_table() -> None:
    made = Table(
        "x", "A title", (Column("", "method"), Column("pets", "All")), (("a|b", Figure(1.0, 0.5)), ("c", None))
    )
    assert made.markdown().splitlines()[2:6] == [
        "| method | pets All |", "| :--- | ---: |", "| a\\|b | 1.0 ± 0.5 |", f"| c | {DASH} |",
    ]  # fmt: skip


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'ablation'"):
        table("ablatoin", row())
    with pytest.raises(ConfigError, match="there are pets"):
        table("ablation", row(), only="cub")
    with pytest.raises(DataError, match="no row belongs into the table ablation"):
        table("ablation", row(method="slc"))
    assert len(TABLES) == 8
