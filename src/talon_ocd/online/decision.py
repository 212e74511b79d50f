"""What a stream answers (layer: online)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["known", "discovered", "new"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer for one image.

    Attributes:
        index: how many answers the stream had given before.
        source: what the image is called in its source.
        category: id of the category; 0 .. C-1 are the known classes, discovered ones follow in order of creation.
        name: name of the category.
        verdict: a ``known`` class, a category ``discovered`` earlier, or one that this image founds (``new``).
        similarity: cosine to the nearest category that existed before this image.
        threshold: what the similarity had to reach.
        runner_up: the category that comes next: the second nearest, or the nearest one when this image founds its own;
            -1 if there is none.
        runner_up_similarity: cosine to the runner-up; -1 if there is none.
    """

    index: int
    source: str
    category: int
    name: str
    verdict: Verdict
    similarity: float
    threshold: float
    runner_up: int
    runner_up_similarity: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: one line of ``decisions.jsonl``."""
        return asdict(self)


def discovered_name(number: int) -> str:
    """Return the name of the discovered category with this number (from 1) until somebody names it.

    >>> discovered_name(7)
    'discovered-7'
    """
    return f"discovered-{number}"
