import hashlib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from talon_ocd.errors import ConfigError, DataError
from talon_ocd.evaluation.splits import ClassSplit, class_names, class_split, first_classes, lists

FOLDER = Path(str(files("talon_ocd.evaluation.splits")))


@pytest.mark.parametrize(
    ("name", "known", "new"),
    [
        ("cub", 100, 100), ("cars", 98, 98), ("aircraft", 50, 50), ("herbarium19", 341, 342),
        ("imagenet100-ltc", 50, 50),
    ],
)  # fmt: skip
def test_known_and_new_are_all_classes(name: str, known: int, new: int) -> None:
    found = class_split(name)
    assert (len(found.known), len(found.new)) == (known, new)
    assert sorted(found.known + found.new) == list(range(known + new))


def test_the_beginning_and_end_of_lists_whose_order_matters() -> None:
    cub, cars = class_split("cub"), class_split("cars")
    assert cub.known[:3] + cub.known[-2:] == (150, 70, 34, 196, 136)
    assert (cub.new[0], cub.new[33], cub.new[34], cub.new[67], cub.new[68], cub.new[-1]) == (29, 125, 152, 185, 20, 138)
    assert cars.known[0] == 1 and cars.known[-1] == 189 and cars.new[6:8] == (190, 3) and cars.new[-1] == 132
    herbarium = class_split("herbarium19")
    assert herbarium.known[:2] == (113, 378) and list(herbarium.new) == sorted(herbarium.new)


@pytest.mark.parametrize(("name", "seed", "known"), [("imagenet100", 0, 50), ("imagenet100-80-20", 1028, 80)])
def test_imagenet_lists_are_what_their_seeds_draw(name: str, seed: int, known: int) -> None:
    drawn = sorted(np.random.RandomState(seed).choice(range(1000), size=100, replace=False).tolist())
    assert class_split(name) == ClassSplit(tuple(drawn[:known]), tuple(drawn[known:]))


def test_class_names() -> None:
    cars = class_names("cars")
    assert (
        len(set(cars)) == 196
        and cars[0] == "AM General Hummer SUV 2000"
        and cars[195] == "smart fortwo Convertible 2012"
    )
    assert sum(name != ordered for name, ordered in zip(cars, sorted(cars), strict=True)) == 143
    for name, count in (("cifar10", 10), ("cifar100", 100)):  # so that sorted folders of PNG have torchvision's numbers
        assert len(set(class_names(name))) == count and list(class_names(name)) == sorted(class_names(name))


def test_a_smaller_copy() -> None:
    assert class_split("cub").below(4) == ClassSplit((0,), (3, 2, 1))
    assert first_classes(19, 37).below(37) == first_classes(19, 37)


def test_checksums_cover_every_file_and_nothing_else() -> None:
    assert sorted(lists.published()) == sorted(path.stem for path in FOLDER.glob("*.txt"))
    for line in (FOLDER / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        digest, file = line.split("  ")
        assert hashlib.sha256((FOLDER / file).read_bytes().replace(b"\r\n", b"\n")).hexdigest() == digest


def test_a_changed_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in FOLDER.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(lists, "files", lambda _: tmp_path)
    windows = (tmp_path / "cub.txt").read_bytes().replace(b"\n", b"\r\n")
    (tmp_path / "cub.txt").write_bytes(windows)
    assert len(class_split("cub").known) == 100
    (tmp_path / "cub.txt").write_bytes(windows.replace(b"150 70", b"150 71"))
    with pytest.raises(DataError, match=r"cub\.txt has the checksum .*install talon-ocd again"):
        class_split("cub")
    (tmp_path / "cars.txt").unlink()
    with pytest.raises(DataError, match=r"cars\.txt can't be read .*install talon-ocd again"):
        class_split("cars")


def test_an_unknown_list() -> None:
    with pytest.raises(ConfigError, match=r"split 'cbu' is not known.*Did you mean 'cub'"):
        class_split("cbu")
