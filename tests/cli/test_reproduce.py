"""Published rows: their settings are the official ones, and the way to a result works with small stand-ins."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from talon_ocd.config import TalonConfig
from talon_ocd.evaluation.datasets import OFFICIAL
from talon_ocd.evaluation.paper import PaperRow, paper_names, paper_row
from talon_ocd.evaluation.published import BACKBONES, base_name, find
from tests.backbones import small_models
from tests.cli.running import refused, talon
from tests.evaluation.layouts import lines
from tests.images.pictures import encoded, photo

DATASETS = ("cifar10-6-4", "cifar100", "imagenet100-80-20", "cub", "cars", "pets", "food101")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALON_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def cub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CUB as it is unpacked, with its 200 classes but two tiny training images each."""
    folder = tmp_path_factory.mktemp("data") / "CUB_200_2011"
    names = [f"{number:03d}.Bird_{number}" for number in range(1, 201)]
    images = [f"{name}/{at}.png" for name in names for at in (1, 2)]
    count = range(1, len(images) + 1)
    lines(folder / "classes.txt", *(f"{at} {name}" for at, name in enumerate(names, 1)))
    lines(folder / "images.txt", *(f"{at} {image}" for at, image in enumerate(images, 1)))
    lines(folder / "image_class_labels.txt", *(f"{at} {(at + 1) // 2}" for at in count))
    lines(folder / "train_test_split.txt", *(f"{at} 1" for at in count))
    for number, image in enumerate(images):
        path = folder / "images" / image
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(photo(9, 9, seed=number)))
    return folder.parent


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("weights")
    kinds = {"clip": "clip_vision_model", "dino": "vit"}
    return {family: small_models.save(small_models.build(kind), folder / family) for family, kind in kinds.items()}


def test_there_is_a_file_for_every_published_row() -> None:
    assert paper_names() == sorted(f"{dataset}-{family}" for dataset in DATASETS for family in BACKBONES)


@pytest.mark.parametrize("name", paper_names())
def test_settings_are_official_and_figures_published(name: str) -> None:
    row = paper_row(name)
    official = TalonConfig.official(row.family)
    assert replace(row.config, offline=replace(row.config.offline, views=official.offline.views)) == official
    assert row.config.offline.views == 0  # the released code draws fresh views
    assert (row.config.offline.epochs, row.config.offline.batch_size, row.config.seed) == (100, 128, 1028)
    assert row.config.online.threshold == {"clip": 0.75, "dino": 0.70}[row.family]
    assert row.config.online.encoder_lr == {"clip": 0.1, "dino": 0.01}[row.family]
    assert (row.aspect, row.config.offline.augmentation, row.sampling) == ("squash", "talon", "talon")
    assert row.backbone == BACKBONES[row.family] and row.method == "talon"
    known = OFFICIAL[row.dataset].expected.known
    assert row.split == f"{known}/{OFFICIAL[row.dataset].expected.classes - known}"
    for protocol in ("strict", "greedy"):
        figure = find(protocol, "TALON", base_name(row.dataset), row.split, row.family)
        assert figure is not None
        assert row.published[protocol] == {"all": figure.all, "old": figure.old, "new": figure.new}


def test_the_plan_is_the_papers() -> None:
    plan = paper_row("pets-dino").plan(orders=2)
    assert list(plan.seeds) == [1028] and plan.rule == "talon" and plan.order == "shuffled" and plan.rows == 2
    assert plan.config == paper_row("pets-dino").config and plan.cells[0].name == "talon"
    assert paper_row("pets-dino").plan(epochs=3).config.offline.epochs == 3


@pytest.mark.parametrize("family", BACKBONES)
def test_ours_against_published_with_stand_ins(family: str, cub: Path, weights: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--weights", weights[family], "--root", cub, "-o", out, "--orders", 2, "--epochs", 1, "-q")
    ended = talon("reproduce", f"cub-{family}", *options)
    assert ended.code == 0
    figure = f"{paper_row(f'cub-{family}').published['strict']['all']}"
    for word in ("Strict", "Greedy", "ours", "published", "difference", figure, "epochs 1 instead of 100"):
        assert word in ended.out, word
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.rglob("rows/**/*.json"))]
    assert len(rows) == 2 and {row["order"]["number"] for row in rows} == {0, 1}
    for row in rows:
        assert row["seed"] == 1028 and row["sampling"] == "talon" and row["family"] == family
        assert row["preset"] == "official" and row["pipeline"]["aspect"] == "squash" and row["known_classes"] == 100
        assert row["settings"]["recipe"]["config"]["online"]["threshold"] == {"clip": 0.75, "dino": 0.70}[family]
    shown = talon("tables", out, "-t", "main-strict", "-f", "csv")
    assert "TALON, published" in shown.out  # same family, same split
    assert talon("figures", out, "-o", tmp_path / "figures").code == 0
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == {"time-cub", "along-cub"}
    assert talon("reproduce", f"cub-{family}", *options).out == ended.out  # nothing is computed twice


def test_the_rows_are_listed() -> None:
    ended = talon("reproduce")
    assert ended.code == 0 and all(name in ended.out for name in ("cub-clip", "pets-dino"))


def test_refusals(cub: Path, weights: dict[str, str], tmp_path: Path) -> None:
    assert "Did you mean 'cub-clip'" in refused("reproduce", "cub-clp", "--root", cub)
    assert "needs --root" in refused("reproduce", "cub-clip", "--weights", weights["clip"])
    wrong = refused("reproduce", "cub-clip", "--root", cub, "--weights", weights["dino"], "-o", tmp_path / "out")
    assert "dino weights" in wrong and "published with clip" in wrong
    assert isinstance(paper_row("cub-clip"), PaperRow) and not (tmp_path / "out").exists()
