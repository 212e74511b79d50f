import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from talon_ocd.evaluation.grid import Grid
from talon_ocd.evaluation.splits import split, stream_order
from talon_ocd.images import labelled
from tests.cli.running import refused, talon
from tests.images.pictures import put

QUICK = (
    *("--backbone", "tiny-vit", "--image-size", 16, "--epochs", 1, "--set", "views=2", "--set", "rounds=1"),
    *("--set", "orders=1", "--set", "grid=6", "--set", "try_untrained=false", "-q"),
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALON_CACHE", str(tmp_path / "cache"))


def rows(folder: Path) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return content


def test_a_folder_over_seeds_and_orders(incoming_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("-d", "folder", "--root", incoming_folder, "--known", 4, "--seeds", "0,2", "--orders", 2, "--report")
    ended = talon("evaluate", *words, "-m", "talon,closed", "-o", out, *QUICK)
    assert ended.code == 0 and "talon" in ended.out and "closed" in ended.out and "±" in ended.out
    found = rows(out)
    assert len(found) == 2 * 2 * 2 and found[0]["preset"] == "default" and found[0]["command"].startswith("talon")
    source = labelled(incoming_folder)
    for row in found:
        assert row["known_classes"] == 4 and {"found", "true", "memory"} <= set(row["categories"])
        parts = split(source.items, ("0", "1", "2", "3"), row["seed"])
        folder = out / "reports" / "folder-incoming" / row["method"] / f"seed-{row['seed']}-{row['order']['number']}"
        lines = (folder / "decisions.jsonl").read_text(encoding="utf-8").splitlines()
        order = stream_order(parts.rest, "shuffled", row["seed"], row["order"]["number"])
        assert [json.loads(line)["source"] for line in lines] == [source.items[at].source for at in order]
        assert row["sizes"]["labelled"] == len(parts.labelled) and (folder / "report.html").exists()
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        assert summary["metrics"]["strict"] == row["strict"]


@pytest.mark.parametrize("preset", ["official", "paper"])
def test_presets_run(preset: str, incoming_folder: Path, tmp_path: Path) -> None:
    words = ("evaluate", "-d", "folder", "--root", incoming_folder, "-p", preset, "--seeds", 0, "-o", tmp_path, *QUICK)
    assert talon(*words).code == 0
    (row,) = rows(tmp_path)
    assert row["method"] == "talon" and row["threshold"] == 0.75 and row["preset"] == preset


def test_evidence_is_measured_by_default_unless_a_number_means_the_rule_of_talon(
    incoming_folder: Path, tmp_path: Path
) -> None:
    words = ("evaluate", "-d", "folder", "--root", incoming_folder, "--known", 4, "--seeds", 0, *QUICK, "--report")
    assert talon(*words, "-o", tmp_path / "evidence").code == 0
    (row,) = rows(tmp_path / "evidence")
    assert (row["method"], row["threshold"]) == ("evidence", 0) and set(row["rethought"]) >= {"strict", "moved"}
    lines = next((tmp_path / "evidence").rglob("decisions.jsonl")).read_text(encoding="utf-8").splitlines()
    assert {json.loads(line)["unit"] for line in lines} == {"log-odds"}
    assert talon(*words, "--threshold", 0.8, "-o", tmp_path / "number").code == 0
    (row,) = rows(tmp_path / "number")
    assert (row["method"], row["threshold"]) == ("talon", 0.8) and "rethought" not in row


def test_settings_of_methods_and_sweeps(incoming_folder: Path, tmp_path: Path) -> None:
    words = ("-d", "folder", "--root", incoming_folder, "--known", 4, "--seeds", 0, "-o", tmp_path / "out", *QUICK)
    assert talon("evaluate", *words, "-m", "mlc,smile", "--set", "smile.bits=5").code == 0
    settings = {row["method"]: row["settings"] for row in rows(tmp_path / "out")}
    assert settings["smile"]["recipe"]["bits"] == 5 and settings["smile"]["recipe"]["epochs"] == 1
    sweep = ("--sweep", "online.threshold=0.2,0.9", "--sweep", "offline.margin=0.1,0.3")
    assert talon("evaluate", *words, "-m", "mlc", *sweep).code == 0
    variants = [row["variant"] for row in rows(tmp_path / "out")]
    assert variants == [
        {"online.threshold": threshold, "offline.margin": margin} for threshold in (0.2, 0.9) for margin in (0.1, 0.3)
    ]
    assert [row["threshold"] for row in rows(tmp_path / "out")] == [0.2, 0.2, 0.9, 0.9]


def test_what_is_asked_for_goes_before_what_a_rule_does_by_default(incoming_folder: Path, tmp_path: Path) -> None:
    words = ("-d", "folder", "--root", incoming_folder, "--known", 4, "--seeds", 0, "-o", tmp_path / "out", *QUICK)
    asked = ("--adapt", "prototypes", "--set", "evidence.sweeps=1", "--sweep", "evidence.dimensions=4,6")
    assert talon("evaluate", *words, "-m", "evidence,talon", *asked).code == 0
    found = rows(tmp_path / "out")
    assert [row["variant"] for row in found] == [{"evidence.dimensions": size} for size in (4, 6)] * 2
    for row in found:
        config = row["settings"]["recipe"]["config"]
        assert (config["evidence"]["dimensions"], config["evidence"]["sweeps"]) == (*row["variant"].values(), 1)
        assert (row["settings"]["adapt"] or config["online"]["adapt"]) == ["prototypes"]


def test_generated_images_are_for_diffgre(incoming_folder: Path, tmp_path: Path) -> None:
    for number in range(6):
        put(tmp_path / "made" / f"{number}.png", number)
    words = ("-d", "folder", "--root", incoming_folder, "--known", 4, "--seeds", 0, *QUICK)
    made = ("--virtual", tmp_path / "made")
    assert talon("evaluate", *words, "-m", "diffgre-smile", *made, "-o", tmp_path / "out").code == 0
    assert rows(tmp_path / "out")[0]["title"] == "DiffGRE+SMILE, generated images"
    assert talon("evaluate", *words, "-m", "diffgre-smile", "-o", tmp_path / "mixed").code == 0
    assert rows(tmp_path / "mixed")[0]["title"] == "DiffGRE+SMILE, mixed images"
    assert "other settings" in refused("evaluate", *words, "-m", "diffgre-smile", "-o", tmp_path / "out")
    assert "add diffgre" in refused("evaluate", *words, "-m", "smile", *made, "-o", tmp_path / "out")


def test_data_sets_are_found_by_name(tmp_path: Path) -> None:
    ended = talon("evaluate", "-d", "pets,cub", "--root", f"pets={tmp_path}", "-o", tmp_path / "out", *QUICK)
    assert ended.code == 2 and f"talon: {tmp_path} is not Oxford-IIIT Pet" in ended.err
    assert "--root is given 2 times" in refused(
        "evaluate", "-d", "pets", "--root", tmp_path, "--root", "b", "-o", tmp_path / "out", *QUICK
    )


def test_images_that_can_not_be_used_are_counted(incoming_folder: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(incoming_folder, tmp_path / "data"))
    (data / "0" / "bad.png").write_bytes(b"no picture")
    put(data / "stray.png")
    words = ("--root", data, "--known", 4, "--seeds", "0,1", "--threshold", 0.9, "-o", tmp_path / "out", "--report")
    assert talon("evaluate", "-d", "folder", *words, *QUICK).code == 0
    for row in rows(tmp_path / "out"):
        folder = tmp_path / "out" / "reports" / "folder-data" / "talon" / f"seed-{row['seed']}-0"
        skipped = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["skipped"]
        assert {Path(item["source"]).name for item in skipped["listed"]} == {"bad.png", "stray.png"}
        assert skipped["count"] == row["sizes"]["skipped"] == 2


def test_a_known_class_that_is_never_labelled_shifts_no_count(tmp_path: Path) -> None:
    for number in range(12):
        put(tmp_path / "data" / "a" / f"{number}.png", number)
        put(tmp_path / "data" / "c" / f"{number}.png", 100 + number)
    put(tmp_path / "data" / "b" / "one.png", 99)
    known = tmp_path / "known.txt"
    known.write_text("a\nb\n", encoding="utf-8")
    seed = next(s for s in range(50) if 12 not in split(labelled(tmp_path / "data").items, ("a", "b"), s).labelled)
    words = ("--known", known, "--seeds", seed, "--threshold", 1.5, "-o", tmp_path / "out", "--report")
    assert talon("evaluate", "-d", "folder", "--root", tmp_path / "data", *words, *QUICK).code == 0
    folder = tmp_path / "out" / "reports" / "folder-data" / "talon" / f"seed-{seed}-0"
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert (summary["known_classes"], summary["known_classes_seen"]) == (1, 0)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--dataset", "digit"), "Did you mean 'digits'"),
        (("--dataset", "folder"), "needs --root DIR"),
        (("--dataset", "digits", "--root", "."), "--root is for --dataset folder"),
        (("--seeds", "0,x"), "write whole numbers with commas"),
        (("--seeds", ""), "write whole numbers with commas"),
        (("--seeds=-1",), "seeds are between 0 and 2^32 - 1"),
        (("--known", "0"), "--known 0 must be between 1 and 10"),
        (("--known", "some"), "give a number or a text file with one class a line"),
        (("--sampling", "gdc"), "Did you mean 'gcd'"),
        (("--order", "shufled"), "Did you mean 'shuffled'"),
        (("--order", "dataset", "--orders", "2"), "the order of the data set is a single one"),
        (("--method", "tallon"), "Did you mean 'talon'"),
        (("--method", ","), "give at least one name"),
        (("--method", "smile", "--set", "smile.bit=3"), "Did you mean 'bits'"),
        (("--sweep", "threshold"), "write NAME=V1,V2"),
        (("-m", "evidence", "--threshold", 0.5), "evidence decides by evidence and has no threshold; leave it out"),
        (("--threshold", "high"), "threshold must be a number or auto"),
        (("--adapt", "encode"), "Did you mean 'encoder'"),
        (("--preset", "oficial"), "Did you mean 'official'"),
        (("--backbone", "tiny-vti"), "Did you mean 'tiny-vit'"),
        (("--set", "gird=3"), "Did you mean 'grid'"),
    ],
)
def test_bad_options_are_refused_before_any_work(words: tuple[str, ...], wanted: str, tmp_path: Path) -> None:
    backbone = () if "--backbone" in words else ("--backbone", "tiny-vit")
    assert wanted in refused("evaluate", "-o", tmp_path / "out", *backbone, *words)
    assert not (tmp_path / "out").exists()


def test_results_of_an_older_run_do_not_look_current(
    incoming_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    (tmp_path / "results.json").write_text("old")
    monkeypatch.setattr(Grid, "run", stop)
    ended = talon("evaluate", "-d", "folder", "--root", incoming_folder, "-o", tmp_path, *QUICK)
    assert ended.code == 130 and not (tmp_path / "results.json").exists()


def test_an_output_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "there is a file where a folder is needed" in refused("evaluate", "-o", tmp_path / "file", *QUICK)
