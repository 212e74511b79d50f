"""Scikit-learn's handwritten digits as images, for demonstrations without a download (layer: images)."""

from __future__ import annotations

import numpy as np

from talon_ocd.images.items import ImageItem, memory_item


def digits() -> list[ImageItem]:
    """Return 1,797 grey pictures of 8 x 8 pixels, labelled ``"0"`` to ``"9"``, in the order of the data set.

    >>> digits()[7]  # doctest: +ELLIPSIS
    ImageItem(source='digits/0007', label='7', key='sha256:...')
    """
    from sklearn.datasets import load_digits  # here: it would double the start-up of every command

    data = load_digits()
    pictures = np.rint(data.images * (255 / 16)).astype(np.uint8)
    return [
        memory_item(picture, f"digits/{at:04d}", str(label))
        for at, (picture, label) in enumerate(zip(pictures, data.target, strict=True))
    ]
