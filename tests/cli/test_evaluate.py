import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from talon_ocd.cli import evaluate as module
from talon_ocd.evaluation.splits import split
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


def results(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return content


def test_a_folder_over_seeds(incoming_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = talon(
        "evaluate", "-d", "folder", "--root", incoming_folder, "--known", 4, "--seeds", "0,2", "-o", out, *QUICK
    )
    assert ended.code == 0 and "Strict" in ended.out and "Greedy" in ended.out and "±" in ended.out
    content = results(out)
    assert content["seeds"] == [0, 2] and content["dataset"]["known"] == ["0", "1", "2", "3"]
    assert content["preset"] == "default" and content["command"].startswith("talon")
    for part in (*content["runs"], content["mean"], content["std"]):
        for protocol in ("strict", "greedy"):
            assert set(part[protocol]) == {"all", "old", "new"}
        assert {"found", "true"} <= set(part["categories"]) and {"threshold", "sizes", "timings"} <= set(part)
    source = labelled(incoming_folder)
    for seed, scores in zip((0, 2), content["runs"], strict=True):
        parts = split(source.items, ("0", "1", "2", "3"), seed)
        lines = (out / f"seed-{seed}" / "decisions.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["source"] for line in lines] == [source.items[at].source for at in parts.stream]
        assert scores["sizes"]["labelled"] == len(parts.labelled)
        assert (out / f"seed-{seed}" / "report.html").exists()
        summary = json.loads((out / f"seed-{seed}" / "summary.json").read_text(encoding="utf-8"))
        assert summary["metrics"]["strict"] == scores["strict"]


@pytest.mark.parametrize("preset", ["official", "paper"])
def test_presets_run(preset: str, incoming_folder: Path, tmp_path: Path) -> None:
    words = ("evaluate", "-d", "folder", "--root", incoming_folder, "-p", preset, "--seeds", 0, "-o", tmp_path, *QUICK)
    assert talon(*words).code == 0
    assert results(tmp_path)["mean"]["threshold"] == 0.75 and results(tmp_path)["config"]["preset"] == preset


def test_images_that_can_not_be_used_are_listed(incoming_folder: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(incoming_folder, tmp_path / "data"))
    (data / "0" / "bad.png").write_bytes(b"no picture")
    put(data / "stray.png")
    words = ("--root", data, "--known", 4, "--seeds", "0,1", "--threshold", 0.9, "-o", tmp_path / "out")
    assert talon("evaluate", "-d", "folder", *words, *QUICK).code == 0
    for seed, scores in enumerate(results(tmp_path / "out")["runs"]):
        text = (tmp_path / "out" / f"seed-{seed}" / "summary.json").read_text(encoding="utf-8")
        skipped = json.loads(text)["skipped"]
        assert {Path(item["source"]).name for item in skipped["listed"]} == {"bad.png", "stray.png"}
        assert skipped["count"] == scores["sizes"]["skipped"] == 2


def test_a_known_class_that_is_never_labelled_shifts_no_count(tmp_path: Path) -> None:
    for number in range(12):
        put(tmp_path / "data" / "a" / f"{number}.png", number)
        put(tmp_path / "data" / "c" / f"{number}.png", 100 + number)
    put(tmp_path / "data" / "b" / "one.png", 99)
    known = tmp_path / "known.txt"
    known.write_text("a\nb\n", encoding="utf-8")
    seed = next(s for s in range(50) if 12 not in split(labelled(tmp_path / "data").items, ("a", "b"), s).labelled)
    words = ("--known", known, "--seeds", seed, "--threshold", 1.5, "-o", tmp_path / "out")
    assert talon("evaluate", "-d", "folder", "--root", tmp_path / "data", *words, *QUICK).code == 0
    summary = json.loads((tmp_path / "out" / f"seed-{seed}" / "summary.json").read_text(encoding="utf-8"))
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
    monkeypatch.setattr(module, "run_protocol", stop)
    ended = talon("evaluate", "-d", "folder", "--root", incoming_folder, "-o", tmp_path, *QUICK)
    assert ended.code == 130 and not (tmp_path / "results.json").exists()


def test_an_output_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "there is a file where a folder is needed" in refused("evaluate", "-o", tmp_path / "file", *QUICK)
