import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from talon_ocd.benchmarks import stream, suite, training
from talon_ocd.benchmarks.result import Result, Target
from talon_ocd.benchmarks.scenes import vit_b16
from talon_ocd.benchmarks.sizes import Sizes
from talon_ocd.benchmarks.timing import FEWEST, Contender, Timing, details, interleaved
from talon_ocd.cli.main import app
from talon_ocd.errors import BackboneError, ConfigError
from talon_ocd.offline import CachedViews
from talon_ocd.progress import Progress

NAMES = [
    *(f"stream/{encoder}/{other}" for encoder in ("lite0", "vit-b16") for other in ("forward", "two-forward")),
    *(f"decisions/{size}/{what}" for size in ("1k", "2k") for what in ("same-ids", "product")),
    *(f"rules/20x32/{what}" for what in ("stream", "answers")),
    *(f"training/{encoder}/{what}" for encoder in ("lite0", "vit-b16") for what in ("step", "uncached")),
    "memory/2k/growth",
    "memory/long-stream/growth",
]


def test_a_quick_run_measures_everything() -> None:
    done = CliRunner().invoke(app, ["bench", "speed", "--quick", "--json", "--quiet"])
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    assert [result["name"] for result in content["results"]] == NAMES
    for result in content["results"]:
        assert set(result) == {"name", "value", "unit", "target", "ok", "detail"}
        assert result["ok"] in (True, False)
    assert all(result["value"] == 1.0 for result in content["results"] if "same-ids" in result["name"])
    assert content["machine"]["threads"] == torch.get_num_threads() and content["machine"]["cores"]
    assert "command" in content and "commit" in content and content["quick"] is True


def only_one(sizes: Sizes, progress: Progress) -> Iterator[Result]:
    with progress.task("One", sizes.repeats):
        yield Result("one/slow", 0.5, "x", Target(">=", 0.85), "of [nothing]")
        yield Result("one/gone", None, "x", Target("<=", 1.3), "can't")


def test_a_table_for_people_and_progress_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(suite, "GROUPS", {"one": only_one, "two": only_one})
    done = CliRunner().invoke(
        app, ["bench", "speed", "--only", "one", "--repeats", "4", "--save", str(tmp_path / "a" / "x.json")]
    )
    assert done.exit_code == 0
    saved = json.loads((tmp_path / "a" / "x.json").read_text())
    assert [result["name"] for result in saved["results"]] == ["one/slow", "one/gone"]
    lines = [line.split() for line in done.stdout.splitlines() if line.strip().startswith("one/")]
    assert lines[0][:5] == ["one/slow", "0.5", ">=", "0.85", "below"]
    assert lines[1][:5] == ["one/gone", "-", "<=", "1.3", "skipped"]
    assert "[nothing]" in done.stdout
    assert "One: 0/4" in done.stderr


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'stream'"):
        list(suite.run(Sizes.quick(), ["steam"]))


def test_an_encoder_that_is_not_there_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(sizes: Sizes) -> None:
        raise BackboneError("pip install something")

    for group in (stream, training):
        monkeypatch.setattr(group, "ENCODERS", {"vit-b16": missing})
        results = list(group.measure(Sizes.quick()))
        assert [(result.value, result.ok, result.verdict) for result in results] == [(None, None, "skipped")] * 2
        assert results[0].note == "pip install something"


def test_repeats_are_interleaved_and_prepared_outside_the_clock() -> None:
    calls: list[str] = []

    def contender(name: str) -> Contender:
        def prepare() -> Callable[[], object]:
            calls.append(f"prepare {name}")
            return lambda: calls.append(name)

        return prepare

    found = interleaved({name: contender(name) for name in "ab"}, repeats=2)
    assert calls == ["prepare a", "a", "prepare b", "b"] * 2
    assert len(found["a"].seconds) == 2
    hurried = interleaved({"a": contender("a")}, repeats=9, seconds=0.0)
    assert len(hurried["a"].seconds) == FEWEST


def test_medians_spreads_and_ratios() -> None:
    a, b = Timing((1.0, 2.0, 9.0), (1.0, 1.0, 1.0)), Timing((2.0, 1.0, 3.0), (2.0, 3.0, 2.0))
    assert (a.median, a.spread) == (2.0, 4.0)
    facts = details({"a": a, "b": b}, "a", "b")
    assert facts["ratio_by_turn"] == {"smallest": 0.5, "median": 2.0, "largest": 3.0}
    assert facts["median_seconds"] == {"a": 2.0, "b": 2.0}
    assert facts["cpu_ratio"] == 0.5


def test_results_say_what_they_should_be() -> None:
    good, bad = (Result("x", value, "x", Target("<=", 1.3), "note", {"more": 1}) for value in (1.29999, 1.4))
    assert (good.ok, good.verdict, bad.ok, bad.verdict) == (True, "ok", False, "below")
    assert good.to_dict() == {
        "name": "x", "value": 1.3, "unit": "x", "target": "<= 1.3", "ok": True, "detail": {"note": "note", "more": 1},
    }  # fmt: skip


def test_the_bare_head_trains_what_the_trainer_trains() -> None:
    backbone = vit_b16(Sizes.quick())
    outputs = training.cached(backbone, 8)
    assert (outputs.views, len(outputs)) == (2, 8)
    assert training.steps(backbone, CachedViews(outputs), 4, 3)[0] > 0
    assert training.bare_head(backbone, torch.randn(8, *backbone.hidden_shape), 3)[0] > 0
    assert not any(parameter.requires_grad for parameter in backbone.parameters())


def test_resident_memory_follows_what_is_held() -> None:
    """In a process of its own: a long one may hold freed memory and have no need to ask for more."""
    lines = (
        "import torch",
        "from talon_ocd.benchmarks import memory",
        "before = memory.resident()",
        "held = torch.ones(50_000_000)",
        "print(before, memory.resident(), memory.highest())",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    if "None" in done.stdout:
        pytest.skip("this system doesn't tell")
    before, after, peak = map(int, done.stdout.split())
    assert 150e6 < after - before < 300e6
    assert peak >= 0.9 * after
