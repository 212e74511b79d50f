"""What holds for every official data set, and, where the downloads are there, their real sizes."""

import os
from pathlib import Path

import pytest

from talon_ocd.errors import ConfigError
from talon_ocd.evaluation.datasets import OFFICIAL, Dataset, Expected, dataset_names, load_dataset
from talon_ocd.evaluation.splits import split
from tests.evaluation import layouts

REAL = os.environ.get("TALON_TEST_DATA")
CUB = Expected(4, 1, 8)


@pytest.mark.parametrize("name", OFFICIAL)
def test_sizes_and_splits_agree(name: str) -> None:
    official = OFFICIAL[name]
    numbers = official.classes(official.expected)
    assert len(numbers.known) == official.expected.known
    assert sorted((*numbers.known, *numbers.new)) == list(range(official.expected.classes))


@pytest.mark.parametrize("name", OFFICIAL)
def test_a_name_without_a_root_says_what_is_needed(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_dataset(name)
    text = str(caught.value)
    assert f"--dataset {name} needs --root DIR" in text and OFFICIAL[name].layout.tree in text and "https://" in text


def test_names() -> None:
    assert dataset_names()[:3] == ("digits", "glyphs", "folder") and len(dataset_names()) == 18
    with pytest.raises(ConfigError, match="Did you mean 'imagenet100'"):
        load_dataset("imagenet")


def test_known_takes_the_first_of_the_published_order_and_leaves_a_note(tmp_path: Path) -> None:
    layouts.cub(tmp_path)
    usual = load_dataset("cub", tmp_path, expected=CUB)
    more = load_dataset("cub", tmp_path, 3, expected=CUB)
    assert more.known == usual.classes[:3] and more.classes == usual.classes
    assert more.notes == (
        "3 classes are known by --known, not the published 1; figures can't be compared with published ones.",
    )
    layouts.lines(tmp_path / "known.txt", "003.Bunting", "002.Auklet")
    listed = load_dataset("cub", tmp_path, tmp_path / "known.txt", expected=CUB)
    assert listed.classes == ("003.Bunting", "002.Auklet", "001.Albatross", "004.Ani") and len(listed.notes) == 1
    for known in (0, 5, "many"):
        with pytest.raises(ConfigError, match="--known"):
            load_dataset("cub", tmp_path, known, expected=CUB)


def test_the_classes_of_a_data_set_without_a_list_are_sorted() -> None:
    data = load_dataset("digits", known=2)
    assert Dataset("x", data.items, ("7",)).classes == tuple("7012345689")
    assert Dataset("x", data.items, ("7",), new=("9",)).classes == tuple("7901234568")


def real(folder: str) -> Path:
    root = Path(REAL or ".") / folder
    if REAL is None or not root.is_dir():
        pytest.skip(f"set TALON_TEST_DATA to a folder that has {folder}")
    return root


@pytest.mark.parametrize(
    ("name", "folder", "sizes"),
    [("cub", "CUB_200_2011", (1498, 4496, 1499)), ("pets", "oxford-iiit-pet", (942, 2738, 943))],
)
def test_real_sizes(name: str, folder: str, sizes: tuple[int, int, int]) -> None:
    root = real(folder)
    data = load_dataset(name, root)
    assert data.notes == () and data.skipped == []
    assert load_dataset(name, root.parent).known == data.known and len(data.classes) == OFFICIAL[name].expected.classes
    for seed, rule in ((0, "gcd"), (1028, "talon")):
        parts = split(data.items, data.known, seed, rule)  # type: ignore[arg-type]
        old = sum(data.items[at].label in data.known for at in parts.rest)
        assert (len(parts.labelled), len(parts.rest), old) == sizes
    data.items[0].load()
