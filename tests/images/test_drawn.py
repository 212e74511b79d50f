from __future__ import annotations

import numpy as np
import pytest

from talon_ocd.errors import DataError
from talon_ocd.images.digits import digits
from talon_ocd.images.glyphs import glyphs


def test_digits() -> None:
    items = digits()
    assert len(items) == 1797
    assert {item.label for item in items} == set("0123456789")
    assert items[5].source == "digits/0005"
    picture = np.asarray(items[0].load())
    assert picture.shape == (8, 8, 3) and picture.max() == round(15 * 255 / 16)
    assert len({item.key for item in items}) == 1797


def test_glyphs_are_labelled_class_by_class() -> None:
    items = glyphs(12, 3)
    assert [item.label for item in items[::3]] == [f"U+{code:04X}" for code in (*range(48, 58), 65, 66)]
    assert items[4].source == "glyphs/U+0031/0001"
    assert len({item.key for item in items}) == 36
    assert items[0].load().size == (48, 48)
    assert glyphs(1, 1, size=20)[0].load().size == (20, 20)


def test_a_glyph_is_a_pure_function_of_class_index_and_seed() -> None:
    few, many = glyphs(3, 2, seed=5), glyphs(4, 6, seed=5)
    assert few[3].source == many[7].source
    assert few[3].load().tobytes() == few[3].load().tobytes() == many[7].load().tobytes()
    assert few[3].load().tobytes() != glyphs(3, 2, seed=6)[3].load().tobytes()
    assert few[3].load().tobytes() != few[2].load().tobytes()


def test_thousands_of_classes_without_blanks() -> None:
    items = glyphs(2500, 1)
    assert len({item.label for item in items}) == 2500
    for item in items[::50]:
        assert np.asarray(item.load()).std() > 10
    assert not {"U+0391", "U+0410", "U+006F", "U+00A0"} & {item.label for item in items}  # Alpha, A, o, blank


def test_refuses_too_many_classes() -> None:
    with pytest.raises(DataError, match=r"at most [2-9]\d\d\d\."):
        glyphs(1_000_000, 1)
    with pytest.raises(DataError, match="classes=0"):
        glyphs(0, 1)


def test_classes_can_be_told_apart() -> None:
    items = glyphs(20, 24)
    pictures = np.stack([np.asarray(item.load().convert("L").resize((24, 24)), dtype=float).ravel() for item in items])
    pictures -= pictures.mean(1, keepdims=True)
    pictures /= np.linalg.norm(pictures, axis=1, keepdims=True)
    nearness = np.abs(pictures @ pictures.T)  # dark on bright or bright on dark
    np.fill_diagonal(nearness, 0)
    labels = np.array([item.label for item in items])
    assert (labels[nearness.argmax(1)] == labels).mean() > 0.5
