import pickle
from pathlib import Path

import numpy as np
import pytest

from talon_ocd.errors import DataError, ImageError
from talon_ocd.evaluation.datasets import Expected, load_dataset
from talon_ocd.evaluation.splits import class_names
from tests.evaluation import layouts

TEN, TEN_6 = Expected(10, 5, 50), Expected(10, 6, 50)
NAMES = class_names("cifar10")


def test_the_binary_version(tmp_path: Path) -> None:
    folder = layouts.cifar10(tmp_path / "cifar-10-batches-bin")
    data = load_dataset("cifar10", tmp_path, expected=TEN)
    assert [item.label for item in data.items] == [
        NAMES[(at * 3 + batch) % 10] for batch in range(5) for at in range(10)
    ]
    assert data.classes == NAMES and data.known == NAMES[:5] and data.notes == ()
    assert len({item.key for item in data.items}) == len({item.source for item in data.items}) == 50
    picture = np.asarray(data.items[13].load())
    assert picture.shape == (32, 32, 3) and (picture == [30, 1, 7]).all()
    assert data.items[13].source == str(folder / "data_batch_2.bin") + "#00003"
    assert load_dataset("cifar10", folder, expected=TEN).classes == NAMES
    six = load_dataset("cifar10-6-4", folder, expected=TEN_6)
    assert six.known == NAMES[:6] and six.classes == NAMES


def test_the_planes_of_a_record_are_rows_of_pixels(tmp_path: Path) -> None:
    folder = layouts.cifar10(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32), dtype=np.uint8)
    batch = (folder / "data_batch_1.bin").read_bytes()
    (folder / "data_batch_1.bin").write_bytes(b"\x00" + pixels.tobytes() + batch[3073:])
    item = load_dataset("cifar10", folder, expected=TEN).items[0]
    assert (np.asarray(item.load()) == pixels.transpose(1, 2, 0)).all()


def test_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    layouts.cifar100(tmp_path / "cifar-100-binary")
    data = load_dataset("cifar100", tmp_path)
    names = class_names("cifar100")
    assert [item.label for item in data.items] == list(reversed(names))
    assert len(data.known) == 80 and data.classes == names and "49,900 of the 50,000 images" in data.notes[0]
    assert (np.asarray(data.items[99].load())[0, 0] == [99, 0, 255]).all()


def test_folders_of_png(tmp_path: Path) -> None:
    layouts.tree(tmp_path / "train", *NAMES, images=("b.png", "a.png"))
    data = load_dataset("cifar10", tmp_path, expected=Expected(10, 5, 20))
    assert [item.label for item in data.items] == [name for name in NAMES for _ in range(2)]
    assert data.classes == NAMES and [Path(item.source).name for item in data.items[:2]] == ["a.png", "b.png"]
    assert len(data.notes) == 1 and "another half is labelled than with the binary version" in data.notes[0]
    assert load_dataset("cifar10", tmp_path / "train", expected=Expected(10, 5, 20)).known == data.known
    (tmp_path / "train" / "truck").rename(tmp_path / "train" / "lorry")
    with pytest.raises(DataError, match="does not have the 10 classes of CIFAR-10: 'lorry' is not one"):
        load_dataset("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("name", "folder", "file"),
    [("cifar10", "cifar-10-batches-py", "data_batch_1"), ("cifar100", "cifar-100-python", "train")],
)
def test_pickles_are_refused_without_being_opened(name: str, folder: str, file: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / file).write_bytes(pickle.dumps({b"labels": [0]}))
    for root in (tmp_path, tmp_path / folder):
        with pytest.raises(DataError, match=r"pickles, which can run any code .*download the binary version, cifar-10"):
            load_dataset(name, root)


def test_damaged_files(tmp_path: Path) -> None:
    folder = layouts.cifar10(tmp_path)
    good = (folder / "data_batch_3.bin").read_bytes()
    item = load_dataset("cifar10", folder, expected=TEN).items[29]
    for bad, wanted in (
        (good[:-1], "30,729 bytes, which is not a number of records"),
        (b"", "has 0 bytes"),
        (b"\x0a" + good[1:], "has the class 10, the last is 9"),
    ):
        (folder / "data_batch_3.bin").write_bytes(bad)
        with pytest.raises(DataError, match=wanted):
            load_dataset("cifar10", folder)
    (folder / "data_batch_3.bin").write_bytes(good[:-1])
    with pytest.raises(ImageError, match="is cut off"):
        item.load()
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(ImageError, match="can't be read"):
        item.load()
    with pytest.raises(DataError, match=r"misses data_batch_3\.bin"):
        load_dataset("cifar10", folder)
    layouts.lines(layouts.cifar10(tmp_path) / "batches.meta.txt", "cat", "dog")
    with pytest.raises(DataError, match=r"other classes in batches\.meta\.txt"):
        load_dataset("cifar10", folder)


def test_nothing_there(tmp_path: Path) -> None:
    for name, file in (("cifar10", "data_batch_1.bin"), ("cifar100", "train.bin")):
        with pytest.raises(DataError) as caught:
            load_dataset(name, tmp_path)
        assert f"{file} is missing" in str(caught.value) and "cs.toronto.edu" in str(caught.value)
