"""The look of figures for papers and pages, and how they get to disk (layer: evaluation).

White ground, no frame above and to the right, a palette that people with any colour vision can tell apart (after Okabe
and Ito) and, because eight colours are not enough for all methods, a line style that changes with every round of it.
The same data gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from talon_ocd.saved import write_files

INK, MUTED = "#23262b", "#686d76"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#23262b", "#a6a02a")
STYLES = ("-", "--", ":", "-.")
DOTS_PER_INCH = 160
LETTER = 0.068
"""Inches that a letter of a label takes at most, on average."""
RC: dict[Any, Any] = {
    "svg.hashsalt": "talon-ocd",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e9e9e4",
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "lines.linewidth": 1.6,
}


@dataclass(frozen=True)
class Drawing:
    """A finished figure: its file name without ending, the figure, and the numbers that it shows as plain data."""

    name: str
    figure: Figure
    data: dict[str, Any]

    def save(self, folder: Path) -> list[Path]:
        """Write PNG and SVG; returns the paths."""
        files = {}
        for ending in ("png", "svg"):
            buffer = BytesIO()
            about = {"Software": None} if ending == "png" else {"Date": None, "Creator": None}
            with matplotlib.rc_context(RC):
                self.figure.savefig(buffer, format=ending, dpi=DOTS_PER_INCH, metadata=about)
            files[f"{self.name}.{ending}"] = buffer.getvalue()
        write_files(folder, files)
        return [folder / name for name in files]


def panels(title: str, count: int, height: float = 2.8, width: float = 3.7) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels side by side under one title; call it inside ``rc_context(RC)``."""
    figure = Figure(figsize=(width * count, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=9.5, color=INK)
    axes = [figure.add_subplot(1, count, number + 1) for number in range(count)]
    for one in axes:
        one.tick_params(length=3)
    return figure, axes


def style(number: int) -> dict[str, Any]:
    """Return colour and line style of the line with this number.

    >>> style(0), style(8)
    ({'color': '#0072b2', 'linestyle': '-'}, {'color': '#0072b2', 'linestyle': '--'})
    """
    turn, at = divmod(number, len(PALETTE))
    return {"color": PALETTE[at], "linestyle": STYLES[turn % len(STYLES)]}


Series = tuple[list[float], list[float]]
"""Means and standard deviations."""


def band(axes: Axes, label: str, x: Sequence[float], series: Series, **look: Any) -> None:
    """Draw a line with a band of one standard deviation to either side; ``NaN`` has no band."""
    mean, std = np.asarray(series[0]), np.nan_to_num(series[1])
    axes.plot(x, mean, label=label, **look)
    axes.fill_between(x, mean - std, mean + std, color=look["color"], alpha=0.15, linewidth=0)


def whole_numbers(axes: Axes, axis: str = "x") -> None:
    """Let an axis show few, whole numbers."""
    (axes.xaxis if axis == "x" else axes.yaxis).set_major_locator(MaxNLocator(nbins=5, integer=True))


def legend_below(figure: Figure, axes: Axes) -> None:
    """Put one legend under all panels, in as many columns as surely fit; the figure grows by its height."""
    handles, labels = axes.get_legend_handles_labels()
    widths = [len(label) * LETTER + 0.6 for label in labels]  # with the line before the label and the gap behind it
    width = figure.get_figwidth()
    columns = len(labels) if sum(widths) <= width else max(1, int(width / max(widths)))
    figure.set_figheight(figure.get_figheight() + 0.17 * -(-len(labels) // columns))
    figure.legend(
        handles, labels, loc="outside lower left", ncols=columns, frameon=False, fontsize=8, columnspacing=1.4
    )
