"""The report: self-contained, escaped, capped, reproducible, and never half written."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from talon_ocd.errors import ConfigError, StorageError
from talon_ocd.evaluation import figures, report
from talon_ocd.evaluation.report import Exemplars, ReportInput, thumbnail, write_report

JPEG = thumbnail(Image.new("RGB", (32, 32), "teal"))


def decision(index: int, category: int, verdict: str, **changes: Any) -> dict[str, Any]:
    facts = {"index": index, "source": f"{index}.jpg", "category": category, "name": "", "verdict": verdict}
    numbers = {"similarity": 0.8, "threshold": 0.7, "runner_up": None, "runner_up_similarity": None}
    return {**facts, **numbers, **changes}


def stream() -> list[dict[str, Any]]:
    return [
        decision(0, 0, "known", name="robin"),
        decision(1, 2, "new", similarity=0.4, runner_up=0),
        decision(2, 2, "discovered", similarity=0.9, runner_up=0),
        decision(3, 3, "new", similarity=0.3, name="heron"),
        decision(4, 2, "discovered", similarity=0.8, runner_up=3),
    ]


def page(tmp_path: Path, **changes: Any) -> str:
    settings: dict[str, Any] = {
        "title": "A walk",
        "decisions": stream(),
        "known": 2,
        "thumbnails": {2: [JPEG] * 3},
        "summary": {"seed": 7},
    }
    write_report(ReportInput(**{**settings, **changes}), tmp_path / "report.html")
    return (tmp_path / "report.html").read_text(encoding="utf-8")


class Balance(HTMLParser):
    """Checks that every tag that was opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "img", "input", "br", "link"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_tells_the_story(tmp_path: Path) -> None:
    text = page(tmp_path, settings={"online": {"threshold": 0.7}}, skipped=[("bad.png", "ends early")])
    balance = Balance()
    balance.feed(text)
    assert not balance.open
    assert re.search(r"<b>5</b>images", text)
    assert re.search(r"<b>1</b>known classes seen<small>of 2</small>", text)
    assert re.search(r"<b>2</b>categories discovered<small>1 seen more than once</small>", text)
    assert "<b>3</b> images, 1 to 4" in text
    assert "mean similarity 0.85" in text, "the founder's similarity is that to another category"
    assert "similarity to the best category" in text and "threshold 0.7" in text
    assert "near robin" in text
    assert text.count("data:image/jpeg;base64,") == 3
    assert "bad.png" in text and "ends early" in text and "&#34;threshold&#34;: 0.7" in text


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    text = page(tmp_path)
    links = re.findall(r"""(?:src|href|xlink:href)\s*=\s*["']([^"']*)""", text)
    assert links
    assert all(link.startswith(("data:", "#")) for link in links)
    assert not re.search(r"@import|<link|url\((?!#)", text)
    namespaces = r'xmlns(?::\w+)?="http://www\.w3\.org/[\w/]+"'
    assert "://" not in re.sub(namespaces, "", text)
    assert "default-src 'none'" in text


def test_names_and_sources_are_escaped(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>$\\frac'
    decisions = [{**item, "name": evil, "source": evil} for item in stream()]
    text = page(
        tmp_path,
        title=evil,
        decisions=decisions,
        summary={evil: evil},
        skipped=[(evil, evil)],
        settings={evil: evil},
    )
    assert "<script>alert" not in text
    assert 'alert("' not in text
    assert "&lt;script&gt;" in text
    assert text.count("<script>") == 1


def test_unencodable_names_do_not_stop_the_report(tmp_path: Path) -> None:
    decisions = [{**item, "name": "bad \udcff name 鷺 🪶"} for item in stream()]
    assert "鷺 🪶" in page(tmp_path, decisions=decisions)


def test_same_input_same_bytes(tmp_path: Path) -> None:
    assert page(tmp_path) == page(tmp_path)


def test_an_empty_stream_still_gives_a_page(tmp_path: Path) -> None:
    text = page(tmp_path, decisions=[], thumbnails={}, summary={})
    assert "no usable image" in text
    assert "<figure" not in text


def test_a_stream_without_discoveries(tmp_path: Path) -> None:
    text = page(tmp_path, decisions=stream()[:1])
    assert "Nothing new" in text
    assert "Timeline" not in text
    once = page(tmp_path, decisions=stream()[:2])
    assert "No new category was seen twice" in once


def test_scores_are_shown_with_their_spread(tmp_path: Path) -> None:
    strict = {"all": 0.5, "old": 0.75, "new": 0.25, "std": {"all": 0.012}}
    greedy = {"all": 0.6, "old": 0.75, "new": 0.5}
    metrics = {
        "strict": strict,
        "greedy": greedy,
        "categories": {"found": 30, "true": 10},
        "known_accuracy": 0.91,
    }
    text = page(tmp_path, metrics=metrics)
    assert "<td>50.0 <small>± 1.2</small></td><td>75.0</td><td>25.0</td>" in text
    assert "30 categories were found where there are 10" in text
    assert "known accuracy" in text and "0.91" in text
    apart = page(tmp_path, metrics={"greedy": greedy, "std": {"greedy": {"all": 0.02, "old": 0.0}}})
    assert "<td>60.0 <small>± 2.0</small></td><td>75.0 <small>± 0.0</small></td><td>50.0</td>" in apart
    assert "<h2>Scores" not in page(tmp_path)


def test_numbers_that_are_missing_are_left_out_of_figures(tmp_path: Path) -> None:
    decisions = [
        decision(0, 5, "new", similarity=None, threshold=None),
        decision(1, 5, "discovered", similarity=-np.inf),
    ]
    assert "How sure" in page(tmp_path, decisions=decisions)


def test_long_streams_stay_small_and_say_what_is_left_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    picture = thumbnail(Image.fromarray(rng.integers(0, 255, (96, 96, 3), dtype=np.uint8)))
    categories = [*range(5_000), *(rng.zipf(1.2, 95_000) % 5_000).tolist()]
    decisions = [decision(i, c, "new" if i == c else "discovered") for i, c in enumerate(categories)]
    text = page(
        tmp_path,
        decisions=decisions,
        known=0,
        thumbnails={c: [picture] * 9 for c in range(5_000)},
        skipped=[("x" * 500, "damaged")] * 1_000,
    )
    assert len(text) < 20_000_000
    assert text.count('<article class="card"') <= 3 * report.MOST_CARDS
    assert re.search(r"300 are shown; [\d,]+ more are not shown", text)
    assert f"The {report.MOST_STRIPS} largest of" in text
    assert "800 more are not shown" in text
    assert "no picture kept" in text, "the pictures have a budget"


@pytest.mark.parametrize("place", ["missing/report.html", "file/report.html", "folder"])
def test_a_report_that_cannot_be_written_is_a_storage_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match=r"report can't be written .* choose a folder"):
        write_report(ReportInput("A walk", [], 0, {}, {}), tmp_path / place)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["file", "folder"]


def test_a_full_disk_leaves_the_old_report_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = page(tmp_path)

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="No space left"):
        page(tmp_path, title="Another walk")
    assert [item.name for item in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == before


def test_growth_counts_first_and_second_appearances() -> None:
    first, second = figures._first_and_second(np.array([4, 1, 4, 4, 1, 9]))
    assert first.tolist() == [True, True, False, False, False, True]
    assert second.tolist() == [False, False, True, False, True, False]


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "CMYK", "1"])
def test_thumbnails_are_small_square_jpegs(mode: str) -> None:
    jpeg = thumbnail(Image.new(mode, (300, 200)))
    with Image.open(BytesIO(jpeg)) as picture:
        assert (picture.format, picture.mode, picture.size) == ("JPEG", "RGB", (96, 96))
    with Image.open(BytesIO(thumbnail(Image.new(mode, (8, 500))))) as picture:
        assert picture.size == (8, 8)


def test_transparent_pictures_lie_on_white() -> None:
    with Image.open(BytesIO(thumbnail(Image.new("RGBA", (40, 40), (0, 0, 0, 0))))) as picture:
        assert picture.getpixel((20, 20)) == (255, 255, 255)


def test_exemplars_keep_the_first_pictures_of_a_category() -> None:
    exemplars = Exemplars(per_category=2)
    pictures = [Image.new("RGB", (20, 20), colour) for colour in ("red", "green", "blue")]
    for picture in pictures:
        exemplars.add(7, picture)
    assert exemplars.thumbnails == {7: [thumbnail(pictures[0]), thumbnail(pictures[1])]}


def test_exemplars_are_bounded_and_singletons_give_way() -> None:
    exemplars = Exemplars(categories=2)
    picture = Image.new("RGB", (20, 20))
    for category in (0, 0, 1, 2):
        exemplars.add(category, picture)
    assert sorted(exemplars.thumbnails) == [0, 2]
    for category in (2, 3):
        exemplars.add(category, picture)
    assert sorted(exemplars.thumbnails) == [0, 2]


def test_exemplars_refuse_senseless_sizes() -> None:
    with pytest.raises(ConfigError, match="per_category=0"):
        Exemplars(per_category=0)
    with pytest.raises(ConfigError, match="side=0"):
        thumbnail(Image.new("RGB", (4, 4)), side=0)
