from pathlib import Path

import pytest

from talon_ocd.errors import DataError
from talon_ocd.evaluation.datasets import OFFICIAL, Expected, load_dataset
from talon_ocd.evaluation.splits import class_split
from tests.evaluation import layouts


def test_herbarium_sorts_folders_as_strings(tmp_path: Path) -> None:
    layouts.tree(tmp_path / "small-train", "9", "10", "1", "2", "30")
    (tmp_path / "small-train" / ".hidden").mkdir()
    data = load_dataset("herbarium19", tmp_path, expected=Expected(5, 3))
    assert data.classes == ("10", "1", "30", "2", "9") and data.known == ("10", "1", "30")  # numbers 1, 0, 3, then 2, 4
    assert [item.label for item in data.items[::2]] == ["1", "10", "2", "30", "9"]
    assert [Path(item.source).name for item in data.items[:2]] == ["10.jpg", "2.jpg"]
    with pytest.raises(DataError, match="has 5 classes, Herbarium 19 has 683"):
        load_dataset("herbarium19", tmp_path)
    (tmp_path / "small-train" / "empty").mkdir()
    with pytest.raises(DataError, match="no image of 1 of the 6 classes; the first is 'empty'"):
        load_dataset("herbarium19", tmp_path, expected=Expected(6, 3))


def test_inat_takes_one_super_category(tmp_path: Path) -> None:
    layouts.tree(tmp_path / "train_val_images" / "Fungi", "Russula", "Amanita muscaria", "Boletus")
    layouts.tree(tmp_path / "train_val_images" / "Animalia", "Aurelia")
    layouts.lines(tmp_path / "train2017.json", "{}")  # is not asked: the pool is training and validation together
    for root in (tmp_path, tmp_path / "train_val_images"):
        data = load_dataset("inat-fungi", root, expected=Expected(3, 2, 6))
        assert data.classes == ("Amanita muscaria", "Boletus", "Russula") and len(data.known) == 2 and data.notes == ()
        assert len(data.items) == 6
    with pytest.raises(DataError, match="Mollusca is missing"):
        load_dataset("inat-mollusca", tmp_path)
    with pytest.raises(DataError, match="has 1 classes, iNaturalist 2017, Animalia has 77"):
        load_dataset("inat-animalia", tmp_path)


def test_inat_sizes_are_those_that_were_published() -> None:
    sizes = {"fungi": (1.8, 5.8), "arachnida": (1.7, 4.3), "animalia": (1.5, 5.1), "mollusca": (2.4, 7.0)}
    for name, (labelled, stream) in sizes.items():
        pool = OFFICIAL[f"inat-{name}"].expected.pool
        assert pool is not None and abs(pool / 1000 - labelled - stream) < 0.1


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand class folders, with an image in those that one of the two lists needs."""
    train = tmp_path_factory.mktemp("imagenet") / "train"
    names = [f"n{10_000_000 + 7 * at}" for at in range(1000)]
    for name in names:
        (train / name).mkdir(parents=True)
    (train / "extra").mkdir()
    for split in ("imagenet100", "imagenet100-80-20"):
        listed = class_split(split)
        layouts.tree(train, *(names[at] for at in (*listed.known, *listed.new)), images=("a.JPEG",))
    return train.parent


@pytest.mark.parametrize(("name", "known"), [("imagenet100", 50), ("imagenet100-80-20", 80)])
def test_imagenet_chooses_its_hundred_by_the_list(name: str, known: int, imagenet: Path) -> None:
    listed = class_split(name)
    expected = tuple(f"n{10_000_000 + 7 * at}" for at in (*listed.known, *listed.new))
    for root in (imagenet, imagenet / "train"):
        data = load_dataset(name, root)
        assert data.classes == expected and data.known == expected[:known] and data.notes == ()
        assert [item.label for item in data.items] == list(expected)


def test_a_hundred_folders_are_all_taken_with_a_note(tmp_path: Path) -> None:
    names = [f"n{at:08d}" for at in range(100)]
    layouts.tree(tmp_path / "train", *names, images=("a.JPEG",))
    data = load_dataset("imagenet100", tmp_path)
    assert data.known == tuple(names[:50]) and data.classes == tuple(names)
    assert len(data.notes) == 1 and "the first 50 in sorted order are known" in data.notes[0]
    assert load_dataset("imagenet100-80-20", tmp_path).known == tuple(names[:80])
    layouts.tree(tmp_path / "train", "n99999999")
    with pytest.raises(DataError, match="has 101 class folders; it takes all 1000, or exactly 100"):
        load_dataset("imagenet100", tmp_path)
    with pytest.raises(DataError, match=r"train is missing"):
        load_dataset("imagenet100", layouts.tree(tmp_path / "zoo", "cat", "dog"))
