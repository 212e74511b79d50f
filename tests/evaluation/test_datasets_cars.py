from pathlib import Path

import pytest

from talon_ocd.errors import DataError
from talon_ocd.evaluation.datasets import Expected, load_dataset
from talon_ocd.evaluation.splits import class_names, class_split
from tests.evaluation import layouts

FOUR = Expected(4, 3, 5)
NAMES = class_names("cars")


def test_the_devkit_in_the_order_of_its_annotations(tmp_path: Path) -> None:
    layouts.cars_devkit(tmp_path / "stanford_cars")
    data = load_dataset("cars", tmp_path, expected=FOUR)
    assert [str(item.label) for item in data.items] == [NAMES[at] for at in (2, 0, 3, 1, 0)]
    assert [Path(item.source).name for item in data.items] == [f"{at:05d}.jpg" for at in range(1, 6)]
    assert data.known == (NAMES[1], NAMES[0], NAMES[2]) and data.classes == (*data.known, NAMES[3])
    assert data.notes == () and load_dataset("cars", tmp_path / "stanford_cars", expected=FOUR).classes == data.classes
    (tmp_path / "stanford_cars" / "cars_train" / "00002.jpg").unlink()
    assert [Path(skipped.source).name for skipped in load_dataset("cars", tmp_path, expected=FOUR).skipped] == [
        "00002.jpg"
    ]
    layouts.cars_devkit(tmp_path / "one", [1])
    assert len(load_dataset("cars", tmp_path / "one", expected=Expected(1, 1)).items) == 1


def test_all_196_classes_in_a_folder_tree(tmp_path: Path) -> None:
    layouts.tree(tmp_path / "train", *(name.replace("/", "_") for name in NAMES), images=("1.jpg",))
    data = load_dataset("cars", tmp_path)
    listed = class_split("cars")
    assert data.known == tuple(NAMES[at] for at in listed.known) and len(data.classes) == 196
    assert [item.label for item in data.items] == list(NAMES)
    assert "another half is labelled" in data.notes[0] and "7,948 of the 8,144 images" in data.notes[1]
    (tmp_path / "train" / "Ram C_V Cargo Van Minivan 2012").rename(
        tmp_path / "train" / "Ram C-V Cargo Van Minivan 2012"
    )
    assert load_dataset("cars", tmp_path).classes == data.classes


def test_folders_without_train(tmp_path: Path) -> None:
    data = load_dataset("cars", layouts.tree(tmp_path, *NAMES[:4]), expected=FOUR)
    assert len(data.items) == 8 and "official test images too" in data.notes[1]
    assert "8 images are here, 3 more than" in data.notes[2]


def test_folders_that_are_not_the_classes(tmp_path: Path) -> None:
    layouts.tree(tmp_path / "a" / "train", *NAMES[:3])
    with pytest.raises(DataError, match="has 3 of the 4 class folders; the first that is missing is 'Acura TL Type-S"):
        load_dataset("cars", tmp_path / "a", expected=FOUR)
    layouts.tree(tmp_path / "a" / "train", "Acura TL Type-Z 2008")
    with pytest.raises(DataError, match=r"'Acura TL Type-Z 2008', which is no class\. Did you mean 'Acura TL Type-S"):
        load_dataset("cars", tmp_path / "a", expected=FOUR)
    layouts.tree(tmp_path / "b", *NAMES[:4], "Acura TL_Type_S 2008")
    with pytest.raises(DataError, match="two folders for one class"):
        load_dataset("cars", tmp_path / "b", expected=FOUR)
    with pytest.raises(DataError, match=r"cars_train_annos\.mat and cars_train are missing"):
        load_dataset("cars", layouts.tree(tmp_path / "c", "cat", "dog"), expected=FOUR)


def test_a_damaged_devkit(tmp_path: Path) -> None:
    layouts.cars_devkit(tmp_path, [5, 1])
    with pytest.raises(DataError, match="has the class '5', not one of 1 to 4"):
        load_dataset("cars", tmp_path, expected=FOUR)
    for content in (b"", b"no matlab" * 30):
        (tmp_path / "devkit" / "cars_train_annos.mat").write_bytes(content)
        with pytest.raises(DataError, match=r"is not the annotation file .*unpack car_devkit\.tgz again"):
            load_dataset("cars", tmp_path, expected=FOUR)
