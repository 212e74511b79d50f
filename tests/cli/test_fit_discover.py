import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from talon_ocd import Talon
from talon_ocd.cli import discover as discover_module
from talon_ocd.cli import fit as fit_module
from talon_ocd.evaluation.record import Record
from talon_ocd.images import stream
from talon_ocd.offline import Fitting
from tests import tiny
from tests.cli.running import bad_folder, refused, talon
from tests.images.pictures import put

QUICK = ("--backbone", "tiny-vit", "--image-size", 16, "--epochs", 1, "--set", "views=2", "--quiet")
CONSTANT = (*QUICK, "--threshold", 0.9)
FIELDS = [
    "index", "source", "category", "name", "verdict", "similarity", "threshold", "runner_up", "runner_up_similarity",
    "unit",
]  # fmt: skip


def decisions(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "decisions.jsonl").read_text(encoding="utf-8").splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return content


def test_fit_then_discover(known_folder: Path, incoming_folder: Path, tmp_path: Path) -> None:
    ended = talon("fit", known_folder, "-o", tmp_path / "model", *QUICK, "--set", "calibration.rounds=1")
    assert ended.code == 0 and "4 known classes from 80 images" in ended.out and "decides by evidence" in ended.out
    assert not (tmp_path / "model" / fit_module.CHECKPOINT).exists()
    expected = Talon.from_pretrained(tmp_path / "model").report["calibration"]["expected"]
    line = "right in rehearsals: {all:.0%} of images, {old:.0%} of known classes, {new:.0%} of new ones"
    assert line.format(**expected) in ended.out.splitlines() and len(set(expected.values())) == 3
    ended = talon("discover", incoming_folder, "-m", tmp_path / "model", "-o", tmp_path / "out", "--threshold", "auto")
    assert ended.code == 0 and "100 images: " in ended.out and "strict accuracy" in ended.out
    found = decisions(tmp_path / "out")
    assert [list(decision) for decision in found] == [FIELDS] * 100
    assert [decision["index"] for decision in found] == list(range(100))
    assert [Path(decision["source"]) for decision in found] == sorted(incoming_folder.rglob("*.png"))
    facts = summary(tmp_path / "out")
    assert facts["images"] == 100 and facts["skipped"]["count"] == 0 and not facts["stopped_early"]
    assert facts["metrics"]["strict"]["all"] <= facts["metrics"]["greedy"]["all"]
    assert facts["rule"] == "evidence" and "finer" not in facts
    assert (facts["unit"], facts["threshold"]) == (found[0]["unit"], found[0]["threshold"]) == ("log-odds", 0)
    thoughts = json.loads((tmp_path / "out" / "second_thoughts.json").read_text(encoding="utf-8"))
    assert (facts["proposed_moves"], facts["proposed_merges"]) == (len(thoughts["moves"]), len(thoughts["merges"]))
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "log-odds of the best category against a new one" in page and "similarity to the best" not in page


def test_what_was_answered_but_not_written_down_is_not_proposed(
    known_folder: Path, incoming_folder: Path, tmp_path: Path
) -> None:
    """Ctrl-C may come in the middle of a batch; here nothing is where it was answered, so that all of it would move."""
    talon("fit", known_folder, "-o", tmp_path / "model", *QUICK, "--set", "rounds=1", "--set", "evidence.sweeps=0")
    online = Talon.from_pretrained(tmp_path / "model").stream()
    items = stream(incoming_folder).items[:6]
    answers = list(online.run_items(items))
    state = online.state_dict()
    state["discovery.rule.recent.answers"] += 1
    online.load_state_dict(state)
    with Record(tmp_path / "out", 4) as record:
        for decision, item in answers[:4]:
            record.add(decision, item)
        assert discover_module._second_thoughts(online, record, tmp_path / "out")["proposed_moves"] == 4
    thoughts = json.loads((tmp_path / "out" / "second_thoughts.json").read_text(encoding="utf-8"))
    assert [move["source"] for move in thoughts["moves"]] == [item.source for item in items[:4]]


def test_the_rule_of_talon_rehearses_a_threshold(known_folder: Path, incoming_folder: Path, tmp_path: Path) -> None:
    rule = ("--set", "online.rule=cosine", "--set", "calibration.grid=8")
    ended = talon("fit", known_folder, "-o", tmp_path / "model", *QUICK, *rule)
    assert ended.code == 0 and "(rehearsed)" in ended.out and "evidence" not in ended.out
    words = ("-m", tmp_path / "model", "-o", tmp_path / "out", "--threshold", "auto", "-q")
    assert talon("discover", incoming_folder, *words).code == 0
    facts = summary(tmp_path / "out")
    assert facts["rule"] == "cosine" and facts["threshold"] == Talon.from_pretrained(tmp_path / "model").threshold
    assert not (tmp_path / "out" / "second_thoughts.json").exists()


def test_the_command_gives_the_answers_of_the_library(incoming_folder: Path, model: Path, tmp_path: Path) -> None:
    for name, words in (("a", ()), ("b", ()), ("none", ("--adapt", "none", "--threshold", 0.95))):
        assert talon("discover", incoming_folder, "-m", model, "-o", tmp_path / name, "-q", *words).code == 0
    assert decisions(tmp_path / "a") == decisions(tmp_path / "b")
    files = sorted(incoming_folder.rglob("*.png"))
    expected = Talon.from_pretrained(model).stream(threshold=0.95, adapt="none").observe_many(files)
    assert decisions(tmp_path / "none") == [decision.to_dict() for decision in expected]


def test_a_shuffled_stream_follows_its_seed(incoming_folder: Path, model: Path, tmp_path: Path) -> None:
    orders = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        out = tmp_path / name
        talon("discover", incoming_folder, "-m", model, "-o", out, "-q", "--shuffle", "--seed", seed)
        orders.append([decision["source"] for decision in decisions(out)])
    assert orders[0] == orders[1] != orders[2] and sorted(orders[0]) == sorted(orders[2])


def test_a_stream_survives_everything_at_once(model: Path, tmp_path: Path) -> None:
    good, bad = bad_folder(tmp_path / "stream")
    ended = talon("discover", tmp_path / "stream", "-m", model, "-o", tmp_path / "out")
    assert ended.code == 0 and f"{len(bad)} skipped" in ended.out and "skipped " in ended.err
    assert {Path(decision["source"]).name for decision in decisions(tmp_path / "out")} == good
    skipped = summary(tmp_path / "out")["skipped"]
    assert skipped["count"] == len(bad) and {Path(item["source"]).name for item in skipped["listed"]} == bad
    assert all(item["reason"].rstrip().endswith(".") and ";" in item["reason"] for item in skipped["listed"])


def test_bad_images_are_left_out_of_a_fit(known_folder: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(known_folder, tmp_path / "data"))
    (data / "0" / "bad.png").write_bytes(b"no picture")
    (data / "empty").mkdir()
    put(data / "lonely" / "one.png")
    put(data / "stray.png")
    ended = talon("fit", data, "-o", tmp_path / "model", *CONSTANT)
    assert ended.code == 0 and "5 known classes from 81 images" in ended.out and "(constant)" in ended.out
    for wanted in ("bad.png: is not an image", "empty: is a class folder without images", "stray.png: lies beside"):
        assert wanted in ended.err
    assert "one image only: lonely" in ended.err


def test_one_class_is_enough_with_a_note(known_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(known_folder / "0", tmp_path / "data" / "0")
    ended = talon("fit", tmp_path / "data", "-o", tmp_path / "model", *[word for word in QUICK if word != "--quiet"])
    assert ended.code == 0 and "one known class leaves nothing to rehearse with; 0.75 is used" in ended.err
    assert "between prototypes" not in ended.out


def test_manifests_name_bad_rows(known_folder: Path, tmp_path: Path) -> None:
    first, second, third = (next((known_folder / label).iterdir()) for label in "012")
    manifest = tmp_path / "list.csv"
    rows = [f"{first},a", f"{second},b", f"{third},", f"{first},a", f"{second},c", "missing.png,a"]
    manifest.write_text("path,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    ended = talon("fit", manifest, "-o", tmp_path / "model", *CONSTANT)
    assert ended.code == 0 and "2 known classes from 2 images" in ended.out
    for line, wanted in ((4, "has no label"), (5, "already in the list"), (6, "label 'b'"), (7, "does not exist")):
        assert any(f"list.csv:{line}" in text and wanted in text for text in ended.err.splitlines())


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--backbone", "tiny-vti"), "Did you mean 'tiny-vit'"),
        (("--preset", "papr"), "Did you mean 'paper'"),
        (("--set", "offline.epoch=3"), "'offline.epoch' is not known. Did you mean 'epochs'"),
        (("--set", "margin"), "write NAME=VALUE"),
        (("--set", "margin=wide"), "margin must be a number"),
        (("--threshold", "nan"), "threshold must be a number or auto"),
        (("--threshold", "high"), "threshold must be a number or auto"),
        (("--image-size", "33"), "image_size=33"),
        (("--aspect", "wide"), "aspect='wide'"),
        (("--config", "missing.toml"), "missing.toml"),
    ],
)
def test_fit_refuses_bad_options(words: tuple[str, ...], wanted: str, known_folder: Path, tmp_path: Path) -> None:
    start = ("fit", known_folder, "-o", tmp_path / "model", "-q")
    backbone = () if "--backbone" in words else ("--backbone", "tiny-vit")
    assert wanted in refused(*start, *backbone, *words)
    assert not (tmp_path / "model").exists()


def test_fit_refuses_bad_data(known_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    put(tmp_path / "single" / "a" / "one.png")
    (tmp_path / "text.txt").touch()
    for data, wanted in (
        (tmp_path / "missing", "missing does not exist; check the path"),
        (tmp_path / "empty", "empty has no labelled images, at least 2 are needed"),
        (tmp_path / "single", "single has 1 labelled images, at least 2 are needed"),
        (tmp_path / "text.txt", "text.txt is not a source of labelled images; give a folder"),
        (known_folder / "0", "20 images but no class folders; put the images of each class"),
    ):
        assert wanted in refused("fit", data, "-o", tmp_path / "model", *CONSTANT)


def test_fit_looks_at_its_output_folder_before_it_works(known_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = talon("fit", known_folder, "-o", tmp_path / "file", *[word for word in CONSTANT if word != "--quiet"])
    assert ended.code == 2 and "there is a file where a folder is needed" in ended.err and "Training" not in ended.err


def test_an_interrupted_fit_says_how_to_go_on(
    known_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Fitting.run

    def interrupted(self: Fitting, checkpoint: Path | None = None) -> Any:
        run(self, checkpoint)
        raise KeyboardInterrupt

    words = ("fit", known_folder, "-o", tmp_path / "model", *[word for word in CONSTANT if word != "--quiet"])
    monkeypatch.setattr(Fitting, "run", interrupted)
    ended = talon(*words)
    assert ended.code == 130 and "The same command continues" in ended.err and "talon: stopped" in ended.err
    monkeypatch.setattr(Fitting, "run", run)
    ended = talon(*words)
    assert ended.code == 0 and "Training continues after epoch 1" in ended.err


def test_discover_refuses_bad_options(incoming_folder: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out"
    for data, where, folder, words, wanted in (
        (incoming_folder, tmp_path, out, (), "no model here (config.json is missing)"),
        (incoming_folder, model, tmp_path / "file", (), "there is a file where a folder is needed"),
        (incoming_folder, model, out, ("--threshold", "nan"), "threshold must be a number or auto"),
        (incoming_folder, model, out, ("--threshold", "high"), "threshold='high'"),
        (incoming_folder, model, out, ("--adapt", "protypes"), "Did you mean 'prototypes'"),
        (incoming_folder, model, out, ("--finer", "nan"), "finer must be a number of nats"),
        (incoming_folder, model, out, ("--finer", "3", "--threshold", "0.9"), "streams that decide by evidence"),
        (tmp_path / "empty", model, out, (), "empty has no images, at least 1 is needed"),
        (tmp_path / "missing", model, out, (), "missing does not exist"),
        (tmp_path / "file", model, out, (), "file is not a source of images"),
        ("-", model, out, ("--shuffle",), "--shuffle needs all images"),
    ):
        assert wanted in refused("discover", data, "-m", where, "-o", folder, *words)
    assert not out.exists()


def test_auto_needs_a_rehearsal(known_folder: Path, tmp_path: Path) -> None:
    assert talon("fit", known_folder, "-o", tmp_path / "model", *CONSTANT).code == 0
    said = refused("discover", known_folder, "-m", tmp_path / "model", "-o", tmp_path / "out", "--threshold", "auto")
    assert "constant threshold (0.9) and never rehearsed; fit it with the default preset, or give a number" in said


def test_a_damaged_model_is_refused(incoming_folder: Path, model: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(model, tmp_path / "copied"))
    data = bytearray((copied / "memory.safetensors").read_bytes())
    data[-1] ^= 1
    (copied / "memory.safetensors").write_bytes(data)
    assert "memory.safetensors: the checksum differs" in refused("discover", incoming_folder, "-m", copied, "-o", "out")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(incoming_folder: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "decisions.jsonl").symlink_to("/dev/full")
    for old in ("summary.json", "report.html", "second_thoughts.json"):
        (tmp_path / old).write_text("old")
    said = refused("discover", incoming_folder, "-m", model, "-o", tmp_path)
    assert "the disk is full" in said and "the first 0 decisions are safe in it" in said
    assert [path.name for path in tmp_path.iterdir()] == ["decisions.jsonl"]


def test_names_that_are_no_utf8(model: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    try:
        put(tmp_path / name / (name + ".png"))
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    ended = talon("discover", tmp_path / name, "-m", model, "-o", tmp_path / (name + "-out"), "-q")
    assert ended.code == 0 and r"caf\xe9-out" in ended.out
    assert decisions(tmp_path / (name + "-out"))[0]["source"].endswith(r"caf\xe9/caf\xe9.png")
    ended = talon(
        "discover", "-", "-m", model, "-o", tmp_path / "out", stdin=os.fsencode(tmp_path / name / (name + ".png"))
    )
    assert ended.code == 0 and "1 images" in ended.err


def test_paths_on_standard_input(incoming_folder: Path, model: Path, tmp_path: Path) -> None:
    files = sorted(incoming_folder.rglob("*.png"))[:3]
    lines = [str(files[0]), "", "missing.png", str(files[1]), str(files[2])]
    ended = talon("discover", "-", "-m", model, "-o", tmp_path / "out", stdin="\n".join(lines))
    assert ended.code == 0
    answers = [line.split("\t") for line in ended.out.splitlines()]
    assert [answer[0] for answer in answers] == [str(file) for file in files] and {len(a) for a in answers} == {4}
    assert "skipped missing.png: does not exist" in ended.err and "3 images" in ended.err
    assert summary(tmp_path / "out")["skipped"]["count"] == 1
    ended = talon("discover", "-", "-m", model, "-o", tmp_path / "out", stdin="")
    assert ended.code == 0 and summary(tmp_path / "out")["images"] == 0


def test_each_line_is_answered_before_the_next_and_ctrl_c_ends_the_stream(
    incoming_folder: Path, model: Path, tmp_path: Path
) -> None:
    program = [sys.executable, "-m", "talon_ocd", "discover", "-", "-m", str(model), "-o", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # jobs in the background of a shell ignore it
    with subprocess.Popen(program, text=True, env=environment, preexec_fn=heard, **pipes) as process:
        assert process.stdin and process.stdout and process.stderr
        for number, file in enumerate(sorted(incoming_folder.rglob("*.png"))[:3], 1):
            process.stdin.write(f"{file}\n")
            process.stdin.flush()
            assert process.stdout.readline().startswith(f"{file}\t")  # while the pipe is still open
            assert len(decisions(tmp_path)) == number
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130 and "talon: stopped" in said and "Traceback" not in said
    assert summary(tmp_path)["images"] == 3 and summary(tmp_path)["stopped_early"]


def test_the_reader_of_the_answers_may_leave(incoming_folder: Path, model: Path, tmp_path: Path) -> None:
    files = "\n".join(str(file) for file in sorted(incoming_folder.rglob("*.png")))
    command = f'"{sys.executable}" -m talon_ocd discover - -m "{model}" -o "{tmp_path}" | head -n 1'
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, shell=True, input=files, capture_output=True, text=True, env=environment)
    assert done.stdout.count("\n") == 1 and "Traceback" not in done.stderr and "Exception" not in done.stderr


@pytest.mark.parametrize("words", [(), ("--help",), ("fit", "--help"), ("discover", "-h"), ("evaluate", "-h")])
def test_help_fits_a_terminal(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    ended = talon(*words)
    assert ended.code == (0 if words else 2) and "Usage: talon" in ended.out + ended.err
    assert max(map(len, (ended.out + ended.err).splitlines())) <= 80 and "\x1b" not in ended.out


def test_typos_and_missing_words() -> None:
    for words, wanted in (
        (("fti",), "fit"),
        (("fit",), "DATA"),
        (("discover", "x"), "--model"),
        (("fit", "--epoch"), "--epochs"),
    ):
        ended = talon(*words)
        assert ended.code == 2 and wanted in ended.err
    assert talon("--version").out.startswith("talon-ocd ")


@pytest.mark.skipif("TALON_TEST_IMAGES" not in os.environ, reason="TALON_TEST_IMAGES names no folder of photos")
def test_photos_of_your_own(tmp_path: Path) -> None:
    root = Path(os.environ["TALON_TEST_IMAGES"])
    classes = sorted(path for path in root.iterdir() if path.is_dir())[:4]
    for folder in classes:
        files = sorted(folder.iterdir())[:12]
        for number, file in enumerate(files):
            target = tmp_path / ("known" if folder in classes[:2] and number < 6 else "incoming") / folder.name
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    small = ("--image-size", 64, "--epochs", 1, "-q")
    assert talon("fit", tmp_path / "known", "-o", tmp_path / "model", *small).code == 0
    assert talon("discover", tmp_path / "incoming", "-m", tmp_path / "model", "-o", tmp_path / "out", "-q").code == 0
    assert summary(tmp_path / "out")["images"] + summary(tmp_path / "out")["skipped"]["count"] == 36


def test_the_digits_of_these_tests_are_what_they_claim() -> None:
    assert {item.label for item in tiny.labelled()} == set(tiny.KNOWN) and len(tiny.incoming()) == 100
    assert not {item.source for item in tiny.labelled()} & {item.source for item in tiny.incoming()}
