"""Which images of a source were not answered yet (layer: durable)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from talon_ocd.durable.journal import Journal
from talon_ocd.images import ImageItem


def each_once(items: Sequence[ImageItem], seen: Collection[str]) -> list[ImageItem]:
    """Return the images whose keys are not among ``seen``, the first of each key."""
    fresh: dict[str, ImageItem] = {}
    for item in items:
        if item.key not in seen:
            fresh.setdefault(item.key, item)
    return list(fresh.values())


def one_by_one(items: Iterable[ImageItem], journal: Journal, answers: Callable[[], int]) -> Iterator[ImageItem]:
    """Yield the images of a source that nobody knows the end of, each once; ``answers`` says how many there are."""
    waiting: set[str] = set()
    answered = answers()
    for item in items:
        if answered != answers():  # what waited is in the journal by now
            waiting, answered = set(), answers()
        if item.key not in waiting and not journal.seen([item.key]):
            waiting.add(item.key)
            yield item
