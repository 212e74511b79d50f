"""The report: one self-contained HTML file with galleries of the categories, their timeline and the scores.

It takes plain data (a run of the stream, or a journal read back); the page makes no request to the network.
Long streams stay readable: galleries, lists and pictures are capped, and each cap says what it left out.
"""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from talon_ocd.errors import StorageError
from talon_ocd.evaluation import figures
from talon_ocd.evaluation.exemplars import Exemplars, thumbnail

__all__ = ["Exemplars", "ReportInput", "thumbnail", "write_report"]

MOST_CARDS = 300
"""Cards a gallery."""
MOST_PICTURES = 6
"""Pictures a card."""
MOST_PICTURE_BYTES = 12_000_000
"""Bytes of all embedded pictures; the largest categories come first."""
MOST_STRIPS = 40
"""Categories of the timeline."""
MOST_SKIPPED = 200
"""Lines of the list of skipped images."""
MOST_CHARACTERS = 120
"""Length of a name or source."""


@dataclass(frozen=True)
class ReportInput:
    """What a report shows."""

    title: str
    decisions: Sequence[Mapping[str, Any]]
    """One a picture, in stream order: index, source, category, name, verdict ("known", "discovered", "new"),
    similarity, threshold, runner_up, runner_up_similarity, unit (of the three before; ``cosine`` if it is missing)."""
    known: int
    """Categories 0 .. known-1 are known classes."""
    thumbnails: Mapping[int, Sequence[bytes]]
    """JPEG bytes of exemplars by category, founder first."""
    summary: Mapping[str, Any]
    """Facts about the run, shown as a small table."""
    metrics: Mapping[str, Any] | None = None
    """``strict`` and ``greedy`` ({all, old, new} fractions, and ``std`` of the same shape), ``categories``
    ({found, true}); further numbers are listed by name."""
    skipped: Sequence[tuple[str, str]] = ()
    """Source and reason of images that could not be used."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The full config, shown collapsed."""


@dataclass
class _Card:
    """One category as its card shows it."""

    id: int
    name: str = ""
    index: list[int] = field(default_factory=list)
    founded: list[int] = field(default_factory=list)
    similarities: list[float] = field(default_factory=list)
    neighbours: Counter[int] = field(default_factory=Counter)
    pictures: list[str] = field(default_factory=list)
    neighbour: str = ""

    @property
    def count(self) -> int:
        return len(self.index)

    @property
    def similarity(self) -> float | None:
        """Mean over the pictures that joined; a founder's similarity is that to another category."""
        return sum(self.similarities) / len(self.similarities) if self.similarities else None


def write_report(data: ReportInput, path: str | Path) -> None:
    """Write the report to ``path``, wholly or not at all."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    page = _render(data)
    try:
        draft.write_bytes(page.encode("utf-8", errors="replace"))
        os.replace(draft, path)  # noqa: PTH105 - replaces on every system
    except OSError as error:
        raise StorageError(
            f"{path}: the report can't be written ({error.strerror or error}). Free some space or choose a "
            "folder that exists and may be written to; decisions made so far are not affected."
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _render(data: ReportInput) -> str:
    cards = _cards(data)
    by_size = sorted(cards.values(), key=lambda card: (-card.count, card.id))
    galleries = {
        "discovered": [card for card in by_size if card.id >= data.known and card.count > 1],
        "once": [card for card in by_size if card.id >= data.known and card.count == 1],
        "known": [card for card in by_size if card.id < data.known],
    }
    shown = {name: gallery[:MOST_CARDS] for name, gallery in galleries.items()}
    _attach_pictures([card for gallery in shown.values() for card in gallery], data.thumbnails)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(value=_value, share=_share, short=_short)
    source = resources.files("talon_ocd.evaluation").joinpath("report.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        data=data,
        totals={name: len(gallery) for name, gallery in galleries.items()},
        galleries=shown,
        measure=_measure(data),
        verdicts=_verdicts(data.decisions),
        timeline=_timeline(data, galleries["discovered"]),
        figures=_figures(data),
        scores=_scores(data.metrics or {}),
        skipped=data.skipped[:MOST_SKIPPED],
        settings=json.dumps(data.settings, indent=2, default=str, ensure_ascii=False) if data.settings else "",
    )


def _cards(data: ReportInput) -> dict[int, _Card]:
    cards: dict[int, _Card] = {}
    for decision in data.decisions:
        number = int(decision["category"])
        card = cards.setdefault(number, _Card(number))
        card.index.append(int(decision["index"]))
        card.name = str(decision.get("name") or "") or card.name
        similarity, runner_up = _finite(decision.get("similarity")), decision.get("runner_up")
        if decision["verdict"] == "new":
            card.founded.append(card.index[-1])
        elif np.isfinite(similarity):
            card.similarities.append(similarity)
        if runner_up is not None and runner_up != number:
            card.neighbours[int(runner_up)] += 1
    for card in cards.values():
        card.name = card.name or f"#{card.id}"
    for card in cards.values():
        nearest = card.neighbours.most_common(1)
        card.neighbour = cards[nearest[0][0]].name if nearest and nearest[0][0] in cards else ""
    return cards


def _attach_pictures(cards: Sequence[_Card], thumbnails: Mapping[int, Sequence[bytes]]) -> None:
    left = MOST_PICTURE_BYTES
    for card in cards:
        for jpeg in list(thumbnails.get(card.id, ()))[:MOST_PICTURES]:
            left -= len(jpeg) * 4 // 3 + 4
            if left < 0:
                return
            card.pictures.append(b64encode(jpeg).decode("ascii"))


def _verdicts(decisions: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    counted = Counter(str(decision["verdict"]) for decision in decisions)
    return {verdict: counted[verdict] for verdict in figures.VERDICTS}


def _timeline(data: ReportInput, discovered: Sequence[_Card]) -> dict[str, Any] | None:
    """Return the founding strip and one strip a category, in the order of their founding."""
    index = [int(decision["index"]) for decision in data.decisions]
    founded = [int(decision["index"]) for decision in data.decisions if decision["verdict"] == "new"]
    if not (founded or discovered):
        return None
    first, last = min(index), max(index)
    cards = sorted(discovered[:MOST_STRIPS], key=lambda card: (card.index[0], card.id))
    rows = [
        {
            "card": card,
            "founder": figures.strip(card.founded, first, last),
            "members": figures.strip(card.index, first, last),
        }
        for card in cards
    ]
    return {"first": first, "last": last, "founded": figures.strip(founded, first, last), "rows": rows}


def _figures(data: ReportInput) -> list[tuple[str, Markup]]:
    """Return captions and SVG texts; the SVG comes from ``figures`` and holds no text of the user's."""
    if not data.decisions:
        return []
    index = np.array([int(decision["index"]) for decision in data.decisions])
    category = np.array([int(decision["category"]) for decision in data.decisions])
    similarity = np.array([_finite(decision.get("similarity")) for decision in data.decisions])
    threshold = np.array([_finite(decision.get("threshold")) for decision in data.decisions])
    verdicts = [str(decision["verdict"]) for decision in data.decisions]
    return [
        ("Categories against time", Markup(figures.growth(index, category, data.known))),
        ("How sure the decisions were", Markup(figures.similarities(similarity, threshold, verdicts, _measure(data)))),
    ]


def _measure(data: ReportInput) -> str:
    """Say what the similarities of a run are: all decisions of a stream have one unit."""
    unit = str(data.decisions[0].get("unit", "cosine")) if data.decisions else "cosine"
    return "similarity" if unit == "cosine" else unit


def _scores(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accuracy rows (cells of value and spread) and the other numbers by name."""
    rows, spread = [], metrics.get("std", {})
    for protocol in ("strict", "greedy"):
        if protocol in metrics:
            accuracy = metrics[protocol]
            deviation = accuracy.get("std") or spread.get(protocol, {})
            rows.append((protocol, [(accuracy[part], deviation.get(part)) for part in ("all", "old", "new")]))
    rest = {name: value for name, value in metrics.items() if name not in ("strict", "greedy", "std", "categories")}
    return {"rows": rows, "categories": metrics.get("categories"), "rest": rest}


def _finite(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _value(value: Any) -> str:
    """Show a fact: counts with separators, other numbers with four digits."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    return _short(str(value))


def _share(value: float) -> str:
    return f"{100 * value:.1f}"


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
