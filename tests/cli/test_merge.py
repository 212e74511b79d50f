"""Streams of many sites, joined from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from talon_ocd import Talon
from talon_ocd.catalog import Catalog
from talon_ocd.durable import Journal, Pictures
from tests import tiny
from tests.cli.running import refused, talon
from tests.service.running import running

UNSURE = 10.5
"""Nats of ``--finer``: small pieces of classes, some of which look alike."""


@pytest.fixture(scope="module")
def sites(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Streams ``a`` and ``b`` of images on disk; they have seen some of the same digits."""
    root = tmp_path_factory.mktemp("sites")
    for name, first, labels in (("a", 20, ("0", "4", "5")), ("b", 50, ("0", "4", "6"))):
        images = tiny.write_folder(root / f"images-{name}", list(tiny.part(first, first + 30, labels)))
        ended = talon("discover", images, "-m", model, "--stream", root / name, "--finer", UNSURE, "-q")
        assert ended.code == 0, ended
    return root


def facts(folder: Path) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = json.loads((folder / "merge.json").read_text(encoding="utf-8"))
    return found


def catalog(folder: Path) -> Catalog:
    return Catalog(Journal(folder))


def pairs(folder: Path, answer: str) -> list[dict[str, object]]:
    return [pair for pair in facts(folder)["pairs"] if pair["answer"] == answer]


def test_a_joined_stream_is_a_stream(sites: Path, model: Path, tmp_path: Path) -> None:
    joined = tmp_path / "c"
    ended = talon("merge", sites / "a", sites / "b", "-o", joined)
    assert ended.code == 0 and "a: 90 answers from 0 on" in ended.out and "180 answers in" in ended.out
    one, two = pairs(joined, "yes"), pairs(joined, "later")
    assert f"one by now: {len(one)} pair" in ended.out and f"not sure: {len(two)} pair" in ended.out
    assert one and two, "the streams have pairs of both kinds"
    assert "talon merge" in talon("categories", "history", "-s", joined).out
    info = talon("stream", "info", joined).out
    assert "answered    180" in info and "sites       a (90), b (90)" in info
    similar = talon("categories", "similar", "-s", joined, "--json").out.splitlines()
    shown = [{json.loads(line)[side]["id"] for side in ("first", "second")} for line in similar]
    assert shown[: len(two)] == [{pair["first"], pair["second"]} for pair in two], "what is unsure is asked first"
    old = int(str(one[0]["second"])) - int(str(facts(joined)["sites"][1]["shift"]))
    found = json.loads(talon("categories", "show", f"b:{old}", "-s", joined, "--json").out)
    assert (found["id"], found["into"]) == (one[0]["second"], one[0]["first"])
    more = tiny.write_folder(tmp_path / "more", list(tiny.part(80, 82, ("0", "4"))))
    ended = talon("discover", more, "-m", model, "--stream", joined, "-q")
    assert ended.code == 0 and "went on after 180 images" in ended.out and "4 images: " in ended.out
    again = talon("discover", sites / "images-b", "-m", model, "--stream", joined, "-q")
    assert again.code == 0 and "0 images: " in again.out, "images of all sites count as answered"
    journal = Journal(joined)
    pictures = Pictures(journal)
    assert all(pictures.thumbnail(index) for index in range(184))
    pictures.close()
    journal.close()


def test_it_asks_where_it_is_unsure(sites: Path, tmp_path: Path) -> None:
    words = ("merge", sites / "a", sites / "b", "--unsure", "ask", "--by", "Ada", "-o")
    ended = talon(*words, tmp_path / "later", stdin="what?\ns\n" * 9)
    (pair, *others) = pairs(tmp_path / "later", "later")
    assert "Are these the same?" in ended.out and ".jpg" in ended.out and "images, " in ended.out
    first, second = int(str(pair["first"])), int(str(pair["second"]))
    talon(*words, tmp_path / "no", stdin="n\n" * 9)
    assert not pairs(tmp_path / "no", "later")
    refusals = catalog(tmp_path / "no").refusals()
    assert (first, second) in refusals and len(refusals) == 1 + len(others)
    talon(*words, tmp_path / "yes", stdin="y\n" * 9)
    found = catalog(tmp_path / "yes")
    assert found.resolve(second) == first
    assert found.history()[0].actor == "Ada"


def test_the_service_goes_on_with_a_joined_stream_and_asks_first_what_is_open(
    sites: Path, model: Path, tmp_path: Path
) -> None:
    assert talon("merge", sites / "a", sites / "b", "-o", tmp_path / "c").code == 0
    left = [{pair["first"], pair["second"]} for pair in pairs(tmp_path / "c", "later")]
    with running(Talon.from_pretrained(model), tmp_path / "c") as service:
        shown = service.client().get("/v1/suggestions").json["items"]
        assert [{item["first"]["id"], item["second"]["id"]} for item in shown[: len(left)]] == left
        assert service.client().get("/v1/categories/0").json["count"] > 0


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_an_answer_for_all(sites: Path, tmp_path: Path, answer: str) -> None:
    assert talon("merge", sites / "a", sites / "b", "-o", tmp_path / "c", "--unsure", answer).code == 0
    assert not pairs(tmp_path / "c", "later") and pairs(tmp_path / "c", answer)


def test_sites_may_be_named_and_the_model_be_elsewhere(sites: Path, model: Path, tmp_path: Path) -> None:
    words = ("-m", model, "--site", "north", "--site", "south", "-o", tmp_path / "c")
    assert "north: 90 answers" in talon("merge", sites / "a", sites / "b", *words).out


def test_what_is_refused(sites: Path, model: Path, known_folder: Path, tmp_path: Path) -> None:
    assert "given twice" in refused("merge", sites / "a", sites / "a", "-o", tmp_path / "c")
    assert "no stream here" in refused("merge", tmp_path, sites / "a", "-o", tmp_path / "c")
    assert "something already" in refused("merge", sites / "a", sites / "b", "-o", sites)
    other = tmp_path / "other"
    assert talon("fit", known_folder, "-o", other, "--backbone", "tiny-vit", "--image-size", 16, "--epochs", 0,
                 "--set", "rounds=1", "--quiet").code == 0  # fmt: skip
    image = next((sites / "images-a").rglob("*.png"))
    assert talon("discover", image, "-m", other, "--stream", tmp_path / "d", "-q").code == 0
    assert "different models" in refused("merge", sites / "a", tmp_path / "d", "-o", tmp_path / "c")
    assert "another model" in refused("merge", sites / "a", sites / "b", "-m", other, "-o", tmp_path / "c")
    assert not (tmp_path / "c").exists()
