from collections.abc import Callable
from pathlib import Path

import pytest

from talon_ocd.errors import DataError
from talon_ocd.evaluation.datasets import Dataset, Expected, load_dataset
from tests.evaluation import layouts

CUB, PETS, FOOD, AIRCRAFT = Expected(4, 1, 8), Expected(3, 2, 5), Expected(3, 2, 4), Expected(8, 6, 8)


def shown(data: Dataset) -> list[tuple[str, str]]:
    """Label and file name of each item."""
    return [(str(item.label), Path(item.source).name) for item in data.items]


def test_cub_takes_the_training_split_in_the_order_of_the_index(tmp_path: Path) -> None:
    layouts.cub(tmp_path / "CUB_200_2011")
    data = load_dataset("cub", tmp_path, expected=CUB)
    names = ("001.Albatross", "002.Auklet", "003.Bunting", "004.Ani")
    assert shown(data) == [(name, f"{name[4:]}_{at}.jpg") for name in names for at in (2, 3)]
    assert data.name == "cub" and data.notes == () and data.skipped == []
    assert data.known == names[:1] and data.classes == (names[0], names[3], names[2], names[1])  # hard, medium, easy
    assert load_dataset("cub", tmp_path / "CUB_200_2011", expected=CUB).classes == data.classes
    assert data.items[0].load().size == (8, 8)


def test_pets_have_the_numbers_of_the_annotation(tmp_path: Path) -> None:
    data = load_dataset("pets", layouts.pets(tmp_path / "any name"), expected=PETS)
    assert data.classes == ("Bengal", "shiba_inu", "pug") and data.known == ("Bengal", "shiba_inu")
    assert shown(data)[:3] == [("pug", "pug_10.jpg"), ("pug", "pug_2.jpg"), ("Bengal", "Bengal_1.jpg")]
    assert len(data.items) == 5 and data.notes == ()
    layouts.pets(tmp_path / "oxford-iiit-pet")
    assert shown(load_dataset("pets", tmp_path, expected=PETS)) == shown(data)


def test_food_is_sorted_by_name(tmp_path: Path) -> None:
    layouts.food101(tmp_path / "food-101")
    data = load_dataset("food101", tmp_path, expected=FOOD)
    assert data.classes == ("apple_pie", "baklava", "waffles") and data.known == ("apple_pie", "baklava")
    assert [name for _, name in shown(data)] == ["2.jpg", "1.jpg", "5.jpg", "3.jpg"]


def test_aircraft_variants_are_sorted_as_strings(tmp_path: Path) -> None:
    data = load_dataset("aircraft", layouts.aircraft(tmp_path), expected=AIRCRAFT)
    assert data.classes == ("707-320", "727-200", "737-200", "A300B4", "A310", "Cessna 172", "DC-10", "F/A-18")
    assert len(data.known) == 6 and shown(data)[:3] == [
        ("F/A-18", "0000000.jpg"), ("707-320", "0000001.jpg"), ("Cessna 172", "0000002.jpg"),
    ]  # fmt: skip


def test_a_listed_image_that_is_missing_is_skipped_and_noted(tmp_path: Path) -> None:
    missing = layouts.cub(tmp_path) / "images" / "002.Auklet" / "Auklet_2.jpg"
    missing.unlink()
    data = load_dataset("cub", tmp_path, expected=CUB)
    assert [skipped.source for skipped in data.skipped] == [str(missing)] and len(data.items) == 7
    assert "listed in images.txt but is not there" in data.skipped[0].reason
    assert len(data.notes) == 1 and "1 of the 8 images" in data.notes[0] and "can't be compared" in data.notes[0]


@pytest.mark.parametrize(
    ("name", "make", "expected", "index"),
    [
        ("cub", layouts.cub, CUB, "train_test_split.txt"),
        ("cub", layouts.cub, CUB, "classes.txt"),
        ("pets", layouts.pets, PETS, "annotations/trainval.txt"),
        ("food101", layouts.food101, FOOD, "meta/train.txt"),
        ("aircraft", layouts.aircraft, AIRCRAFT, "data/variants.txt"),
    ],
)
def test_a_missing_index_is_named_with_the_tree_and_the_site(
    name: str, make: Callable[[Path], Path], expected: Expected, index: str, tmp_path: Path
) -> None:
    (make(tmp_path) / index).unlink()
    with pytest.raises(DataError) as caught:
        load_dataset(name, tmp_path, expected=expected)
    text = str(caught.value)
    assert f"{index} is missing" in text and "Expected under --root:" in text and "From https://" in text


def test_a_root_a_step_too_deep_or_too_high_is_guessed(tmp_path: Path) -> None:
    folder = layouts.cub(tmp_path / "data" / "birds")
    for root in (folder / "images", folder / "images" / "001.Albatross", tmp_path / "data"):
        with pytest.raises(DataError) as caught:
            load_dataset("cub", root, expected=CUB)
        assert f"Did you mean --root {folder}?" in str(caught.value)
    with pytest.raises(DataError, match="does not exist; check --root"):
        load_dataset("cub", tmp_path / "nowhere")
    with pytest.raises(DataError, match="is a file, not a folder"):
        load_dataset("cub", folder / "images.txt")


def test_the_wrong_number_of_classes_is_refused(tmp_path: Path) -> None:
    for name, make in (("cub", layouts.cub), ("food101", layouts.food101), ("aircraft", layouts.aircraft)):
        with pytest.raises(DataError, match=r"has \d classes, .* has \d\d\d\."):
            load_dataset(name, make(tmp_path / name))
    with pytest.raises(DataError, match=r"has 3 classes, Oxford-IIIT Pet has 37\."):
        load_dataset("pets", layouts.pets(tmp_path / "pets"))


def test_classes_without_an_image_are_refused(tmp_path: Path) -> None:
    folder = layouts.cub(tmp_path)
    for path in (folder / "images" / "003.Bunting").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"no image of 1 of the 4 classes; the first is '003\.Bunting'"):
        load_dataset("cub", folder, expected=CUB)
    for path in folder.glob("images/*/*.jpg"):
        path.unlink()
    with pytest.raises(DataError, match="lists 8 images, but none of them is there"):
        load_dataset("cub", folder, expected=CUB)


@pytest.mark.parametrize(
    ("name", "make", "expected", "index", "row", "wanted"),
    [
        ("cub", layouts.cub, CUB, "images.txt", "99 001.Albatross/x.jpg", "image 99 in images.txt but not in image_c"),
        ("cub", layouts.cub, CUB, "classes.txt", "alone", "classes.txt:5 'alone' has 1 columns, not 2"),
        ("pets", layouts.pets, PETS, "annotations/trainval.txt", "pug_1 4 1 1", "has the class '4', not one of 1 to 3"),
        ("pets", layouts.pets, PETS, "annotations/trainval.txt", "pug_1 0 1 1", "has the class '0', not one of 1 to 3"),
        ("pets", layouts.pets, PETS, "annotations/trainval.txt", "pug_1 x 1 1", "has the class 'x', not one of 1 to 3"),
        (
            "aircraft", layouts.aircraft, AIRCRAFT, "data/images_variant_trainval.txt", "77 Concorde",
            "has the variant 'Concorde', which variants.txt has not",
        ),
    ],
)  # fmt: skip
def test_damaged_indices_are_refused(
    name: str, make: Callable[[Path], Path], expected: Expected, index: str, row: str, wanted: str, tmp_path: Path
) -> None:
    with (make(tmp_path) / index).open("a", encoding="utf-8") as file:
        file.write(f"{row}\n")
    with pytest.raises(DataError) as caught:
        load_dataset(name, tmp_path, expected=expected)
    assert wanted in str(caught.value)
    (tmp_path / index).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="can't be read"):
        load_dataset(name, tmp_path, expected=expected)
