from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_ocd.errors import ConfigError, DataError
from talon_ocd.evaluation.splits import known_classes, labelled_half, split, stream_order
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
    assert sorted([*parts.labelled.tolist(), *parts.rest.tolist()]) == list(range(30))
    assert parts.rest.tolist() == sorted(parts.stream.tolist()) and parts.labelled.tolist() == sorted(parts.labelled)
    again, other = split(data, ("a", "c"), 0), split(data, ("a", "c"), 1)
    assert again.stream.tolist() == parts.stream.tolist() != sorted(parts.stream.tolist())
    assert other.labelled.tolist() != parts.labelled.tolist() and other.stream.tolist() != parts.stream.tolist()


@given(st.lists(st.integers(2, 12), min_size=2, max_size=5), st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_fewer_labels_leave_the_stream_as_it_is(sizes: list[int], seed: int, most: int) -> None:
    data, known = items(*sizes), ("a", "b")
    everything = split(data, known, seed)
    few, more = split(data, known, seed, most=most), split(data, known, seed, most=most + 1)
    assert few.rest.tolist() == everything.rest.tolist() and few.stream.tolist() == everything.stream.tolist()
    assert set(few.labelled) <= set(more.labelled) <= set(everything.labelled)
    halves = [[data[at].label for at in part.labelled].count(name) for name in known for part in (everything, few)]
    assert all(kept == min(half, most) for half, kept in zip(halves[::2], halves[1::2], strict=True))


def test_the_fewer_labels_are_a_random_part_of_the_half() -> None:
    data, places = items(24, 24), set[int]()
    for seed in range(20):
        half = split(data, ("a",), seed).labelled.tolist()
        kept = [half.index(at) for at in split(data, ("a",), seed, most=3).labelled.tolist()]
        assert len(kept) == 3
        places |= set(kept)
    assert places == set(range(12))  # not the first ones: each image of the half is among them with some seed


def test_no_label_at_all() -> None:
    with pytest.raises(ConfigError, match="--labelled 0: label 1 image of each known class or more"):
        split(items(4, 4), ("a",), 0, most=0)


def test_cars_sizes_follow_from_the_number_of_known_images() -> None:
    """The counts per class are not published, only their sums: 4,001 known and 4,143 new images in training."""
    known = items(*[41] * 81, *[40] * 17)
    new = [ImageItem(f"new {at}", "other", f"{at}", b"") for at in range(4143)]
    assert len(known) == 4001 and len({item.label for item in known}) == 98
    for rule in ("gcd", "talon"):
        parts = split([*new, *known], tuple({str(item.label) for item in known}), 0, rule)
        assert (len(parts.labelled), len(parts.rest), int((parts.rest >= 4143).sum())) == (2000, 6144, 2001)


def test_order_number_0_is_the_permutation_of_the_first_release() -> None:
    rest = np.arange(5, 60)
    for seed in (0, 7, 1028, 2**32 - 1):
        expected = np.random.RandomState(seed).permutation(rest).tolist()
        assert stream_order(rest, seed=seed).tolist() == expected
        assert split(items(9, 9), ("a",), seed).stream.tolist() == stream_order(
            split(items(9, 9), ("a",), seed).rest, "shuffled", seed).tolist()  # fmt: skip


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 5), st.integers(0, 5))
def test_every_seed_and_number_has_an_order_of_its_own(seed: int, other: int, number: int, further: int) -> None:
    rest = np.arange(50)
    order = stream_order(rest, "shuffled", seed, number)
    assert sorted(order.tolist()) == rest.tolist()
    same = (seed, number) == (other, further)
    assert (order.tolist() == stream_order(rest, "shuffled", other, further).tolist()) == same


def test_the_order_of_the_data_set() -> None:
    rest = np.array([4, 1, 9])
    assert stream_order(rest, "dataset", 3).tolist() == [1, 4, 9]
    with pytest.raises(ConfigError, match="Did you mean 'shuffled'"):
        stream_order(rest, "shufled")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="stream order number -1"):
        stream_order(rest, number=-1)


def test_the_first_names_are_known() -> None:
    names = ["wolf", "Ant", "cat", "bee", "10", "9"]
    assert known_classes(names, 3) == ("10", "9", "Ant")
    assert known_classes(names, "2") == ("10", "9") and known_classes(names, 2, keep_order=True) == ("wolf", "Ant")
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
