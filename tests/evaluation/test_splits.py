from pathlib import Path

import numpy as np
import pytest

from talon_ocd.errors import ConfigError, DataError
from talon_ocd.evaluation.splits import known_classes, labelled_half, split
from talon_ocd.images import ImageItem


def items(*sizes: int) -> list[ImageItem]:
    labels = [chr(ord("a") + number) for number, size in enumerate(sizes) for _ in range(size)]
    return [ImageItem(f"{at}", label, f"{at}", b"") for at, label in enumerate(labels)]


def test_the_rules_of_the_released_codes_to_the_index() -> None:
    assert labelled_half(10, 0).tolist() == [1, 2, 4, 8, 9]
    for number, seed in ((7, 0), (57, 0), (1498, 0), (20, 3)):
        np.random.seed(seed)
        drawn = np.random.choice(range(number), size=int(0.5 * number), replace=False)
        assert labelled_half(number, seed).tolist() == sorted(drawn.tolist())
        np.random.seed(seed)
        order = list(range(number))
        np.random.shuffle(order)
        assert labelled_half(number, seed, "talon").tolist() == sorted(order[: int(0.5 * number)])


def test_a_split_labels_half_of_the_known_and_streams_the_rest() -> None:
    data = items(10, 10, 7, 3)
    parts = split(data, ("a", "c"), seed=0)
    candidates = [at for at, item in enumerate(data) if item.label in ("a", "c")]
    assert parts.labelled.tolist() == [candidates[at] for at in labelled_half(17, 0)]
    assert len(parts.labelled) == 8 and {data[at].label for at in parts.labelled} <= {"a", "c"}
    assert sorted([*parts.labelled.tolist(), *parts.stream.tolist()]) == list(range(30))
    again, other = split(data, ("a", "c"), 0), split(data, ("a", "c"), 1)
    assert again.stream.tolist() == parts.stream.tolist() != sorted(parts.stream.tolist())
    assert other.labelled.tolist() != parts.labelled.tolist() and other.stream.tolist() != parts.stream.tolist()


def test_the_first_names_are_known() -> None:
    names = ["wolf", "Ant", "cat", "bee", "10", "9"]
    assert known_classes(names, 3) == ("10", "9", "Ant")
    assert known_classes(names, "2") == ("10", "9")
    assert known_classes(names, None) == ("10", "9", "Ant") and known_classes(["a", "b", "c"], None) == ("a", "b")


def test_a_file_lists_the_known(tmp_path: Path) -> None:
    file = tmp_path / "known.txt"
    file.write_text("cat\n\n  bee \ncat\n", encoding="utf-8")
    assert known_classes(["ant", "bee", "cat"], file) == ("cat", "bee")
    file.write_text("cta\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"known\.txt: 'cta' is not a class.*Did you mean 'cat'"):
        known_classes(["ant", "bee", "cat"], str(file))
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="lists no class"):
        known_classes(["ant"], file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="one class a line"):
        known_classes(["ant"], file)


@pytest.mark.parametrize("known", [0, -1, 4, "4", "many", "1.5"])
def test_a_bad_number_of_known_classes(known: int | str) -> None:
    with pytest.raises(ConfigError, match="--known"):
        known_classes(["a", "b", "c"], known)


def test_too_few_images_and_unknown_rules() -> None:
    with pytest.raises(DataError, match="1 images of known classes leave nothing to label"):
        split(items(1, 5), ("a",), 0)
    for seed in (-1, 2**32):
        with pytest.raises(ConfigError, match="seed must be between 0"):
            labelled_half(4, seed)
    with pytest.raises(ConfigError, match="use gcd or talon"):
        labelled_half(4, 0, "tallon")  # type: ignore[arg-type]
