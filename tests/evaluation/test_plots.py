import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from talon_ocd.evaluation.drawing import PALETTE, STYLES, Drawing, style
from talon_ocd.evaluation.plots import SWEPT, along, angles, draw, scenes, sweeps, times
from talon_ocd.evaluation.rows import Row
from talon_ocd.methods.registry import REGISTRY
from tests.evaluation.grid_rows import row


def rows(*contents: dict[str, Any]) -> list[Row]:
    return [Row(content) for content in contents]


def one(made: list[Drawing]) -> Drawing:
    (drawing,) = made
    return drawing


def scene(*contents: dict[str, Any]) -> Any:
    (found,) = scenes(rows(*contents))
    return found


def test_angles_with_and_without_margin() -> None:
    contents = [
        row(method=name, seed=seed, order=order) for name in ("baseline", "mlc") for seed in (0, 1) for order in (0, 1)
    ]
    drawing = one(angles(scene(*contents)))
    curves = drawing.data["curves"]
    assert list(curves) == ["without margin", "with margin", "before training"]
    for curve in curves.values():
        assert len(curve["edges"]) == len(curve["own"]) + 1 == 91 and curve["edges"][-1] == 180
        assert sum(curve["own"]) == pytest.approx(100) and sum(curve["between"]) == pytest.approx(100)
    middles = np.convolve(curves["with margin"]["edges"], [0.5, 0.5], "valid")
    assert np.dot(middles, curves["with margin"]["own"]) / 100 == pytest.approx(35, abs=0.1)
    assert curves["without margin"]["own_mean"] == 55 and curves["with margin"]["between_mean"] == 74
    assert one(angles(scene(row(method="baseline"), row(method="talon")))).name == "angles-pets"
    assert angles(scene(row(method="baseline"))) == [] and angles(scene(row(method="mlc"))) == []


def test_orders_of_one_fit_count_its_angles_once() -> None:
    def told(own: int, **more: Any) -> dict[str, Any]:
        histogram = [0] * 90
        histogram[own] = 10
        part = {"own_histogram": histogram, "between_histogram": histogram}
        return row(angles={"after": part}, **more)

    contents = [told(5, method="baseline", order=order) for order in range(3)] + [told(9, method="baseline", seed=1)]
    data = one(angles(scene(*contents, row(method="mlc")))).data["curves"]["without margin"]
    assert (data["own"][5], data["own"][9]) == (50, 50) and data["own_mean"] is None


def test_a_sweep_shows_mean_and_spread() -> None:
    contents = [
        row(seed=seed, old=0.5 + value / 10 + 0.01 * seed, variant={"online.threshold": value})
        for value in (0.7, 0.5, 0.6) for seed in (0, 1, 2)
    ]  # fmt: skip
    drawing = one(sweeps(scene(*contents, row(), row(variant={"online.threshold": "auto"}))))
    data = drawing.data
    assert drawing.name == "sweep-online.threshold-pets" and data["x"] == [0.5, 0.6, 0.7]
    assert data["old"][0] == pytest.approx([56.0, 57.0, 58.0]) and data["old"][1] == pytest.approx([1.0] * 3)
    assert data["categories"][0] == [61.0] * 3 and data["categories"][1] == [1.0] * 3
    assert sweeps(scene(row(variant={"offline.scale": 10}))) == []  # a single value is no sweep
    other = sweeps(scene(*(row(method="phe", variant={"bits": bits}) for bits in (8, 9))))
    assert one(other).name == "sweep-bits-phe-pets"


def test_time_adds_up() -> None:
    drawing = one(times(scene(row(), row(seed=1), row(method="slc", timings={"decide_seconds": 2.0}))))
    seconds = drawing.data["seconds"]
    assert seconds["TALON"] == {"training": 60, "prototypes": 1.5, "encode": 27.4, "decide": 2.74, "adapt": 5.48}
    assert seconds["SLC *"] == {"decide": 2.0}  # its encoding was not timed
    axes = drawing.figure.axes[0]
    ends = {round(bar.get_x() + bar.get_width(), 6) for bar in axes.patches if bar.get_y() < 0.5}  # type: ignore[attr-defined]
    assert max(ends) == pytest.approx(100)
    assert times(scene(row(timings={}))) == []


def test_curves_along_the_stream() -> None:
    contents = [row(seed=seed) for seed in (0, 1)] + [
        row(method="slc"),
        row(method="mlc"),
        row(method="phe", along=None),
    ]
    curves = one(along(scene(*contents))).data["curves"]
    assert list(curves) == ["TALON", "SLC"]
    mean, std = curves["TALON"]["strict_all"]
    assert len(mean) == 20 and mean[-1] > mean[0] and max(mean) < 60 and max(std) > 0
    assert np.isnan(curves["SLC"]["strict_all"][1]).all()
    values = [np.array(content["along"]["strict_all"]) for content in contents[:2]]
    assert np.allclose(mean, 100 * (values[0] + values[1]) / 2)


def test_rows_made_in_different_ways_share_no_figure() -> None:
    found = scenes(rows(row(), row(preset="default"), row("cub"), row(method="slc")))
    assert [one.name for one in found] == ["cub", "pets", "pets-2"]
    assert {len(one.rows) for one in found} == {1, 2}


def test_what_is_missing_is_told_with_its_command() -> None:
    drawings, notes = draw(rows({"dataset": "x", "method": "y", "seed": 0, "order": {}, "strict": {}, "greedy": {}}))
    text = "\n".join(notes)
    assert drawings == [] and "--method baseline,mlc" in text
    assert all(f"--sweep {name}=" in text for name in SWEPT) and "accuracy along the stream" in text


def test_files_are_whole_and_the_same_again(tmp_path: Path) -> None:
    contents = [row(method=name, seed=seed) for name in REGISTRY for seed in (0, 1)]
    contents += [row(seed=seed, variant={"offline.margin": value}) for value in (0.1, 0.2) for seed in (0, 1)]
    contents[0]["timings"] = {"decide_seconds": 1.0}
    drawings, _ = draw(rows(*contents))
    assert {drawing.name for drawing in drawings} == {
        "angles-pets", "sweep-offline.margin-pets", "time-pets", "along-pets",
    }  # fmt: skip
    for drawing in drawings:
        png, svg = drawing.save(tmp_path)
        with Image.open(png) as picture:
            assert 600 < picture.width < 2600 and 300 < picture.height < 2600
            grey = np.asarray(picture.convert("L"))
        assert grey.std() > 5
        edge = np.concatenate([grey[:, -2:].ravel(), grey[-2:].ravel()])
        assert (edge > 250).all(), f"{drawing.name} is clipped to the right or below"
        text = svg.read_text(encoding="utf-8")
        assert text.count("<path") > 5 and not re.search(r"<dc:date>", text)
    again, _ = draw(rows(*contents))
    for drawing in again:
        before = [(tmp_path / f"{drawing.name}.{ending}").read_bytes() for ending in ("png", "svg")]
        assert [path.read_bytes() for path in drawing.save(tmp_path / "again")] == before


def test_lines_are_told_apart() -> None:
    looks = [tuple(style(number).items()) for number in range(len(PALETTE) * len(STYLES))]
    assert len(set(looks)) == len(looks)
