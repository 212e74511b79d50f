"""Batches on paper are those that one process makes, whatever is broken."""

from __future__ import annotations

import pytest

from talon_ocd.images import ImageItem, Skipped, batches
from talon_ocd.images.transforms import Preprocessing
from talon_ocd.online.stream import MOST_AHEAD
from talon_ocd.scale.batching import Batch, Batching, Cut
from tests.images.pictures import encoded, photo

GOOD = encoded(photo(8, 8))


def items(number: int, broken: set[int]) -> list[ImageItem]:
    content = [b"no picture" if at in broken else GOOD for at in range(number)]
    return [ImageItem(f"{at}.png", None, f"key-{at}", data) for at, data in enumerate(content)]


def composed(batching: Batching, source: list[ImageItem], broken: set[int], chunk: int) -> list[Batch]:
    full: list[Batch] = []
    for start in range(0, len(source), chunk):
        part = source[start : start + chunk]
        reasons = ["is broken" if start + at in broken else None for at in range(len(part))]
        full += batching.add(start // chunk, part, reasons)
    return [*full, batching.rest()]


@pytest.mark.parametrize("chunk", [1, 4, 5, 64])
@pytest.mark.parametrize("broken", [set(), {0}, {3, 4, 5, 20}, set(range(4, 19)), {36}, set(range(37))])
def test_boundaries_are_those_of_one_process(chunk: int, broken: set[int]) -> None:
    source, answered = items(37, broken), [0]

    def room() -> int:
        return 5 - (2 + answered[0]) % 5

    wanted = []
    for batch in batches(source, Preprocessing(resize=8, crop=8), room, lambda skipped: None):
        wanted.append([item.source for item in batch.items])
        answered[0] += len(batch)
    found = composed(Batching(answered=100, room=3, every=5), source, broken, chunk)
    assert [[item.source for item in batch.items] for batch in found if batch.items] == wanted
    assert [batch.first for batch in found[:1]] == [100]
    assert [skipped.source for batch in found for skipped in batch.skipped] == [f"{at}.png" for at in sorted(broken)]


def test_cuts_say_where_the_good_images_of_a_batch_are() -> None:
    source = items(9, {1, 5})
    first, rest = composed(Batching(0, 4, 4), source, {1, 5}, 3)
    assert first.cuts == [Cut(0, 0, 2), Cut(1, 0, 2)] and first.skipped == [Skipped("1.png", "is broken")]
    assert rest.first == 4 and rest.cuts == [Cut(2, 0, 3)] and rest.skipped == [Skipped("5.png", "is broken")]


def test_a_long_interval_is_answered_in_parts() -> None:
    sizes = [len(batch.items) for batch in composed(Batching(0, 300, 300), items(600, set()), set(), 256)]
    assert sizes == [MOST_AHEAD, 300 - MOST_AHEAD, MOST_AHEAD, 300 - MOST_AHEAD, 0]


def test_a_chunk_is_needed_until_its_last_image_is_in_a_batch() -> None:
    batching = Batching(0, 4, 4)
    batching.add(0, items(3, set()), [None] * 3)
    assert batching.needs(0)
    batching.add(1, items(3, set()), [None] * 3)
    assert not batching.needs(0) and batching.needs(1)
