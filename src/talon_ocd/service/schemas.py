"""What goes in and out as JSON (layer: service); OpenAPI is made from it."""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from talon_ocd.service import examples

MOST = 2**53 - 1
"""Largest whole number that every JSON reader keeps."""

Number = Annotated[float | None, BeforeValidator(lambda value: value if value is None or isfinite(value) else None)]
"""A number, or null where there is none (the similarity of a runner-up that does not exist)."""


def _shown(example: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [example]})


class Decision(BaseModel):
    """The answer for one image, with what explains it."""

    model_config = _shown(examples.DECISION)
    index: int | None = Field(description="Number of the image in the stream; null if nothing was learned from it.")
    source: str
    category: int = Field(description="Id as answered; it never changes. For a new category, the id that it has got.")
    resolved: int = Field(description="What that category has become by merges of people.")
    name: str
    verdict: Literal["known", "discovered", "new"]
    similarity: Number
    threshold: float
    unit: str
    margin: Number = Field(description="Similarity minus threshold; below 0 for a new category.")
    runner_up: int = Field(description="The category that comes next; -1 if there is none.")
    runner_up_name: str
    runner_up_similarity: Number
    learned: bool
    exemplars: list[int] = Field(
        description="Images of the category, by their index: typical ones; the nearest ones where somebody only looks "
        "(`learn=false`), and in `/v1/images/{index}/decision`."
    )
    runner_up_exemplars: list[int]
    image: str | None
    thumbnail: str | None
    steps: int = Field(description="Encoder steps that the stream had taken.")


class Problem(BaseModel):
    """A refusal (RFC 9457)."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [examples.PROBLEMS["invalid-image"]]})
    type: str
    title: str
    status: int
    detail: str


class Refused(BaseModel):
    """An image of a batch that can't be used."""

    source: str
    problem: Problem


class Batch(BaseModel):
    """The answers of a batch, in the order of its images."""

    model_config = _shown(examples.BATCH)
    decisions: list[Decision | Refused]


class Category(BaseModel):
    """A category as people see it."""

    model_config = _shown(examples.CATEGORY)
    id: int
    name: str
    named: bool = Field(description="Whether a person gave the name.")
    kind: Literal["known", "discovered"]
    state: Literal["active", "tentative", "hidden", "merged", "retired"]
    into: int | None = Field(description="The category that it was merged into.")
    aliases: list[int] = Field(description="Categories that were merged into this one.")
    count: int
    verdicts: dict[str, int]
    first_seen: float | None
    last_seen: float | None
    created: int | None = Field(description="Index of the image that began it.")
    exemplars: list[int]


class CategoryPage(BaseModel):
    """Some categories of many."""

    model_config = _shown({"items": [examples.CATEGORY], "next": "WyJyZWNlbnQiLDQsMl0", "total": 12})
    items: list[Category]
    next: str | None = Field(description="The cursor of the next page; null at the end.")
    total: int


class Member(BaseModel):
    """An image that was answered, and why so."""

    model_config = _shown(examples.MEMBER)
    index: int
    source: str
    at: float
    category: int = Field(description="What the stream answered.")
    home: int = Field(description="Where it belongs by now, after what people said; -1: nowhere.")
    name: str = Field(description="Name of its home; empty if it has none.")
    verdict: Literal["known", "discovered", "new"]
    similarity: Number
    margin: Number
    runner_up: int
    runner_up_name: str
    runner_up_similarity: Number
    image: str | None
    thumbnail: str | None


class MemberPage(BaseModel):
    """Some images of many."""

    model_config = _shown({"items": [examples.MEMBER], "next": None, "total": 1})
    items: list[Member]
    next: str | None
    total: int


class RecentPage(BaseModel):
    """The newest images."""

    model_config = _shown({"items": [examples.MEMBER], "next": 41})
    items: list[Member]
    next: int | None = Field(description="Give it as `before` to go on.")


class Event(BaseModel):
    """Something that happened to categories."""

    model_config = _shown(examples.EVENT)
    seq: int
    at: float
    answered: int
    kind: str
    category: int | None
    data: dict[str, Any]
    actor: str
    undoes: int | None
    summary: str = Field(description="For people.")
    undone: bool
    images: int = Field(description="Images that it moved.")


class Edit(BaseModel):
    """What a change did."""

    model_config = _shown({"event": examples.EVENT, "category": examples.CATEGORY})
    event: Event | None = Field(description="null if nothing had to be changed.")
    category: Category


class ImageEdit(BaseModel):
    """What a change of images did."""

    model_config = _shown({"event": examples.EVENT})
    event: Event


class Undone(BaseModel):
    """What an undo did."""

    model_config = _shown({"event": examples.UNDO, "undone": examples.EVENT})
    event: Event
    undone: Event


class History(BaseModel):
    """What happened, newest first."""

    model_config = _shown({"items": [examples.EVENT], "next": None})
    items: list[Event]
    next: int | None = Field(description="Give it as `before` to go on.")


class Suggestion(BaseModel):
    """Two categories that look like one."""

    first: Category
    second: Category
    score: float
    unit: str


class Suggestions(BaseModel):
    """Pairs to ask people about, the surest first."""

    model_config = _shown({"items": [{"first": examples.CATEGORY, "second": examples.CATEGORY, "score": 0.93,
                                      "unit": "cosine"}]})  # fmt: skip
    items: list[Suggestion]


class WhatIfPoint(BaseModel):
    """How many categories there would be at a value."""

    value: float
    categories: int
    discovered: int


class WhatIf(BaseModel):
    """Categories at other thresholds, computed from stored features."""

    model_config = _shown(examples.WHAT_IF)
    unit: str = Field(description="nats (more: finer) or cosine (the threshold).")
    current: float
    images: int
    points: list[WhatIfPoint]


class MapPoint(BaseModel):
    """An image on the map."""

    index: int
    x: float
    y: float
    category: int


class Map(BaseModel):
    """The newest images in two dimensions."""

    model_config = _shown({"points": [{"index": 3, "x": 0.4, "y": -0.1, "category": 2}], "axes": examples.AXES})
    points: list[MapPoint]
    axes: str


class Status(BaseModel):
    """How the stream is."""

    model_config = _shown(examples.STATUS)
    answered: int
    categories: int
    discovered: int
    totals: dict[str, int] = Field(description="Categories by state.")
    verdicts: dict[str, int]
    model: str
    stream: str
    rule: str
    unit: str
    threshold: float
    adapt: str
    encoder_steps: int
    guard: dict[str, int] = Field(description="Encoder steps by what the guard said; empty without a guard.")
    rate: float = Field(description="Answers a second over the last minute.")
    waiting: int
    uptime: float
    version: str


class Health(BaseModel):
    """Whether it lives."""

    model_config = _shown({"status": "ok"})
    status: str
