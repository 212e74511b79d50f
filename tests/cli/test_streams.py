"""Streams that last, from the command line."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from talon_ocd.catalog import Catalog
from talon_ocd.cli import untold
from talon_ocd.cli.engines import Lasting
from talon_ocd.durable import Journal, Pictures, settings_at
from talon_ocd.evaluation.record import Record
from tests.catalog.journals import open_journal
from tests.cli.running import refused, talon

QUICK = ("--backbone", "tiny-vit", "--image-size", 16, "--epochs", 0, "--set", "rounds=1", "--quiet")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, known_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("model")
    assert talon("fit", known_folder, "-o", folder, *QUICK).code == 0
    return folder


def categories(stream: Path) -> list[int]:
    journal = Journal(stream)
    rows = journal.query("SELECT category FROM decisions ORDER BY idx")
    journal.close()
    return [row["category"] for row in rows]


def test_answers_that_nobody_was_told_are_reported_without_their_files(
    model: Path, incoming_folder: Path, tmp_path: Path
) -> None:
    part, stream = tmp_path / "part", tmp_path / "stream"
    part.mkdir()
    for number, path in enumerate(sorted(incoming_folder.rglob("*.png"))[:6]):
        shutil.copyfile(path, part / f"{number}.png")
    assert talon("discover", part, "-m", model, "-s", stream).code == 0
    shutil.rmtree(part)
    with closing(Journal(stream, write=True)) as journal, closing(Pictures(journal)) as pictures:
        pictures.drop_thumbnails(0, 3, [])
        truth: list[str | None] = []
        with Record(tmp_path / "out", known=5) as record:
            labels = {str(part / "3.png"): "cat", "other.png": "dog"}
            untold.add_untold(Lasting(stream, journal, pictures), 2, record, lambda decision: "a name", truth, labels)
            assert record.finish("", {}, {})["images"] == len(truth) == 4
            assert truth == [None, "cat", None, None], [one.source for one in record.decisions]
        assert [one.index for one in record.decisions] == [2, 3, 4, 5]
        assert (untold.picture(pictures, 2, "x"), record.decisions[0].name) == (None, "a name")
        thumbnail = untold.picture(pictures, 3, "x")
        assert thumbnail is not None and thumbnail.load().mode == "RGB"


@pytest.mark.parametrize("ending", ["killed", "killed, and others answered since", "in peace", "of another stream"])
def test_answers_of_a_run_that_was_killed_are_told_by_the_next_one(
    model: Path, incoming_folder: Path, tmp_path: Path, ending: str
) -> None:
    part, stream, out = tmp_path / "part", tmp_path / "stream", tmp_path / "out"
    part.mkdir()
    files = sorted(incoming_folder.rglob("*.png"))[:12]

    def discover_first(number: int, into: Path) -> list[int]:
        for at in range(len(list(part.iterdir())), number):
            shutil.copyfile(files[at], part / f"{at:02d}.png")
        assert talon("discover", part, "-m", model, "-s", stream, "-o", into).code == 0
        return [json.loads(line)["index"] for line in (into / "decisions.jsonl").read_text().splitlines()]

    assert discover_first(6, out) == [0, 1, 2, 3, 4, 5]
    if ending != "in peace":  # what a killed run leaves: no summary, and the line that it was about to write
        (out / "summary.json").unlink()
        lines = (out / "decisions.jsonl").read_text().splitlines(keepends=True)
        if ending == "of another stream":
            lines[3] = lines[3].replace(f'"{part}/', '"elsewhere/')
        (out / "decisions.jsonl").write_text("".join(lines[:4]) + lines[4][:20])
    if "others" in ending:
        assert discover_first(9, tmp_path / "other") == [6, 7, 8]
    told = discover_first(12, out)
    assert told == list(range(4 if "killed" in ending else 6, 12))
    facts = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert (facts["answered_before"], facts["images"]) == (told[0], len(told))
    assert discover_first(12, out) == []


def test_a_stream_goes_on_where_it_stopped(model: Path, incoming_folder: Path, tmp_path: Path) -> None:
    whole, stream, part = tmp_path / "whole", tmp_path / "stream", tmp_path / "part"
    for path in sorted(incoming_folder.rglob("*.png"))[:30]:
        target = part / path.relative_to(incoming_folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.hardlink_to(path)
    assert talon("discover", part, "-m", model, "--stream", whole).code == 0
    first = sorted(part.rglob("*.png"))
    (tmp_path / "hidden").mkdir()
    moved = [(path, tmp_path / "hidden" / f"{number}.png") for number, path in enumerate(first[17:])]
    for path, away in moved:
        path.rename(away)
    ended = talon("discover", part, "-m", model, "-s", stream)
    assert "17 images: " in ended.out and "went on" not in ended.out
    for path, away in moved:
        away.rename(path)
    ended = talon("discover", part, "-m", model, "-s", stream, "-o", tmp_path / "out")
    assert "went on after 17 images" in ended.out and "13 images: " in ended.out
    assert categories(stream) == categories(whole)
    facts = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert facts["answered_before"] == 17 and facts["images"] == 13
    assert (stream / "report" / "report.html").is_file()
    ended = talon("discover", part, "-m", model, "-s", stream)
    assert ended.code == 0 and "0 images: " in ended.out


def test_bounds_are_set_where_a_stream_begins_and_kept(model: Path, incoming_folder: Path, tmp_path: Path) -> None:
    words = ("discover", incoming_folder, "-m", model, "-s", tmp_path / "s")
    few = ("--threshold", 0.9999, "--most-categories", 2)  # so near that nearly every image founds a category
    assert "most_categories=0" in refused(*words, "--most-categories", 0)
    assert talon(*words, *few, "--retire-after", 50).code == 0
    assert settings_at(tmp_path / "s")["bounds"] == {"most_categories": 2, "tentative_below": 2, "retire_after": 50}
    with closing(Journal(tmp_path / "s")) as journal:
        assert len(journal.events(0, ("retired",))) > 2
    assert talon(*words).code == talon(*words, "--retire-after", 50).code == 0  # the others as they were begun
    message = refused(*words, "--retire-after", 60)
    assert "begun with retire_after=50, not 60; leave the option out" in message
    assert "begun with tentative_below=2, not 3" in refused(*words, "--tentative-below", 3)


def test_names_that_people_gave_are_answered(model: Path, incoming_folder: Path, tmp_path: Path) -> None:
    some = sorted(incoming_folder.rglob("*.png"))
    assert talon("discover", some[0], "-m", model, "-s", tmp_path / "s").code == 0
    journal = Journal(tmp_path / "s", write=True)
    category = categories(tmp_path / "s")[0]
    Catalog(journal).rename(category, "my name for it")
    journal.close()
    shutil.copy(some[0], tmp_path / "copy.png")
    assert talon("discover", tmp_path / "copy.png", "-m", model, "-s", tmp_path / "s", "-o", tmp_path / "o").code == 0
    line = json.loads((tmp_path / "o" / "decisions.jsonl").read_text(encoding="utf-8"))
    assert (line["category"], line["name"]) == (category, "my name for it")


def test_a_watched_folder(model: Path, incoming_folder: Path, tmp_path: Path) -> None:
    images, stream = sorted(incoming_folder.rglob("*.png")), tmp_path / "stream"
    folder = tmp_path / "in"
    folder.mkdir()
    shutil.copy(images[0], folder / "0.png")
    command = [
        sys.executable,
        "-m",
        "talon_ocd",
        "discover",
        "--watch",
        str(folder),
        "-m",
        str(model),
        "-s",
        str(stream),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        assert process.stdout is not None and process.stderr is not None
        first = process.stdout.readline()
        (folder / "broken.png").write_bytes(b"no image")
        shutil.copy(images[1], folder / "1.png")
        second = process.stdout.readline()
        ended = talon("stream", "info", stream)  # others may look while it runs
        refusal = talon("discover", folder, "-m", model, "-s", stream)
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        assert process.wait(timeout=60) == 130
    assert (first.split("\t")[0], second.split("\t")[0]) == (str(folder / "0.png"), str(folder / "1.png"))
    assert "broken.png" in said and "watching" in said
    assert ended.code == 0 and "answered    2" in ended.out
    assert refusal.code == 2 and "in use (talon discover, process" in refusal.err
    assert len(categories(stream)) == 2


def test_going_back(model: Path, incoming_folder: Path, tmp_path: Path) -> None:
    images, stream = sorted(incoming_folder.rglob("*.png")), tmp_path / "stream"
    for number in (0, 50):
        assert talon("discover", images[number], "-m", model, "-s", stream).code == 0
    listed = talon("stream", "snapshots", stream).out.split()
    oldest = next(word for word in listed if word.startswith("000000000001-"))
    ended = talon("stream", "rollback", stream, "--to", oldest)
    assert ended.code == 0 and f"back to {oldest}" in ended.out
    assert len(categories(stream)) == 2
    assert f"rolled back to {oldest}" in talon("categories", "history", "--everything", "--json", "-s", stream).out
    assert "there is no snapshot 'nonsense'" in talon("stream", "rollback", stream, "--to", "nonsense").err


def test_a_torn_snapshot_is_told_in_one_line(model: Path, incoming_folder: Path, tmp_path: Path) -> None:
    images, stream = sorted(incoming_folder.rglob("*.png")), tmp_path / "stream"
    assert talon("discover", images[0], "-m", model, "-s", stream).code == 0
    (snapshot,) = (stream / "snapshots").iterdir()
    snapshot.write_bytes(snapshot.read_bytes()[:100])
    command = [sys.executable, "-m", "talon_ocd", "discover", images[1], "-m", model, "-s", stream]
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=180)
    said = f"talon: snapshot {snapshot.name} is damaged; an older state and the journal do."
    assert ended.returncode == 0 and said in ended.stderr.splitlines()
    assert "UserWarning" not in ended.stderr


def test_going_back_needs_to_know_the_model(tmp_path: Path) -> None:
    open_journal(tmp_path).close()
    ended = talon("stream", "rollback", tmp_path, "--to", "nonsense")
    assert ended.code == 2 and "give --model FOLDER" in ended.err


def test_images_answered_anew_by_another_model_keep_their_names(
    model: Path, known_folder: Path, incoming_folder: Path, tmp_path: Path
) -> None:
    old, new, other = tmp_path / "old", tmp_path / "new", tmp_path / "other"
    archive = tmp_path / "incoming.tar"  # members of archives must be found again, too
    with tarfile.open(archive, "w") as file:
        file.add(incoming_folder, ".")
    assert talon("discover", archive, "-m", model, "-s", old).code == 0
    journal = Journal(old, write=True)
    Catalog(journal).rename(0, "naught")
    journal.close()
    assert talon("fit", known_folder, "-o", other, *QUICK, "--seed", 5).code == 0
    assert talon("discover", archive, "-m", other, "-s", old).code == 2
    assert "talon stream replay" in refused("discover", archive, "-m", model, "-s", old, "--threshold", 0.99)
    finer = tmp_path / "finer"
    assert talon("stream", "replay", old, "-m", model, "-o", finer, "--threshold", 0.99, "--quiet").code == 0
    assert settings_at(finer)["threshold"] == 0.99 and len(set(categories(finer))) > len(set(categories(old)))
    ended = talon("stream", "replay", old, "-m", other, "-o", new, "--quiet")
    assert ended.code == 0 and "100 images answered anew" in ended.out
    journal = Journal(new)
    assert Catalog(journal).name(0) == "naught"
    journal.close()


def test_answering_anew_takes_the_options_of_the_old_stream_and_tells_what_stays_behind(
    model: Path, incoming_folder: Path, tmp_path: Path
) -> None:
    old, again = tmp_path / "old", tmp_path / "again"
    few = ("--threshold", 0.99, "--adapt", "prototypes", "--most-categories", 7, "--quiet")
    assert talon("discover", incoming_folder, "-m", model, "-s", old, *few).code == 0
    with closing(Journal(old, write=True)) as journal:
        catalog = Catalog(journal)
        catalog.reject([3, 4])
        catalog.confirm([5])
        catalog.undo(catalog.reject([6]).seq)
    words = ("stream", "replay", old, "-m", model, "--quiet", "-o")
    ended = talon(*words, again)
    assert ended.code == 0 and "images whose corrections are not carried over: 3" in ended.out
    assert settings_at(again) == settings_at(old) and categories(again) == categories(old)
    assert talon(*words, again).code == 0, "a folder that was begun goes on as it is"
    assert talon(*words, tmp_path / "finer", "--finer", 2, "--adapt", "none").code == 0
    changed = settings_at(tmp_path / "finer")
    assert (changed["rule"], changed["finer"], changed["adapt"]) == ("evidence", 2.0, [])
    assert changed["bounds"] == settings_at(old)["bounds"]


def test_refusals(model: Path, incoming_folder: Path, tmp_path: Path) -> None:
    assert "nowhere to write to" in refused("discover", incoming_folder, "-m", model)
    assert "--watch follows a folder" in refused("discover", incoming_folder, "-m", model, "--watch", "-o", tmp_path)
    both = ("--watch", "--stream", tmp_path / "watched", "-o", tmp_path / "report")
    assert "writes no report" in refused("discover", incoming_folder, "-m", model, *both)
    assert "no stream here" in refused("stream", "info", tmp_path)
