from __future__ import annotations

from talon_ocd import images


def test_the_public_names_are_a_sorted_list() -> None:
    constants = [name for name in images.__all__ if name.isupper()]
    classes = [name for name in images.__all__ if name[0].isupper() and not name.isupper()]
    functions = [name for name in images.__all__ if name.islower()]
    assert images.__all__ == sorted(constants) + sorted(classes) + sorted(functions)
    assert all(hasattr(images, name) for name in images.__all__)
