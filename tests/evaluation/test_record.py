import json
from pathlib import Path

import numpy as np
import pytest

from talon_ocd.errors import StorageError
from talon_ocd.evaluation import record as module
from talon_ocd.evaluation.record import DECISIONS, PREVIOUS, REPORT, SUMMARY, Record
from talon_ocd.images import ImageItem, Skipped, memory_item
from talon_ocd.online import Decision, Verdict

ITEM = memory_item(np.zeros((8, 8), np.uint8), "one.png")
FULL = Path("/dev/full")


def decision(index: int, category: int = 0, verdict: Verdict = "known", source: str = "one.png") -> Decision:
    return Decision(index, source, category, f"name-{category}", verdict, 0.8, 0.7, -1, -1.0)


def test_decisions_are_on_disk_as_soon_as_they_are_given(tmp_path: Path) -> None:
    with Record(tmp_path / "deep" / "out", 1) as record:
        for index in range(3):
            record.add(decision(index, source="ünï\n.png"), ITEM)
            lines = (tmp_path / "deep" / "out" / DECISIONS).read_text(encoding="utf-8").splitlines()
            assert [json.loads(line)["index"] for line in lines] == list(range(index + 1))
    assert json.loads(lines[0])["source"] == "ünï\n.png"


def test_the_summary_counts(tmp_path: Path) -> None:
    with Record(tmp_path, 2) as record:
        for index, (category, verdict) in enumerate([(1, "known"), (2, "new"), (2, "discovered"), (3, "new")]):
            record.add(decision(index, category, verdict), ITEM)  # type: ignore[arg-type]
        record.skip(Skipped("bad.png", "is empty."))
        returned = record.finish("a title", {"threshold": 0.7}, {"a": 1})
    summary = json.loads((tmp_path / SUMMARY).read_text(encoding="utf-8"))
    assert summary == returned
    assert summary["images"] == 4 and summary["verdicts"] == {"known": 1, "discovered": 1, "new": 2}
    assert (summary["known_classes"], summary["known_classes_seen"], summary["categories_discovered"]) == (2, 1, 2)
    assert summary["categories"][1] == {"category": 2, "name": "name-2", "images": 2}
    assert summary["skipped"] == {"count": 1, "listed": [{"source": "bad.png", "reason": "is empty."}]}
    assert "metrics" not in summary and summary["threshold"] == 0.7
    assert "a title" in (tmp_path / REPORT).read_text(encoding="utf-8")


def test_a_stream_without_answers_has_a_report_too(tmp_path: Path) -> None:
    with Record(tmp_path, 2) as record:
        assert record.finish("empty", {}, {})["images"] == 0
    assert (tmp_path / DECISIONS).read_text() == "" and (tmp_path / REPORT).stat().st_size > 0


def test_files_of_an_older_run_do_not_look_current(tmp_path: Path) -> None:
    for name in (SUMMARY, REPORT, DECISIONS):
        (tmp_path / name).write_text("old")
    with Record(tmp_path, 1):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {DECISIONS, PREVIOUS} and (
        tmp_path / DECISIONS
    ).read_text() == ""


def test_skipped_images_are_all_counted_and_some_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LISTED", 3)
    with Record(tmp_path, 1) as record:
        for number in range(5):
            record.skip(Skipped(str(number), "bad"))
    summary = record.summary({})
    assert summary["skipped"]["count"] == 5 and len(summary["skipped"]["listed"]) == 3


def test_a_picture_that_vanished_costs_its_thumbnail_only(tmp_path: Path) -> None:
    gone = ImageItem("gone.png", None, "gone", tmp_path / "gone.png")
    with Record(tmp_path / "out", 1) as record:
        record.add(decision(0), gone)
        assert record.finish("t", {}, {})["images"] == 1


def test_text_that_is_no_utf8_does_not_cost_the_summary(tmp_path: Path) -> None:
    with Record(tmp_path, 1) as record:
        record.finish("caf\udce9", {"data": "caf\udce9"}, {"x": "\udce9"})
    assert json.loads((tmp_path / SUMMARY).read_text(encoding="utf-8"))["data"] == "caf\udce9"


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_disk_says_how_many_decisions_are_safe(tmp_path: Path) -> None:
    (tmp_path / DECISIONS).symlink_to(FULL)
    (tmp_path / SUMMARY).write_text("old")
    with (
        pytest.raises(StorageError, match=r"decisions\.jsonl: can't be written \(the disk is full.*first 0 decisions"),
        Record(tmp_path, 1) as record,
    ):
        record.add(decision(0), ITEM)
    assert not (tmp_path / SUMMARY).exists()


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("name", [SUMMARY, REPORT])
def test_a_disk_that_fills_at_the_end_keeps_the_decisions(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> int:
        with FULL.open("wb", buffering=0) as file:
            return file.write(data) or 0

    with Record(tmp_path, 1) as record:
        record.add(decision(0), ITEM)
        original = Path.write_bytes
        monkeypatch.setattr(
            Path, "write_bytes", lambda path, data: (full if name in path.name else original)(path, data)
        )
        with pytest.raises(StorageError, match="can't be written"):
            record.finish("t", {}, {})
    assert json.loads((tmp_path / DECISIONS).read_text())["index"] == 0 and not (tmp_path / name).exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_an_output_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="there is a file where a folder is needed"):
        Record(tmp_path / "file", 1)
    (tmp_path / "out" / DECISIONS).mkdir(parents=True)
    with pytest.raises(StorageError, match="can't be written"):
        Record(tmp_path / "out", 1)


def test_an_earlier_run_in_the_same_folder_keeps_its_decisions(tmp_path: Path) -> None:
    for text in ("first\n", "second\n"):
        (tmp_path / "decisions.jsonl").write_text(text)
        with Record(tmp_path, 1):
            pass
        assert (tmp_path / "decisions.previous.jsonl").read_text() == text
        assert (tmp_path / "decisions.jsonl").read_text() == ""
