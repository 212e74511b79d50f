"""What a catalog shows: categories, their images, pages of them (layer: catalog)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, TypeVar

Kind = Literal["known", "discovered"]
State = Literal["active", "tentative", "hidden", "merged", "retired"]
Row = TypeVar("Row")

SUPPORT = 2
"""Images that a discovered category needs to be more than tentative, unless a person has named it.

One image alone may be a category of its own or an odd picture; nothing is dropped either way.
"""


@dataclass(frozen=True, slots=True)
class Category:
    """A category as people see it: what the stream answered, and over it what people said.

    Attributes:
        id: never changes and is never used again.
        name: what it is called now.
        named: whether a person gave the name.
        kind: a ``known`` class of the model, or ``discovered``.
        state: ``merged`` into another, ``retired`` (the stream gave it up), ``hidden``, ``tentative`` or ``active``.
        into: the category that it was merged into.
        aliases: the categories that were merged into this one; counts and times are those of all together.
        count: images that are at home here.
        verdicts: what the stream answered: images as ``known``, as ``discovered``, and as ``new``.
        first_seen: when the first image came, in seconds since 1970.
        last_seen: when the last one came.
        created: index of the image that began it; ``None`` for known classes.
        exemplars: indices of a few typical images.
    """

    id: int
    name: str
    named: bool
    kind: Kind
    state: State
    into: int | None
    aliases: tuple[int, ...]
    count: int
    verdicts: dict[str, int]
    first_seen: float | None
    last_seen: float | None
    created: int | None
    exemplars: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Member:
    """An image of a category, and why it was answered so.

    Attributes:
        index: of the image in the stream.
        source: what the image is called in its source.
        at: when it was answered, in seconds since 1970.
        category: what the stream answered; people may have moved it since.
        verdict: ``known``, ``discovered`` or ``new``.
        similarity: how well the best category fitted.
        runner_up: the category that came next; -1 if there was none.
        runner_up_name: what that one is called now.
        runner_up_similarity: how well that one fitted.
        margin: by how much the similarity was above the threshold; negative for images that founded a category.
    """

    index: int
    source: str
    at: float
    category: int
    verdict: str
    similarity: float
    runner_up: int
    runner_up_name: str
    runner_up_similarity: float
    margin: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Two categories that look like one.

    Attributes:
        first: the one that a merge would keep.
        second: the other one.
        score: how much they look like one.
        unit: of the score: ``cosine`` between their centres, or ``log-odds`` in nats where evidence decides.
    """

    first: Category
    second: Category
    score: float
    unit: str


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """Some rows of many.

    Attributes:
        items: the rows.
        next: what to give for ``after`` to get the next ones; ``None`` at the end.
        total: rows of all pages together.
    """

    items: Sequence[Row]
    next: str | None
    total: int
