"""What a stream answers (layer: online)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from talon_ocd.online.rules import Assignment

Verdict = Literal["known", "discovered", "new"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer for one image.

    Attributes:
        index: how many answers the stream had given before.
        source: what the image is called in its source.
        category: id of the category; 0 .. C-1 are the known classes, discovered ones follow in order of creation.
        name: name of the category.
        verdict: a ``known`` class, a category ``discovered`` earlier, or one that nobody was answered with before
            (``new``): this image founds it, or second thoughts began it with images that a known class had taken in.
        similarity: how well the best category that existed before this image fits: its cosine, or by the evidence rule
            its log-odds against a new category, in nats. One that second thoughts began existed.
        threshold: what the similarity had to reach.
        runner_up: the category that comes next: the second nearest, or the nearest one when this image founds its own;
            -1 if there is none.
        runner_up_similarity: how well the runner-up fits.
        unit: ``cosine`` or ``log-odds``; other methods have their own.
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
    unit: str = "cosine"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: one line of ``decisions.jsonl``."""
        return asdict(self)


def decisions(
    assignment: Assignment,
    sources: Sequence[str],
    first: int,
    names: Sequence[str],
    threshold: float,
    unit: str = "cosine",
) -> list[Decision]:
    """Turn answers into decisions: ``names`` are those of the known classes, ``first`` is the index of the first."""
    columns = zip(
        sources,
        assignment.ids.tolist(),
        assignment.founded.tolist(),
        assignment.similarities.tolist(),
        assignment.runner_ups.tolist(),
        assignment.runner_up_similarities.tolist(),
        strict=True,
    )
    return [
        Decision(
            first + offset, source, category, category_name(category, names), _verdict(category, founded, len(names)),
            similarity, threshold, runner_up, runner_up_similarity, unit,
        )
        for offset, (source, category, founded, similarity, runner_up, runner_up_similarity) in enumerate(columns)
    ]  # fmt: skip


def category_name(category: int, names: Sequence[str]) -> str:
    """Return the name of a category, given those of the known classes.

    >>> category_name(0, ["cat", "dog"]), category_name(2, ["cat", "dog"])
    ('cat', 'discovered-1')
    """
    return names[category] if category < len(names) else discovered_name(category - len(names) + 1)


def _verdict(category: int, founded: bool, known: int) -> Verdict:
    if founded:
        return "new"
    return "known" if category < known else "discovered"


def discovered_name(number: int) -> str:
    """Return the name of the discovered category with this number (from 1) until somebody names it.

    >>> discovered_name(7)
    'discovered-7'
    """
    return f"discovered-{number}"
