"""Draw the figures of ``docs/evidence.md`` from what was measured.

    python benchmarks/evidence_figures.py                            draws into docs/images
    python benchmarks/evidence_figures.py --fits runs/pets runs/cub  takes rehearsals out of fits first

``--fits`` are output folders of ``talon evaluate``: the tables of their rehearsals go to ``results/rehearsals.json``.
How the rule sees one image is drawn with the very code that decides.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from safetensors import safe_open

from talon_ocd.config import EvidenceConfig
from talon_ocd.evaluation.drawing import MUTED, RC, Drawing, band, legend_below, panels, style, whole_numbers
from talon_ocd.evaluation.rows import Row, read_rows
from talon_ocd.memory import Beliefs, TwoCovariance
from talon_ocd.memory.two_covariance import Floats
from talon_ocd.offline.calibrate import weighed
from talon_ocd.offline.rehearse import Trial
from talon_ocd.online import Evidence, EvidenceRule

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
REHEARSALS = RESULTS / "rehearsals.json"
DATA_SETS = ("pets", "cub")
ALONG = {
    ("evidence", "default", "10"): "the default",
    ("evidence-no-regrouping", "default", "10"): "without grouping anew",
    ("evidence-no-second-thoughts", "default", "10"): "without second thoughts",
    ("evidence-no-learning", "default", "10"): "without learning",
    ("talon", "official", "10"): "TALON, threshold rehearsed",
}
"""Method, preset and wanted epochs of the rows that are drawn, and what they are called."""
PSI = 4.0
"""Of the coordinate that is drawn: class means vary with twice the spread inside a class."""


def the_rule() -> Drawing:
    """What categories of few and of many members expect, what evidence must reach, what a share of known is worth."""
    with matplotlib.rc_context(RC):
        figure, (left, middle, right) = panels("The rule, by its own code", 3, width=3.6)
        data = {"densities": _densities(left), "hurdles": _hurdles(middle), "favours": _favours(right)}
    return Drawing("evidence-rule", figure, data)


def _model(psi: float) -> TwoCovariance:
    return TwoCovariance(centre=np.zeros(1), transform=np.eye(1), psi=np.array([psi]), tail=np.inf)


def _densities(axes: Axes) -> dict[str, list[float]]:
    """Draw where categories of 1, 5 and 50 members, whose mean is at 4, expect the next one, and where a new one is."""
    counts, at = np.array([1.0, 5.0, 50.0]), np.linspace(-6.0, 9.0, 301)
    beliefs = Beliefs(_model(PSI), counts, 4.0 * counts[:, None])
    found: dict[str, list[float]] = {}
    for category, count in enumerate(counts):
        prediction = beliefs.prediction(np.full(len(at), category))
        found[f"{count:.0f} member{'s' if count > 1 else ''}"] = _normed(beliefs.log_density(at[:, None], prediction))
    found["new"] = _normed(-beliefs.model.new_surprise(at[:, None]))
    for number, (label, density) in enumerate(found.items()):
        axes.plot(
            at, density, label=label, **(style(number) if label != "new" else {"color": MUTED, "linestyle": "--"})
        )
    axes.set(title="next member of a category at 4", xlabel="one coordinate (spread in a class: 1)", ylabel="density")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return found


def _normed(log_density: Floats) -> list[float]:
    """Densities without their common constant, that of a standard normal."""
    values: list[float] = (np.exp(log_density) / np.sqrt(2 * np.pi)).tolist()
    return values


def _hurdles(axes: Axes) -> dict[str, list[float]]:
    """Draw what the evidence must reach in the course of a stream, half of which is known, if nothing is found yet."""
    found: dict[str, list[float]] = {}
    answers = np.unique(np.geomspace(1, 8192, 100).astype(np.int64))
    for number, known in enumerate((19, 100, 1000)):
        values = [_prior(known, int(count), min(int(count), 512) // 2)[0] for count in answers]
        found[f"{known} known classes"] = values
        axes.plot(answers, values, label=f"{known} known classes", **style(number))
    axes.set(title="what evidence must reach ($\\alpha$ = 0)", xlabel="answers so far", ylabel="nats", xscale="log")
    axes.legend(frameon=False, fontsize=8)
    return found


def _favours(axes: Axes) -> dict[str, list[float]]:
    """Draw what known classes have ahead, by how many of the newest answers were none of them."""
    found = np.arange(0, 513, 8)
    values = [_prior(100, 512, int(count))[1] for count in found]
    axes.plot(100 * found / 512, values, **style(0))
    axes.axhline(0.0, color=MUTED, linewidth=1)
    axes.set(title="what known classes have ahead", xlabel="newest answers in new categories, percent", ylabel="nats")
    return {"favours": values}


def _prior(known: int, answers: int, discovered: int) -> tuple[float, float]:
    """Return hurdle and favour after so many answers, if so many of the newest 512 were in new categories."""
    model = _model(PSI)
    rule = EvidenceRule(Evidence(model, np.full(known, 10.0), np.zeros((known, 1))), EvidenceConfig())
    newest = min(answers, rule.config.share_window)
    spread = np.arange(newest + 1) * discovered // newest  # evenly among the others
    rule.load_state_dict(
        {**rule.state_dict(), "answered": torch.tensor(answers), "lately": torch.from_numpy(np.diff(spread))}
    )
    batch = rule._batch(np.zeros((1, 1)))
    return float(batch.hurdle(np.array([known]), np.zeros(1, np.int64))[0]), batch.favour


def the_rehearsals(found: dict[str, Any]) -> Drawing:
    """Accuracy of rehearsals by offset, with and without training, and the offset that is their mean."""
    curves: dict[str, Any] = {}
    with matplotlib.rc_context(RC):
        figure, axes = panels("Rehearsals: held-out known classes, second half of the streams", len(found), width=4.0)
        for one, (name, tables) in zip(axes, found.items(), strict=True):
            curves[name] = {}
            for number, (epochs, label) in enumerate(_trainings(tables).items()):
                table = [[trial for trial in trials if trial.epochs == epochs] for trials in tables]
                offsets = [trial.threshold for trial in table[0]]
                accuracy = 100 * np.array([[trial.strict_all for trial in half] for half in table])
                band(
                    one,
                    label,
                    offsets,
                    (accuracy.mean(axis=0).tolist(), accuracy.std(axis=0, ddof=1).tolist()),
                    **style(number),
                )
                mean = float(np.mean([weighed(half)[1] for half in table]))
                one.axvline(mean, linewidth=1, **(style(number) | {"linestyle": "--"}))
                curves[name][label] = {"offsets": offsets, "strict_all": accuracy.mean(axis=0).tolist(), "mean": mean}
            one.set(
                title=f"{name} (dashes: mean offset)", xlabel="offset $\\alpha$, nats", ylabel="Strict All, percent"
            )
        legend_below(figure, axes[0])
    return Drawing("evidence-rehearsals", figure, curves)


def _trainings(tables: Sequence[Sequence[Trial]]) -> dict[int, str]:
    lengths = sorted({trial.epochs for trials in tables for trial in trials})
    return {epochs: f"{epochs} epochs" if epochs else "pre-trained features" for epochs in lengths}


def along_the_stream(rows: dict[str, list[Row]]) -> Drawing:
    """Accuracy of the answers so far and number of categories, of the default without some of its parts."""
    curves: dict[str, Any] = {}
    with matplotlib.rc_context(RC):
        figure, axes = panels("Along the stream, 3 labelled halves x 3 orders", 2 * len(rows), width=3.0)
        for number, (name, members) in enumerate(rows.items()):
            accuracy, categories = axes[2 * number : 2 * number + 2]
            curves[name] = {label: _curve(members, way) for way, label in ALONG.items()}
            for at, (label, curve) in enumerate(curves[name].items()):
                for one, what in ((accuracy, "strict_all"), (categories, "categories")):
                    band(one, label, curve["answered"], curve[what], **style(at))
            categories.axhline(
                float(members[0].number("categories", "true") or 0), color=MUTED, linestyle="--", linewidth=1
            )
            accuracy.set(title=f"{name}: Strict All so far, percent", xlabel="images answered")
            categories.set(title=f"{name}: categories (dashes: true)", xlabel="images answered")
            whole_numbers(accuracy)
            whole_numbers(categories)
        legend_below(figure, axes[0])
    return Drawing("evidence-along", figure, curves)


def _curve(rows: list[Row], way: tuple[str, str, str]) -> dict[str, Any]:
    """Return means and deviations of one method's rows along the stream."""
    kept = [
        row
        for row in rows
        if (row.method, row.get("preset")) == way[:2] and row.setup.epochs == way[2] and not row.variant
    ]
    curve: dict[str, Any] = {"answered": np.mean([row.get("along", "answered") for row in kept], axis=0).tolist()}
    for name, scale in (("strict_all", 100.0), ("categories", 1.0)):
        values = scale * np.array([row.get("along", name) for row in kept])
        curve[name] = (values.mean(axis=0).tolist(), values.std(axis=0, ddof=1).tolist())
    return curve


def collect(folders: Sequence[Path]) -> dict[str, Any]:
    """Return the tables of rehearsals of the fits below output folders of ``talon evaluate``, by folder name."""
    found: dict[str, Any] = {}
    for folder in folders:
        tables = []
        for path in sorted((folder / "fits").glob("*.safetensors")):
            with safe_open(path, "np") as fit:
                report = json.loads(fit.metadata()["talon_fit"])["report"]
            tables.append(report["calibration"]["trials"])
        commits = {row.get("commit") for row in read_rows([folder]).rows if row.method == "evidence"}
        found[folder.name] = {"commits": sorted(commits), "halves": tables}
    return found


def main() -> None:
    """Draw all figures."""
    parser = argparse.ArgumentParser(description="Figures of docs/evidence.md.")
    parser.add_argument("--fits", type=Path, nargs="+", help="output folders of talon evaluate, one a data set")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "images")
    given = parser.parse_args()
    if given.fits:
        REHEARSALS.write_text(json.dumps(collect(given.fits)) + "\n", encoding="utf-8")
    for drawing in drawings():
        for path in drawing.save(given.output):
            if path.suffix != ".png":
                path.unlink()


def drawings() -> list[Drawing]:
    """Return the figures, of what is in ``results``."""
    saved = json.loads(REHEARSALS.read_text(encoding="utf-8"))
    rehearsed = {
        name: [
            [Trial(**{**trial, "runs": tuple(trial["runs"])}) for trial in trials] for trials in saved[name]["halves"]
        ]
        for name in DATA_SETS
    }
    rows = {name: read_rows([RESULTS / f"grid-lite0-{name}.json"]).rows for name in DATA_SETS}
    return [the_rule(), the_rehearsals(rehearsed), along_the_stream(rows)]


if __name__ == "__main__":
    main()
