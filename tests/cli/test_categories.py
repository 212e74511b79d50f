"""``talon categories`` on a stream folder."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from talon_ocd.durable.journal import Journal
from tests.catalog.journals import open_journal
from tests.cli.running import refused, talon


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    folder = tmp_path / "stream"
    open_journal(folder).close()
    return folder


def categories(stream: Path, *words: object) -> str:
    ended = talon("categories", *words, "--stream", stream)
    assert ended.code == 0, ended
    return ended.out


def rows(stream: Path, *words: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in categories(stream, *words, "--json").splitlines()]


def names(stream: Path) -> dict[int, str]:
    return {row["id"]: row["name"] for row in rows(stream, "list", "--state", "all")}


def test_a_list_is_a_table_for_people_and_lines_for_machines(stream: Path) -> None:
    shown = categories(stream, "list")
    assert "discovered-1" in shown and "cat" in shown and "5 of 5 categories" in shown
    found = rows(stream, "list", "--sort", "count", "--limit", 1)
    assert [(row["id"], row["count"], row["state"]) for row in found] == [(2, 3, "active")]
    page = categories(stream, "list", "--limit", 2)
    following = page.split("--after ")[1].split()[0]
    assert "2 of 5" in categories(stream, "list", "--limit", 2, "--after", following)


def test_name_merge_undo_and_history(stream: Path) -> None:
    assert "'discovered-1' was named 'robin'" in categories(stream, "name", 2, "robin", "--by", "Ada")
    assert refused("categories", "name", 3, "robin", "-s", stream) == (
        "'robin' is the name of category 2 already; add --merge if the two are one, or choose another name."
    )
    merged = rows(stream, "name", 3, "robin", "--merge")[0]
    assert (merged["kind"], merged["data"]) == ("merged", {"categories": [3], "into": 2, "before": ["discovered-2"]})
    assert names(stream)[2] == "robin"
    history = rows(stream, "history")
    assert [(row["kind"], row["actor"], row["undone"]) for row in history] == [
        ("merged", "person", False), ("named", "Ada", False)
    ]  # fmt: skip
    categories(stream, "undo", merged["seq"])
    assert rows(stream, "show", 3)[0]["state"] == "active"
    assert "yes" in categories(stream, "history") and "was discovered" in categories(stream, "history", "--everything")
    categories(stream, "undo")
    assert names(stream)[2] == "discovered-1"


def test_categories_may_be_given_by_name(stream: Path) -> None:
    categories(stream, "name", 2, "great tit")
    told = categories(stream, "merge", "great tit", "discovered-2", "--into", "discovered-2")
    assert "'great tit' (2) merged into 'great tit' (3)" in told  # a nameless one takes the name
    told = categories(stream, "merge", 4, "great tit")
    assert "'discovered-3' (4) merged into 'great tit' (3)" in told  # what it was called until then
    assert rows(stream, "show", "great tit")[0]["id"] == 3
    assert "Did you mean 'great tit'" in refused("categories", "show", "great tot", "-s", stream)


def test_show_split_move_and_hide(stream: Path) -> None:
    shown = categories(stream, "show", 2)
    assert "photos/005.png" in shown and "3 of 3 images" in shown
    split = rows(stream, "split", 2, 3, 4, "--name", "robin")[0]
    assert split["data"]["moves"] == [[3, 2, 6], [4, 2, 6]]
    assert rows(stream, "move", "robin", 5)[0]["data"]["moves"] == [[5, 2, 6]]
    categories(stream, "hide", "robin")
    assert [row["id"] for row in rows(stream, "list", "--state", "hidden")] == [6]
    categories(stream, "hide", "robin", "--show")
    assert not rows(stream, "list", "--state", "hidden")
    categories(stream, "merge", 3, 2)
    assert "merged into 3" in categories(stream, "show", 2) and "with 2" in categories(stream, "show", 3)


def test_similar_ones(stream: Path) -> None:
    assert len(rows(stream, "similar", 2, "--limit", 3)) == 3
    assert "cosine" in categories(stream, "similar", "cat")
    pairs = rows(stream, "similar")
    assert [row["score"] >= 0.5 for row in pairs] == [True] * len(pairs) and pairs[0]["unit"] == "cosine"
    assert "talon categories merge" in categories(stream, "similar")


def test_html_and_markup_in_names_are_just_text(stream: Path) -> None:
    categories(stream, "name", 2, "[red]<b>x</b>[/red]")
    assert "[red]<b>x</b>[/red]" in categories(stream, "list")


def test_answers_go_out_and_labels_come_in(stream: Path, tmp_path: Path) -> None:
    file = tmp_path / "answers.csv"
    assert "11 images written" in categories(stream, "export", file)
    with file.open(newline="", encoding="utf-8") as text:
        table = list(csv.DictReader(text))
    table[3]["name"] = table[4]["name"] = "robin"
    table[9]["index"] = "99"
    with file.open("w", newline="", encoding="utf-8") as text:
        writer = csv.DictWriter(text, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    said = categories(stream, "import", file, "--dry-run")
    assert "name category 2 'robin'" in said and "nothing was changed" in said
    assert "line 11: image 99 is not in this stream" in said
    assert names(stream)[2] == "discovered-1"
    steps = rows(stream, "import", file, "--by", "Ada")
    assert [row["step"]["kind"] for row in steps if "step" in row] == ["name"]
    assert names(stream)[2] == "robin"
    assert rows(stream, "history")[0]["data"]["imported"] == "answers.csv"
    for name, begins in (("x.jsonl", "{"), ("x.json", "[")):
        categories(stream, "export", tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(begins)


def test_pictures_that_are_gone_are_told(stream: Path, tmp_path: Path) -> None:
    said = categories(stream, "export", tmp_path / "folders", "--quiet")
    assert "0 pictures in 0 folders" in said and "11 left out" in said and "photos/000.png" in said
    assert "say with --format" in refused("categories", "export", tmp_path / "x.parquet", "-s", stream)


def test_names_are_carried_to_another_stream(stream: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    open_journal(new, (0, 0, 1, 4, 4, 4, 5, 5, 3, 2, 6)).close()
    categories(stream, "name", 2, "robin")
    categories(stream, "name", 5, "heron")
    said = categories(new, "carry", stream)
    assert f"carried over from {stream}: 1" in said and "category 5 ('heron')" in said
    assert names(new)[4] == "robin"


def test_a_stream_in_use_can_be_read_and_not_edited(stream: Path) -> None:
    journal = Journal(stream, write=True, purpose="a test")
    assert "in use (a test" in refused("categories", "name", 2, "robin", "-s", stream)
    assert "5 of 5" in categories(stream, "list")
    journal.close()


def test_a_folder_without_a_stream_is_refused_and_stays_empty(tmp_path: Path) -> None:
    assert "no stream here" in refused("categories", "list", "-s", tmp_path)
    assert "no stream here" in refused("categories", "name", 2, "x", "-s", tmp_path)
    assert not list(tmp_path.iterdir())
