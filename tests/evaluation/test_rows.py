import json
from pathlib import Path
from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_ocd.errors import DataError
from talon_ocd.evaluation.rows import Row, check, group_rows, read_rows, spread
from tests.evaluation.grid_rows import row, write


def test_rows_of_several_folders_are_grouped(tmp_path: Path) -> None:
    write(tmp_path / "a", row(seed=0, old=0.60), row(seed=1, old=0.66), row(seed=1, order=1, old=0.69), row("cub"))
    write(tmp_path / "b", row(seed=2, old=0.63), row(method="smile"))
    reading = read_rows([tmp_path / "a", tmp_path / "b"])
    assert reading.problems == [] and len(reading.rows) == 6
    groups = {(group.first.dataset, group.first.method): group for group in group_rows(reading.rows)}
    assert {key: len(group.rows) for key, group in groups.items()} == {
        ("pets", "talon"): 4, ("cub", "talon"): 1, ("pets", "smile"): 1,
    }  # fmt: skip
    found = groups["pets", "talon"].spread("strict", "old")
    assert found is not None and found.count == 4
    values = [0.60, 0.66, 0.69, 0.63]
    assert found.mean == pytest.approx(mean(values)) and found.std == pytest.approx(stdev(values))
    alone = groups["cub", "talon"].spread("strict", "old")
    assert alone is not None and alone.std is None


def test_rows_made_in_different_ways_are_not_averaged() -> None:
    ways = [
        row(), row(seed=1), row(epochs=100, settings={"recipe": {"epochs": 100}}), row(sampling="talon"),
        row(pipeline={"aspect": "squash"}), row(backbone="tiny-vit"), row(order=0) | {"order": {"kind": "dataset"}},
        row(variant={"online.threshold": 0.6}), row(settings={"recipe": {"epochs": 10, "bits": 16}}),
    ]  # fmt: skip
    assert len(group_rows(Row(content) for content in ways)) == len(ways) - 1


def test_seeds_inside_settings_and_kept_features_split_no_group() -> None:
    settings = [{"recipe": {"config": {"seed": seed, "offline": {"epochs": 10}}}} for seed in (0, 1)]
    rows = [row(seed=seed, settings=settings[seed], epochs=10 * seed) for seed in (0, 1)]
    assert len(group_rows(Row(content) for content in rows)) == 1


def test_damaged_files_are_reported_and_skipped(tmp_path: Path) -> None:
    write(tmp_path, row())
    place = tmp_path / "rows" / "pets"
    (place / "half.json").write_text('{"format": 1, "dataset": "pe')
    (place / "list.json").write_text("[1]")
    (place / "poor.json").write_text('{"dataset": "pets", "method": "talon"}')
    (place / "binary.json").write_bytes(b"\xff\xfe\x00")
    (place / "later.json").write_text('{"format": 2, "dataset": "p", "method": "m", "seed": 0, "order": {}, "strict": {}, "greedy": {}}')  # fmt: skip  # noqa: E501
    (place / ".seed-0.json.part").write_text("{")
    reading = read_rows([tmp_path])
    assert len(reading.rows) == 1 and len(reading.problems) == 5
    text = "\n".join(reading.problems)
    for word in ("half.json", "list.json", "poor.json: skipped, it is no row: seed", "binary.json", "format 2"):
        assert word in text


def test_the_same_row_twice_counts_once(tmp_path: Path) -> None:
    write(tmp_path / "a", row(old=0.6))
    write(tmp_path / "b", row(old=0.6))
    write(tmp_path / "c", row(old=0.7))
    reading = read_rows([tmp_path / "a", tmp_path / "b"])
    assert len(reading.rows) == 1 and reading.problems == []
    reading = read_rows([tmp_path / "a", tmp_path / "c"])
    assert len(reading.rows) == 1 and "is the same row already" in reading.problems[0]


def test_a_row_that_contradicts_itself_is_refused_by_name(tmp_path: Path) -> None:
    mixed = row(seed=7)
    mixed["strict"]["all"] += 0.01
    with pytest.raises(DataError, match=r"talon on pets, seed 7, order 0: strict All is 0\.54"):
        read_rows([write(tmp_path / "mixed", mixed)])
    above = row(gap=-0.1)
    with pytest.raises(DataError, match=r"Strict All .* is above Greedy"):
        read_rows([write(tmp_path / "above", above)])
    percent = row(old=60.0, new=50.0)
    with pytest.raises(DataError, match="between 0 and 1"):
        read_rows([write(tmp_path / "percent", percent)])


@given(st.floats(0, 0.9), st.floats(0, 0.9), st.floats(0, 0.1), st.integers(4, 16))
def test_true_rows_pass_however_they_are_rounded(old: float, new: float, gap: float, digits: int) -> None:
    content = row(old=old, new=new, gap=gap)
    for protocol in ("strict", "greedy"):
        content[protocol] = {name: round(value, digits) for name, value in content[protocol].items()}
    check(Row(content))


def test_the_least_a_row_holds(tmp_path: Path) -> None:
    poor = {"dataset": "x", "method": "y", "seed": 0, "order": {"kind": "shuffled", "number": 0}, "strict": {}, "greedy": {}}  # fmt: skip  # noqa: E501
    found = read_rows([write(tmp_path, poor)]).rows[0]
    assert (found.title, found.group, found.split, found.old_share, found.variant) == ("y", "", None, None, {})
    assert found.number("strict", "all") is None and found.setup.epochs == ""
    assert group_rows([found])[0].spread("strict", "all") is None


def test_places_without_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        read_rows([tmp_path / "nowhere"])
    with pytest.raises(DataError, match="no rows in there"):
        read_rows([tmp_path])


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=9))
def test_spread_is_the_sample_standard_deviation(values: list[float]) -> None:
    found = spread(values)
    assert found is not None and found.std is not None
    assert found.mean == pytest.approx(mean(values), abs=1e-9) and found.std == pytest.approx(stdev(values), abs=1e-7)


def test_the_list_of_a_finished_grid_is_read_like_its_rows(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps([row(), row(seed=1), row(order=1)]))
    assert len(read_rows([tmp_path / "results.json"]).rows) == 3
