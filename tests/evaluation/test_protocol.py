import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from talon_ocd.config import TalonConfig
from talon_ocd.evaluation.datasets import Dataset
from talon_ocd.evaluation.protocol import Run, default_cache_directory, results, run_protocol, score, summarise
from talon_ocd.evaluation.splits import split
from talon_ocd.images import ImageItem, memory_item
from talon_ocd.metrics import strict_accuracy
from talon_ocd.offline import TrunkCache
from talon_ocd.online import Decision, DiscoveryStream
from tests import tiny
from tests.offline.standin import StandIn

DATA = Dataset("some digits", list(tiny.part(0, 20, tuple("01234567"))), tuple("01234"))
CONFIG = TalonConfig().override(epochs=2, views=2, rounds=1, orders=1, grid=8, try_untrained=False)


def run(seed: int = 0, data: Dataset = DATA, config: TalonConfig = CONFIG) -> tuple[Run, list[Decision]]:
    backbone, told = StandIn(), list[Decision]()

    def on_decision(decision: Decision, item: ImageItem, stream: DiscoveryStream) -> None:
        assert decision.source == item.source and stream.memory.known == len(tuple(data.known))
        told.append(decision)

    with TrunkCache(backbone, memory_bytes=10**9, disk_bytes=0, seed=seed) as cache:
        return run_protocol(data, backbone, config, seed, cache, on_decision=on_decision), told


def test_a_run_splits_fits_streams_and_scores() -> None:
    done, told = run()
    parts = split(DATA.items, DATA.known, 0)
    assert done.decisions == told and [d.source for d in told] == [DATA.items[at].source for at in parts.stream]
    assert done.truth == [DATA.items[at].label for at in parts.stream]
    scores = done.scores
    assert scores["sizes"] == {
        "labelled": 50, "stream": 110, "stream_old": 50, "old_share": 50 / 110, "known_classes": 5, "skipped": 0,
    }  # fmt: skip
    ids = [decision.category for decision in told]
    assert scores["strict"] == asdict(strict_accuracy(done.truth, ids, DATA.known))
    share = scores["sizes"]["old_share"]
    for protocol in ("strict", "greedy"):
        parts_of = scores[protocol]
        assert parts_of["all"] == pytest.approx(share * parts_of["old"] + (1 - share) * parts_of["new"])
    assert scores["strict"]["all"] <= scores["greedy"]["all"] + 1e-12
    assert scores["categories"]["found"] == len(set(ids)) and scores["categories"]["true"] == 8
    assert scores["categories"]["memory"] == 5 + sum(decision.verdict == "new" for decision in told)
    assert scores["threshold"] == done.talon.threshold and scores["epochs"] == 2
    assert scores["timings"]["stream_seconds"] > 0


def test_a_seed_decides_everything_and_the_given_backbone_stays_untrained() -> None:
    backbone = StandIn()
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    with TrunkCache(backbone, memory_bytes=10**9, disk_bytes=0) as cache:
        first = run_protocol(DATA, backbone, CONFIG, 0, cache)
        again = run_protocol(DATA, backbone, CONFIG, 0, cache)
        other = run_protocol(DATA, backbone, CONFIG, 1, cache)
    assert first.decisions == again.decisions and first.scores["strict"] == again.scores["strict"]
    assert [d.source for d in other.decisions] != [d.source for d in first.decisions]
    assert other.talon.config.seed == 1
    assert all(torch.equal(value, backbone.state_dict()[key]) for key, value in before.items())


def test_bad_images_are_left_out_and_counted() -> None:
    bad = [memory_item(b"x", "bad.png", "0"), memory_item(b"y", "worse.png", "7")]
    done, _ = run(data=Dataset("with bad ones", [bad[0], *DATA.items, bad[1]], DATA.known))
    clean, _ = run()
    assert [skipped.source for skipped in done.skipped] == ["bad.png", "worse.png"]
    assert done.scores["sizes"]["skipped"] == 2 and done.scores["strict"] == clean.scores["strict"]


def test_everything_known_leaves_new_empty() -> None:
    done, _ = run(data=Dataset("all known", DATA.items, tuple("01234567")), config=CONFIG.override(threshold=-1.0))
    assert done.scores["sizes"]["old_share"] == 1.0 and done.scores["strict"]["new"] == 0.0
    assert done.scores["categories"]["memory"] == 8


def test_mean_and_sample_deviation() -> None:
    runs = [{"seed": s, "strict": {"all": value}, "note": "x"} for s, value in enumerate((0.2, 0.4, 0.9))]
    found = summarise(runs)
    assert found["mean"] == {"strict": {"all": 0.5}} and "seed" not in found["std"]
    assert found["std"]["strict"]["all"] == pytest.approx(np.std([0.2, 0.4, 0.9], ddof=1))
    assert summarise(runs[:1])["std"] == {"strict": {"all": 0.0}}


def test_results_are_plain_data() -> None:
    done, _ = run()
    content = results(DATA, StandIn(), CONFIG, [done], "talon evaluate", None)
    assert json.loads(json.dumps(content, allow_nan=False))["mean"]["strict"] == pytest.approx(done.scores["strict"])
    assert content["seeds"] == [0] and set(content["mean"]) >= {"strict", "greedy", "categories", "threshold", "sizes"}


def test_scores_of_the_reference_example() -> None:
    truth, ids = list("00011222"), [0, 0, 3, 0, 1, 3, 3, 0]
    decisions = [Decision(at, "", id_, "", "known", 1.0, 0.5, -1, -1.0) for at, id_ in enumerate(ids)]
    found = score(truth, decisions, ["0", "1"])
    assert found["strict"] == found["greedy"] == pytest.approx({"all": 0.625, "old": 0.6, "new": 2 / 3})
    assert found["categories"] == {"found": 3, "true": 3}


def test_where_outputs_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TALON_CACHE", str(tmp_path / "mine"))
    assert default_cache_directory() == tmp_path / "mine"
    monkeypatch.delenv("TALON_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_directory() == tmp_path / "talon-ocd"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert default_cache_directory() == Path.home() / ".cache" / "talon-ocd"
