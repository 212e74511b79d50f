"""Figures of the report as inline SVG: growth of the categories, similarities, strips of the timeline.

Colours are CSS variables of the page (``var(--known)``), so that one figure serves light and dark mode.
Matplotlib knows no CSS: it draws with stand-in colours, which are replaced in the text. The same input gives
the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VERDICTS = ("known", "discovered", "new")
STRIP_WIDTH = 1000
"""Units of the horizontal axis of a strip; marks that fall on the same unit are drawn once."""

_STAND_INS = {
    "ink": "#010203",
    "muted": "#040506",
    "known": "#070809",
    "discovered": "#0a0b0c",
    "new": "#0d0e0f",
}
_RC: dict[Any, Any] = {
    "svg.hashsalt": "talon-ocd",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.edgecolor": _STAND_INS["muted"],
    "axes.labelcolor": _STAND_INS["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": _STAND_INS["ink"],
    "xtick.color": _STAND_INS["muted"],
    "ytick.color": _STAND_INS["muted"],
    "path.simplify": True,
}
_AXES = {
    "similarity": "similarity to the best category",
    "log-odds": "log-odds of the best category against a new one (nats)",
}
_MOST_POINTS = 400
_MOST_BINS = 48


def growth(index: npt.NDArray[np.int64], category: npt.NDArray[np.int64], known: int) -> str:
    """Draw how many categories had been seen when: known, discovered, and discovered at least twice."""
    first, second = _first_and_second(category)
    discovered = category >= known
    lines = [
        ("discovered", "discovered", "-", first & discovered),
        ("seen twice or more", "discovered", ":", second & discovered),
        ("known classes seen", "known", "-", first & ~discovered),
    ]
    with _style():
        figure, axes = _canvas("images so far", "categories")
        for label, colour, style, event in lines:
            if event.any():
                x, y = _thin(index, np.cumsum(event))
                axes.step(x, y, where="post", label=label, color=_STAND_INS[colour], linestyle=style, linewidth=1.6)
        axes.set_ylim(bottom=0)
        return _svg(figure, "Number of categories against time")


def similarities(
    similarity: npt.NDArray[np.float64],
    threshold: npt.NDArray[np.float64],
    verdicts: Sequence[str],
    measure: str = "similarity",
) -> str:
    """Draw the similarity to the best category, stacked by verdict, with the (median) threshold.

    ``measure`` says what the similarities are; with ``log-odds`` an image joins at 0 and there is no threshold to name.
    """
    kinds = np.asarray(verdicts)
    usable = np.isfinite(similarity)
    groups = [similarity[usable & (kinds == verdict)] for verdict in VERDICTS]
    with _style():
        figure, axes = _canvas(_AXES.get(measure, "how well the best category fits"), "images")
        if usable.any():
            bins = int(np.clip(np.sqrt(usable.sum()), 8, _MOST_BINS))
            colours = [_STAND_INS[verdict] for verdict in VERDICTS]
            axes.hist(
                groups,
                bins=bins,
                stacked=True,
                color=colours,
                label=VERDICTS,
                alpha=0.85,
                histtype="stepfilled",
            )
        cuts = threshold[np.isfinite(threshold)]
        if cuts.size:
            word = "threshold" if np.ptp(cuts) < 1e-9 else "median threshold"
            word = "joins at" if measure == "log-odds" else word
            middle = float(np.median(cuts))
            axes.axvline(middle, color=_STAND_INS["ink"], linestyle="--", linewidth=1, label=f"{word} {middle:.3g}")
        return _svg(figure, "How well the best category fits, by verdict")


def strip(index: Sequence[int], first: int, last: int) -> str:
    """Return the SVG path of one tick for every position of ``index`` on an axis from ``first`` to ``last``.

    >>> strip([0, 5, 10], 0, 10)
    'M0 0V10M500 0V10M1000 0V10'
    """
    span = max(last - first, 1)
    places = sorted({(value - first) * STRIP_WIDTH // span for value in index})
    return "".join(f"M{place} 0V10" for place in places)


def _style() -> AbstractContextManager[None]:
    import matplotlib  # here: every command would wait for it

    return matplotlib.rc_context(_RC)


def _canvas(x_label: str, y_label: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 2.9), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.locator_params(axis="both", integer=x_label.startswith("images"), nbins=6)
    axes.tick_params(length=3)
    return figure, axes


def _first_and_second(category: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Mark the first and the second appearance of every category."""
    order = np.argsort(category, kind="stable")
    ranked = category[order]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]][: len(ranked)])
    rank = np.arange(len(ranked)) - np.repeat(starts, np.diff(np.r_[starts, len(ranked)]))
    first, second = np.zeros(len(ranked), dtype=np.bool_), np.zeros(len(ranked), dtype=np.bool_)
    first[order], second[order] = rank == 0, rank == 1
    return first, second


def _thin(x: npt.NDArray[np.int64], y: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Keep the ends and evenly spaced points between them."""
    keep = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MOST_POINTS)).astype(np.int64))
    return x[keep], y[keep]


def _svg(figure: Figure, label: str) -> str:
    """Return the figure as SVG, with a legend above the plot where it hides nothing."""
    axes = figure.axes[0]
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, ncols=4, columnspacing=1.4, loc="lower left", bbox_to_anchor=(0, 1))
    buffer = StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    for name, stand_in in _STAND_INS.items():
        text = text.replace(stand_in, f"var(--{name})")
    return text
