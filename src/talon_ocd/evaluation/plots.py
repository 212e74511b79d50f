"""The figures of the papers from rows of grids (layer: evaluation): angles, sweeps, time, accuracy along the stream.

Each function first collects what it shows as plain data, then draws that. Rows made with different encoders, presets or
pipelines never share a figure. A figure without data is left out, and a note says which command makes its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np

from talon_ocd.evaluation.drawing import (
    LETTER,
    MUTED,
    PALETTE,
    RC,
    Drawing,
    Series,
    band,
    legend_below,
    panels,
    style,
    whole_numbers,
)
from talon_ocd.evaluation.lines import Line, lines, place
from talon_ocd.evaluation.rows import PARTS, Group, Row, Spread, group_rows, spread
from talon_ocd.evaluation.tables import in_main

SWEPT = {
    "online.adapt_every": "16,32,64,128", "offline.margin": "0.0,0.1,0.2,0.3", "online.threshold": "0.5,0.6,0.7,0.8",
    "offline.scale": "10,20,30,40,50", "online.kappa_new": "4,6,8,10,12",
}  # fmt: skip
"""Settings that the paper sweeps, and values to try."""
STAGES = {
    "training": "training_seconds", "prototypes": "prototype_seconds", "encode": "encode_seconds",
    "decide": "decide_seconds", "adapt": "adapt_seconds",
}  # fmt: skip
MOST_TICKS = 8
"""Swept values that all get a tick."""
EVALUATE = "talon evaluate --dataset NAME"


@dataclass(frozen=True)
class Scene:
    """Rows that may share a figure: one data set, one encoder, one pipeline."""

    dataset: str
    title: str
    name: str
    """For file names."""
    rows: list[Row]


def draw(rows: Sequence[Row]) -> tuple[list[Drawing], list[str]]:
    """Return all figures that the rows give, and a note for each that they do not."""
    drawings: list[Drawing] = []
    notes: list[str] = []
    for scene in scenes(rows):
        for kind, make in KINDS.items():
            made = make(scene)
            drawings += made
            if not made and kind in MAKERS:
                notes.append(f"{scene.name}: no figure of {kind}; `{EVALUATE} {MAKERS[kind]} -o DIR` makes its rows.")
    there = {drawing.data.get("setting") for drawing in drawings}
    notes += [
        f"no sweep of {name}; `{EVALUATE} --sweep {name}={values} -o DIR` makes its rows."
        for name, values in SWEPT.items()
        if name not in there
    ]
    return drawings, notes


def scenes(rows: Sequence[Row]) -> list[Scene]:
    """Return rows by data set and by how they were made, data sets in the order of the papers."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        way = row.setup
        found.setdefault((row.dataset, way.backbone, way.preset, way.pipeline, way.sampling, way.order), []).append(row)
    made, used = [], dict[str, int]()
    for key in sorted(found, key=lambda key: (place(key[0]), key)):
        dataset, backbone, preset = key[:3]
        used[dataset] = used.get(dataset, 0) + 1
        plain = dataset.replace(":", "-").replace("/", "-")
        name = plain if used[dataset] == 1 else f"{plain}-{used[dataset]}"
        title = ", ".join(part for part in (dataset, backbone, f"preset {preset}" if preset else "") if part)
        made.append(Scene(dataset, title, name, found[key]))
    return made


def angles(scene: Scene) -> list[Drawing]:
    """Angles of samples to their prototype and between prototypes, with and without the margin."""
    plain = [row for row in _one_a_fit(scene.rows) if row.get("angles", "after", "own_histogram") and not row.variant]
    without = [row for row in plain if row.method == "baseline"]
    margin = next((name for name in ("mlc", "talon") if any(row.method == name for row in plain)), None)
    if not without or margin is None:
        return []
    curves = {
        "without margin": _histograms(without, "after"),
        "with margin": _histograms([row for row in plain if row.method == margin], "after"),
    }
    before = [row for row in without if row.get("angles", "before", "own_histogram")]
    if before:
        curves["before training"] = _histograms(before, "before")
    with matplotlib.rc_context(RC):
        figure, axes = panels(f"Angles: {scene.title}", 2)
        titles = {"own": "sample to the prototype of its class", "between": "between prototypes"}
        for one, (kind, title) in zip(axes, titles.items(), strict=True):
            for number, (label, curve) in enumerate(curves.items()):
                look = style(number) if number < 2 else {"color": MUTED, "linestyle": ":"}
                one.stairs(curve[kind], curve["edges"], linewidth=1.5, label=label, **look)
                if number < 2:
                    one.stairs(curve[kind], curve["edges"], fill=True, alpha=0.15, color=look["color"])
                if curve[f"{kind}_mean"] is not None:
                    one.axvline(curve[f"{kind}_mean"], color=look["color"], linestyle="--", linewidth=0.8)
            most = max(_last_filled(curve[kind], curve["edges"]) for curve in curves.values())
            one.set(title=f"{title} (dashes: means)", xlabel="degrees", xlim=(0, min(180, most + 10)), ylim=(0, None))
        axes[0].set_ylabel("share in percent")
        legend_below(figure, axes[0])
    return [Drawing(f"angles-{scene.name}", figure, {"curves": curves, "scene": scene.name})]


def sweeps(scene: Scene) -> list[Drawing]:
    """Accuracy and number of categories against one setting: a figure a setting and method."""
    swept = [row for row in scene.rows if len(row.variant) == 1]
    pairs = dict.fromkeys((next(iter(row.variant)), row.method) for row in swept)
    made = []
    for setting, method in pairs:
        members = [row for row in swept if (next(iter(row.variant)), row.method) == (setting, method)]
        numbers = [row for row in members if isinstance(row.variant[setting], int | float)]
        groups = sorted(group_rows(numbers), key=lambda group: float(group.first.variant[setting]))
        if len({group.first.variant[setting] for group in groups}) < 2:
            continue
        several = "" if method == "talon" else f"-{method}"
        made.append(_sweep(scene, f"sweep-{setting}{several}-{scene.name}", setting, groups))
    return made


def _sweep(scene: Scene, name: str, setting: str, groups: Sequence[Group]) -> Drawing:
    x = [float(group.first.variant[setting]) for group in groups]
    data: dict[str, Any] = {"setting": setting, "scene": scene.name, "x": x}
    for part in PARTS:
        data[part] = _series([group.spread("strict", part) for group in groups], 100.0)
    data["categories"] = _series([group.spread("categories", "found") for group in groups])
    true = groups[0].first.number("categories", "true")
    with matplotlib.rc_context(RC):
        figure, (left, right) = panels(f"{groups[0].first.title}, {setting}: {scene.title}", 2)
        for number, part in enumerate(PARTS):
            band(left, part.capitalize(), x, data[part], **style(number), marker="o", markersize=3.5)
        band(right, "found", x, data["categories"], **style(3), marker="o", markersize=3.5)
        if true is not None:
            right.axhline(true, color=MUTED, linestyle="--", linewidth=1, label="true number")
        left.set(title="Strict accuracy in percent", xlabel=setting)
        right.set(title="categories", xlabel=setting)
        right.set_ylim(bottom=0)
        whole_numbers(right, "y")
        for one in (left, right):
            if len(x) <= MOST_TICKS:
                one.set_xticks(x)
            one.legend(frameon=False, fontsize=8)
    return Drawing(name, figure, data)


def times(scene: Scene) -> list[Drawing]:
    """Share of time of each stage, a bar a method."""
    bars: dict[str, dict[str, float]] = {}
    for line in lines(row for row in scene.rows if not row.variant):
        group = next(iter(line.groups.values()))
        found = {stage: group.spread("timings", name) for stage, name in STAGES.items()}
        seconds = {stage: value.mean for stage, value in found.items() if value is not None}
        if sum(seconds.values()) > 0:
            bars[line.label if "encode" in seconds else f"{line.label} *"] = seconds
    if not bars:
        return []
    with matplotlib.rc_context(RC):
        figure, (axes,) = panels(
            f"Share of time: {scene.title}", 1, 0.9 + 0.26 * len(bars), 5.0 + LETTER * max(map(len, bars))
        )
        shared = "\n* encoded once for all orders, not timed" if any(label.endswith("*") for label in bars) else ""
        start = np.zeros(len(bars))
        for number, stage in enumerate(STAGES):
            share = np.array([100 * bar.get(stage, 0.0) / sum(bar.values()) for bar in bars.values()])
            axes.barh(list(bars), share, left=start, color=PALETTE[number], label=stage, height=0.7)
            start += share
        for at, bar in enumerate(bars.values()):
            axes.text(101, at, f"{sum(bar.values()):.1f} s", va="center", fontsize=8)
        axes.set_ylim(len(bars) - 0.4, -0.6)  # the first method on top
        axes.grid(visible=False, axis="y")
        axes.set(xlim=(0, 112), xticks=range(0, 101, 20), xlabel=f"percent, with cached trunk outputs{shared}")
        legend_below(figure, axes)
    return [Drawing(f"time-{scene.name}", figure, {"seconds": bars, "scene": scene.name})]


def along(scene: Scene) -> list[Drawing]:
    """Strict accuracy of the answers so far and number of categories, a line a method."""
    curves: dict[str, dict[str, Any]] = {}
    for line in lines(row for row in scene.rows if in_main(row)):
        curve = _along(line)
        if curve:
            curves[line.label] = curve
    if not curves:
        return []
    with matplotlib.rc_context(RC):
        figure, (left, right) = panels(f"Along the stream: {scene.title}", 2, width=4.0)
        for number, (label, curve) in enumerate(curves.items()):
            band(left, label, curve["answered"], curve["strict_all"], **style(number))
            band(right, label, curve["answered"], curve["categories"], **style(number))
        left.set(title="Strict All of the answers so far, in percent", xlabel="images answered")
        true = scene.rows[0].number("categories", "true")
        if true is not None:
            right.axhline(true, color=MUTED, linestyle="--", linewidth=1)
        right.set(title=f"categories{'' if true is None else ' (dashes: true number)'}", xlabel="images answered")
        right.set_ylim(bottom=0)
        for one in (left, right):
            whole_numbers(one)
        legend_below(figure, left)
    return [Drawing(f"along-{scene.name}", figure, {"curves": curves, "scene": scene.name})]


KINDS: dict[str, Callable[[Scene], list[Drawing]]] = {
    "angles": angles, "sweeps": sweeps, "time": times, "accuracy along the stream": along,
}  # fmt: skip
MAKERS = {
    "angles": "--method baseline,mlc --epochs 10", "time": "--method all", "accuracy along the stream": "--method all",
}  # fmt: skip
"""Options of the commands that make the rows."""


def _one_a_fit(rows: Sequence[Row]) -> list[Row]:
    """Keep one row a method and seed: stream orders share a fit, and so its angles."""
    return list({(row.method, row.get("seed")): row for row in reversed(rows)}.values())[::-1]


def _histograms(rows: Sequence[Row], when: str) -> dict[str, Any]:
    """Return both histograms in percent of their samples, over all rows together."""
    found: dict[str, Any] = {}
    for kind in ("own", "between"):
        counts = np.sum([row.get("angles", when, f"{kind}_histogram") for row in rows], axis=0)
        found[kind] = (100 * counts / max(counts.sum(), 1)).tolist()
        mean = spread(value for row in rows if (value := row.number("angles", when, f"{kind}_mean")) is not None)
        found[f"{kind}_mean"] = None if mean is None else mean.mean
    found["edges"] = np.linspace(0.0, 180.0, len(found["own"]) + 1).tolist()
    return found


def _last_filled(shares: Sequence[float], edges: Sequence[float]) -> float:
    filled = np.flatnonzero(shares)
    return edges[int(filled[-1]) + 1] if len(filled) else 0.0


def _series(found: Sequence[Spread | None], scale: float = 1.0) -> Series:
    """Return means and deviations; ``NaN`` where there is none."""
    means = [np.nan if one is None else scale * one.mean for one in found]
    return means, [np.nan if one is None or one.std is None else scale * one.std for one in found]


def _along(line: Line) -> dict[str, Any] | None:
    """Return mean and spread of a method's curves; rows with another number of points than the first are left out."""
    rows = [row for row in next(iter(line.groups.values())).rows if isinstance(row.get("along", "answered"), list)]
    kept = [row for row in rows if len(row.get("along", "answered")) == len(rows[0].get("along", "answered"))]
    if not kept or not rows[0].get("along", "answered"):
        return None
    curve: dict[str, Any] = {"answered": np.mean([row.get("along", "answered") for row in kept], axis=0).tolist()}
    for name, scale in (("strict_all", 100.0), ("categories", 1.0)):
        values = scale * np.array([row.get("along", name) for row in kept], dtype=np.float64)
        std = values.std(axis=0, ddof=1) if len(kept) > 1 else np.full(values.shape[1], np.nan)
        curve[name] = (values.mean(axis=0).tolist(), std.tolist())
    return curve
