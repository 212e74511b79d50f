"""Answers and names go out and come back."""

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from talon_ocd.catalog import Catalog
from talon_ocd.catalog.exchange import export
from talon_ocd.catalog.folder_intake import read_folders
from talon_ocd.catalog.folders import export_folders, safe_name
from talon_ocd.catalog.intake import Label, Plan, Step, plan, read_labels
from talon_ocd.durable import Pictures
from talon_ocd.durable.journal import Entry, Journal
from talon_ocd.errors import CatalogError
from talon_ocd.images import memory_item
from talon_ocd.images.items import file_key
from talon_ocd.online import Decision
from tests.catalog.journals import directions, open_journal


def labelled(*pairs: tuple[int, str]) -> list[Label]:
    return [Label(line, index, None, name) for line, (index, name) in enumerate(pairs, 2)]


def homes(catalog: Catalog) -> list[str]:
    rows = catalog.journal.query("SELECT home FROM decisions ORDER BY idx")
    return ["" if row["home"] < 0 else catalog.name(row["home"]) for row in rows]


# Out


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_every_answer_is_a_row_with_what_people_said(catalog: Catalog, tmp_path: Path, kind: str) -> None:
    catalog.rename(2, 'robin, "red" <b>é</b>')
    catalog.merge([3], into=2)
    catalog.reject([0])
    file = tmp_path / "out" / f"answers.{kind}"
    assert export(catalog, file, kind) == 11
    with file.open(encoding="utf-8", newline="") as text:
        rows = list(csv.DictReader(text)) if kind == "csv" else [json.loads(line) for line in text]
    assert [str(row["resolved"]) for row in rows] == ["-1", "0", "1", "2", "2", "2", "2", "2", "4", "5", "5"]
    assert [str(row["category"]) for row in rows][:4] == ["0", "0", "1", "2"]
    assert rows[6]["name"] == 'robin, "red" <b>é</b>' and rows[0]["name"] == ""
    assert (rows[3]["source"], rows[3]["verdict"], float(rows[3]["similarity"])) == ("photos/003.png", "new", 0.897)
    assert rows[0]["at"].endswith("+00:00")
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_label_studio_gets_predictions_and_what_people_said_as_annotations(catalog: Catalog, tmp_path: Path) -> None:
    catalog.rename(2, "robin")
    catalog.move([8], 2)
    catalog.undo(catalog.confirm([3]).seq)
    file = tmp_path / "tasks.json"
    assert export(catalog, file, "label-studio", prefix="/data/local-files/?d=") == 11
    tasks = json.loads(file.read_text(encoding="utf-8"))
    assert tasks[8]["data"]["image"] == "/data/local-files/?d=photos/008.png"
    assert tasks[8]["annotations"][0]["result"][0]["value"] == {"choices": ["robin"]}
    assert tasks[3]["predictions"][0]["result"] == tasks[8]["annotations"][0]["result"]
    assert "annotations" not in tasks[3] and tasks[3]["predictions"][0]["score"] == 0.897
    labels, troubles = read_labels(file)
    assert [(label.index, label.name) for label in labels] == [(8, "robin")] and not troubles


def test_label_studio_finds_uploads_where_the_stream_keeps_them(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "stream", ())
    pictures, made = Pictures(journal), []
    for index, content in enumerate((b"one", b"two", b"three")):
        item = memory_item(content, f"C:\\camera\\{index}.jpg")  # a name on the client's machine
        decision = Decision(index, item.source, 0, "cat", "known", 0.9, 0.5, 1, 0.1)
        made.append(Entry(decision, item.key, directions(1)[0], directions(1)[0], pictures.store(item)))
    journal.write(made)
    pictures.drop_originals([str(made[1].stored)])
    assert export(Catalog(journal), tmp_path / "tasks.json", "label-studio", prefix="d=") == 2
    tasks = json.loads((tmp_path / "tasks.json").read_text(encoding="utf-8"))
    assert [task["data"]["source"] for task in tasks] == [made[0].decision.source, made[2].decision.source]
    found = [Path(task["data"]["image"].removeprefix("d=")).read_bytes() for task in tasks]
    assert found == [b"one", b"three"]  # of the second one only the answer is left
    pictures.close()
    journal.close()


def test_an_empty_stream_is_an_empty_file(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, ())
    for kind in ("csv", "jsonl", "label-studio"):
        assert export(Catalog(journal), tmp_path / kind, kind) == 0
    assert json.loads((tmp_path / "label-studio").read_text()) == []
    with pytest.raises(CatalogError, match="Did you mean 'csv'"):
        export(Catalog(journal), tmp_path / "x", "cvs")
    journal.close()


def picture_journal(folder: Path, sources: list[str], category: int = 2) -> Journal:
    """A stream of files; their content is their place in the list."""
    journal = open_journal(folder / "stream", ())
    made = []
    for index, source in enumerate(sources):
        file = folder / "photos" / source
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(index))
        decision = Decision(index, str(file), category + index % 2, "", "discovered", 0.9, 0.5, 0, 0.1)
        made.append(Entry(decision, file_key(file), directions(1)[0], directions(1)[0]))
    journal.write(made)
    return journal


def test_pictures_go_into_folders_with_the_names_of_categories(tmp_path: Path) -> None:
    journal = picture_journal(tmp_path, ["a/1.png", "a/2.png", "b/1.png", "a/3.png", "a/4.png", "a/5.png", "B/1.PNG"])
    catalog = Catalog(journal)
    catalog.rename(2, "../../etc/robin")
    catalog.rename(3, "..\\..\\ETC/robin")
    catalog.reject([5])
    (tmp_path / "photos/a/4.png").unlink()
    written = export_folders(catalog, tmp_path / "out")
    files = {
        str(path.relative_to(tmp_path / "out")): path.read_text()
        for path in (tmp_path / "out").rglob("*.*")
        if path.is_file()
    }
    first, second = "_.._etc_robin", "_.._ETC_robin (3)"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([first, second])
    assert set(files) == {
        f"{first}/1.png", f"{first}/1~2.png", f"{first}/1~6.PNG", f"{second}/2.png", f"{second}/3.png"
    }  # fmt: skip
    assert files[f"{first}/1~2.png"] == "2"
    assert (written.pictures, written.folders) == (5, 2) and written.missing == (str(tmp_path / "photos/a/4.png"),)
    linked = tmp_path / "out" / first / "1.png"
    assert linked.samefile(tmp_path / "photos/a/1.png")
    with pytest.raises(CatalogError, match="not empty"):
        export_folders(catalog, tmp_path / "out")
    export_folders(catalog, tmp_path / "copies", link=False)
    assert not linked.samefile(tmp_path / "copies" / first / "1.png")
    journal.close()


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        "/",
        "a/b",
        "a\\b",
        "con",
        "NUL.txt",
        "x" * 300,
        "é" * 200,
        "a.",
        " a ",
        "\x00",
        ".hid",
        "日本" * 90 + ".jpeg",
    ],
)
def test_any_name_is_one_safe_file_name(name: str, tmp_path: Path) -> None:
    safe = safe_name(name)
    assert safe not in ("", ".", "..") and not set(safe) & set('/\\:*?"<>|\0') and len(safe.encode()) <= 101
    (tmp_path / safe).touch()
    assert [path.name for path in tmp_path.iterdir()] == [safe]
    assert name.endswith(".jpeg") == safe.endswith(".jpeg")


# In


def test_what_was_exported_changes_nothing_when_it_comes_back(catalog: Catalog, tmp_path: Path) -> None:
    catalog.rename(2, "robin")
    catalog.merge([3], into=2)
    catalog.reject([0])
    for kind in ("csv", "jsonl"):
        export(catalog, tmp_path / f"x.{kind}", kind)
        labels, troubles = read_labels(tmp_path / f"x.{kind}")
        assert plan(catalog, labels) == Plan((), (), 10) and not troubles


def test_folders_that_come_back_unchanged_change_nothing(tmp_path: Path) -> None:
    journal = picture_journal(tmp_path, ["a/1.png", "a/2.png", "b/1.png", "c/1.png", "d/1~2.png"])
    (tmp_path / "photos/c/1.png").write_bytes((tmp_path / "photos/a/1.png").read_bytes())  # alike, and elsewhere
    journal.write([Entry(Decision(5, "x/1.png", 3, "", "discovered", 0.9, 0.5, 0, 0.1),
                         file_key(tmp_path / "photos/c/1.png"), directions(1)[0], directions(1)[0])])  # fmt: skip
    catalog = Catalog(journal)
    catalog.rename(2, "../x")
    catalog.rename(3, ".._x")
    for link in (True, False):
        written = export_folders(catalog, tmp_path / f"out {link}", link)
        labels, troubles = read_folders(catalog, tmp_path / f"out {link}")
        assert plan(catalog, labels) == Plan((), (), 5) and not troubles and written.pictures == 5
    journal.close()


def test_pictures_that_people_put_into_other_folders_are_labels(tmp_path: Path) -> None:
    journal = picture_journal(tmp_path, ["a/1.png", "a/2.png", "b/1.png", "a/3.png", "a/4.png", "a/5.png"])
    catalog, out = Catalog(journal), tmp_path / "out"
    export_folders(catalog, out)
    (out / "discovered-1").rename(out / "robin")
    (out / "discovered-2/2.png").rename(out / "robin/renamed by nobody.png")
    (out / "discovered-2/3.png").rename(out / "robin/3.png")
    (out / "cat").mkdir()
    (out / "discovered-2/5.png").rename(out / "cat/5.png")
    (out / "cat/1.png").write_text("something else")
    (out / "lost.png").touch()
    (out / "cat/notes.txt").touch()
    (out / "robin/photo.heic").touch()
    (out / "x\x01y").mkdir()
    (out / "robin/1~2.png").rename(out / "x\x01y/1~2.png")
    labels, troubles = read_folders(catalog, out)
    made = plan(catalog, labels)
    assert made.steps == (
        Step("name", "robin", 2), Step("move", "cat", 0, (5,)), Step("move", "robin", 2, (3,))
    )  # fmt: skip
    reasons = "\n".join(trouble.reason for trouble in troubles)
    assert (
        len(troubles) == 5
        and "cat/1.png is no image of this stream" in reasons
        and "out/lost.png lies beside" in reasons
    )
    assert "renamed by nobody" in reasons and "control character" in reasons
    assert "no pictures by their endings: 2" in reasons
    journal.close()


def upload_journal(folder: Path, uploads: Sequence[bytes]) -> Journal:
    """Cats that came without a name."""
    journal = open_journal(folder / "stream", ())
    pictures, made = Pictures(journal), []
    for index, data in enumerate(uploads):
        item = memory_item(data, "upload")
        decision = Decision(index, item.source, 0, "cat", "known", 0.9, 0.5, 1, 0.1)
        made.append(Entry(decision, item.key, directions(1)[0], directions(1)[0], pictures.store(item)))
    pictures.close()
    journal.write(made)
    return journal


def drawn(red: int, kind: str = "PNG") -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (4, 4), (red, 0, 0)).save(written, kind)
    return written.getvalue()


def test_uploads_without_a_name_get_the_ending_of_their_kind_and_come_back(tmp_path: Path) -> None:
    journal = upload_journal(tmp_path, [drawn(0), drawn(1, "JPEG"), drawn(2)])
    catalog, out = Catalog(journal), tmp_path / "out"
    export_folders(catalog, out)
    names = ["upload.jpeg", "upload.png", "upload~2.png"]
    assert sorted(path.name for path in (out / "cat").iterdir()) == names
    (out / "dog").mkdir()
    for name in names[1:]:
        (out / "cat" / name).rename(out / "dog" / name)
    (out / "dog/upload~2~2.png").write_bytes(drawn(2))  # a copy says the same once more
    labels, troubles = read_folders(catalog, out)
    assert sorted((label.index, label.name) for label in labels) == [(0, "dog"), (1, "cat"), (2, "dog"), (2, "dog")]
    assert not troubles
    journal.close()


def counted(monkeypatch: pytest.MonkeyPatch, kind: type, method: str) -> Counter[int]:
    """How often a method is asked for each number from now on."""
    asked, original = Counter[int](), getattr(kind, method)

    def asking(self: object, number: int) -> object:
        asked[number] += 1
        return original(self, number)

    monkeypatch.setattr(kind, method, asking)
    return asked


def test_originals_are_read_twice_at_most_however_many_are_called_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, alike = 40, 10
    journal = upload_journal(tmp_path, [drawn(0)] * alike + [drawn(red) for red in range(1, number - alike + 1)])
    catalog, out = Catalog(journal), tmp_path / "out"
    export_folders(catalog, out)
    read, resolved = counted(monkeypatch, Pictures, "item"), counted(monkeypatch, Catalog, "resolve")
    labels, troubles = read_folders(catalog, out)
    assert sorted(label.index or 0 for label in labels) == list(range(number)) and not troubles
    assert max(read.values()) <= 2 and sum(resolved.values()) < 5
    (out / "dog").mkdir()
    for at, file in enumerate(sorted((out / "cat").iterdir())):  # numbers that say nothing
        file.rename(out / "dog" / f"upload~{7 * at % number + number}.png")
    read.clear()
    labels, troubles = read_folders(catalog, out)
    assert sorted(label.index or 0 for label in labels) == list(range(number)) and not troubles
    assert max(read.values()) <= 2
    journal.close()


def test_labels_name_split_and_move(catalog: Catalog) -> None:
    labels = labelled((3, "robin"), (4, "robin"), (5, "dog"), (6, "wren"), (1, "lynx"), (8, "lynx"), (2, "dog"))
    made = plan(catalog, labels)
    assert made.steps == (
        Step("name", "robin", 2),
        Step("split", "wren", 3, (6,)),
        Step("split", "lynx", 0, (1,)),
        Step("move", "dog", 1, (5,)),
        Step("move", "lynx", None, (8,)),
    )
    assert made.unchanged == 3 and not made.troubles
    assert [str(step) for step in made.steps][1:4] == [
        "split image 6 off category 3 as 'wren'", "split image 1 off category 0 as 'lynx'", "move image 5 to 'dog'"
    ]  # fmt: skip
    before = homes(catalog)
    events = made.carry_out(catalog, "Ada", "labels.csv")
    assert homes(catalog)[:9] == ["cat", "lynx", "dog", "robin", "robin", "dog", "wren", "discovered-2", "lynx"]
    assert {event.data["imported"] for event in events} == {"labels.csv"} and {e.actor for e in events} == {"Ada"}
    for _ in events:
        catalog.undo()
    assert homes(catalog) == before


def test_a_category_whose_images_all_go_elsewhere_is_named_at_the_end(catalog: Catalog) -> None:
    catalog.rename(2, "bird")
    made = plan(catalog, labelled((3, "robin"), (4, "wren"), (5, "heron"), (9, "robin")))
    made.carry_out(catalog)
    assert homes(catalog)[3:6] == ["robin", "wren", "heron"] and homes(catalog)[9] == "robin"


def test_the_name_of_a_nameless_category_means_the_category(catalog: Catalog) -> None:
    """As in an export in which most of its rows were given a name, and the others left as they were."""
    made = plan(catalog, labelled((3, "robin"), (4, "robin"), (5, "discovered-1"), (8, "discovered-1")))
    assert made.steps == (Step("name", "robin", 2), Step("move", "discovered-1", 2, (8,))) and made.unchanged == 3
    made.carry_out(catalog)
    assert homes(catalog)[3:6] == ["robin"] * 3 and homes(catalog)[8] == "robin"


def test_names_go_round(catalog: Catalog) -> None:
    """All images of a category get a new name, those of another its old one, and so on."""
    catalog.rename(2, "bird")
    catalog.rename(3, "owl")
    made = plan(
        catalog, labelled((8, "owl"), (6, "bird"), (7, "bird"), (3, "robin"), (4, "robin"), (5, "robin"), (9, "owl"))
    )
    made.carry_out(catalog)
    assert homes(catalog)[3:10] == ["robin", "robin", "robin", "bird", "bird", "owl", "owl"]
    assert (catalog.name(2), catalog.name(3)) == ("robin", "bird")


def test_all_images_of_a_known_class_are_split_off_and_the_class_keeps_its_name(catalog: Catalog) -> None:
    plan(catalog, labelled((0, "lynx"), (1, "lynx"))).carry_out(catalog)
    assert homes(catalog)[:2] == ["lynx", "lynx"] and catalog.name(0) == "cat" and catalog.get(0).count == 0


def test_images_in_the_right_place_can_be_confirmed(catalog: Catalog) -> None:
    made = plan(catalog, labelled((0, "cat"), (1, "cat")), confirm=True)
    assert made.steps == (Step("confirm", "cat", 0, (0, 1)),)
    assert made.carry_out(catalog)[0].kind == "confirmed"


def test_bad_rows_are_told_with_their_line_and_left_out(catalog: Catalog, tmp_path: Path) -> None:
    catalog.reject([10])
    file = tmp_path / "labels.csv"
    rows = ["source,index,name,more", "photos/003.png,,robin,x", ",99,robin,", "nothing.png,,robin", ",x,robin",
            ",,robin", ",4,", ",3,wren", f",5,{'x' * 201}", ",10,heron", '"two', 'lines",6,robin']  # fmt: skip
    file.write_text("\n".join(rows), encoding="utf-8")
    labels, unreadable = read_labels(file)
    assert [(bad.line, bad.reason.split(" ")[0]) for bad in unreadable] == [(5, "index"), (6, "there"), (9, "a")]
    made = plan(catalog, labels)
    assert [bad.line for bad in made.troubles] == [3, 4, 8, 10]
    reasons = [bad.reason for bad in made.troubles]
    assert reasons[0] == "image 99 is not in this stream" and reasons[1] == "image 'nothing.png' is not in this stream"
    assert reasons[2] == "line 2 calls image 3 'robin', not 'wren'" and "rejected" in reasons[3]
    assert {image for step in made.steps for image in step.images} == {3, 6}


def test_json_lines_may_be_bad_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"index": 3, "name": "robin"}\n\n{"index": 3\n[1]\n{"source": "a", "name": "b"}\n{"index": 1}\n')
    labels, troubles = read_labels(file)
    assert labels == [Label(1, 3, None, "robin"), Label(5, None, "a", "b")]
    assert [trouble.line for trouble in troubles] == [3, 4, 6]


def test_label_studio_annotations_are_read_but_for_cancelled_ones(tmp_path: Path) -> None:
    def annotation(*choices: str, **more: object) -> dict[str, object]:
        return {"result": [{"type": "choices", "value": {"choices": list(choices)}}], **more}

    tasks = [
        {"data": {"image": "photos/003.png"}, "annotations": [annotation("wren"), annotation("robin")]},
        {"data": {"index": 4}, "annotations": [annotation("robin"), annotation("wren", was_cancelled=True)]},
        {"data": {"index": 5}, "annotations": [], "predictions": [annotation("robin")]},
        {"data": {"index": 6}, "annotations": [{"result": [{"value": {"text": "hm"}}]}]},
        "no task",
        {"data": {"index": -1}, "annotations": [annotation("robin")]},
    ]
    file = tmp_path / "x.json"
    file.write_text(json.dumps(tasks))
    labels, troubles = read_labels(file)
    assert labels == [Label(1, None, "photos/003.png", "robin"), Label(2, 4, None, "robin")]
    assert [trouble.line for trouble in troubles] == [5, 6]


@pytest.mark.parametrize(
    ("name", "content"), [("x.txt", b""), ("x.json", b"{}"), ("x.json", b"["), ("x.csv", b"\xff\xfe\x00")]
)
def test_a_file_that_is_no_list_of_labels_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CatalogError, match=name):
        read_labels(tmp_path / name)
    with pytest.raises(CatalogError, match="can't be read"):
        read_labels(tmp_path / "missing.csv")
