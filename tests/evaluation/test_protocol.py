from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from talon_ocd.config import TalonConfig
from talon_ocd.evaluation.datasets import Dataset
from talon_ocd.evaluation.protocol import Answers, Experiment, along, default_cache_directory, rethought_ids, score
from talon_ocd.evaluation.splits import Indices, split
from talon_ocd.images import memory_item
from talon_ocd.methods import Method, get_method
from talon_ocd.metrics import strict_accuracy
from talon_ocd.offline import TrunkCache
from talon_ocd.online import Assignment
from tests import tiny
from tests.offline.standin import StandIn

DATA = Dataset("some digits", list(tiny.part(0, 20, tuple("01234567"))), tuple("01234"))
CONFIG = TalonConfig().override(epochs=1, views=2, rounds=1, orders=1, grid=8, try_untrained=False)


def experiment(data: Dataset = DATA, seed: int = 0, backbone: StandIn | None = None) -> Experiment:
    backbone = backbone or StandIn()
    return Experiment(data, backbone, CONFIG.offline, seed, TrunkCache(backbone, memory_bytes=10**9, disk_bytes=0))


def run(
    name: str = "talon", data: Dataset = DATA, seed: int = 0, config: TalonConfig = CONFIG
) -> tuple[Experiment, Answers]:
    made = experiment(data, seed)
    method = get_method(name, config)
    return made, made.run(method, made.fit(method.recipe), made.order())


@pytest.mark.parametrize("name", ["talon", "evidence"])
def test_a_run_splits_fits_streams_and_scores(name: str) -> None:
    made, answers = run(name)
    assert answers.unit == {"talon": "cosine", "evidence": "log-odds"}[name]
    parts = split(DATA.items, DATA.known, 0)
    assert answers.order.tolist() == parts.stream.tolist() and len(answers.assignment) == len(parts.stream)
    truth = made.truth[answers.order].tolist()
    assert truth == [DATA.items[at].label for at in parts.stream]
    scores = made.score(answers)
    assert scores["sizes"] == {
        "labelled": 50, "stream": 110, "stream_old": 50, "old_share": 50 / 110, "known_classes": 5, "skipped": 0,
    }  # fmt: skip
    ids = answers.assignment.ids
    assert scores["strict"] == asdict(strict_accuracy(truth, ids, DATA.known))
    share = scores["sizes"]["old_share"]
    for protocol in ("strict", "greedy"):
        found = scores[protocol]
        assert found["all"] == pytest.approx(share * found["old"] + (1 - share) * found["new"])
    assert scores["strict"]["all"] <= scores["greedy"]["all"] + 1e-12
    assert scores["categories"]["found"] == len(set(ids.tolist())) and scores["categories"]["true"] == 8
    assert scores["categories"]["memory"] == answers.memory == 5 + answers.assignment.founded.sum()
    encoder_learns = {"talon": {"adapt_seconds"}, "evidence": set()}[name]
    assert set(answers.seconds) == {"encode_seconds", "decide_seconds", "stream_seconds", *encoder_learns}


def test_a_seed_decides_everything_and_the_given_backbone_stays_untrained() -> None:
    backbone = StandIn()
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    method = get_method("talon", CONFIG)
    made = experiment(backbone=backbone)
    first, again = (made.run(method, made.fit(method.recipe), made.order()) for _ in range(2))
    assert first.assignment.ids.tolist() == again.assignment.ids.tolist()
    assert experiment(seed=1).order().tolist() != made.order().tolist()
    assert all(torch.equal(value, backbone.state_dict()[key]) for key, value in before.items())


def test_second_thoughts_are_scored_apart_from_the_answers() -> None:
    made, answers = run("evidence", config=CONFIG.override(every=1, adapt_every=16))
    assert answers.rethought is not None and answers.rethought.moves
    ids, scores = rethought_ids(answers), made.score(answers)
    moved = [move.index for move in answers.rethought.moves]
    assert scores["rethought"]["moved"] == len(moved)
    assert np.flatnonzero(ids != answers.assignment.ids).tolist() == moved
    truth = made.truth[answers.order]
    assert scores["rethought"]["strict"] == asdict(strict_accuracy(truth, ids, DATA.known))
    assert scores["strict"] == asdict(strict_accuracy(truth, answers.assignment.ids, DATA.known))
    made, answers = run("talon")
    assert answers.rethought is None and "rethought" not in made.score(answers)


@pytest.mark.parametrize("name", ["evidence", "mlc-tta-p", "smile", "phe"])
def test_features_that_are_computed_once_give_the_same_answers(name: str) -> None:
    made = experiment()
    method: Method = get_method(name, CONFIG)
    method = type(method)(**{**vars(method), "recipe": method.recipe.with_epochs(1)})
    trained = made.fit(method.recipe)
    features = made.features(method, trained)
    assert features is not None and len(features.values) == len(made.rest)
    for number in range(2):
        order = made.order(number=number)
        slow, fast = made.run(method, trained, order), made.run(method, trained, order, features)
        assert slow.assignment.ids.tolist() == fast.assignment.ids.tolist()
        assert fast.seconds["stream_seconds"] > fast.seconds["encode_seconds"] == features.seconds
    assert made.features(get_method("talon", CONFIG), made.fit(get_method("talon", CONFIG).recipe)) is None


def test_orders_differ_but_hold_the_same_images() -> None:
    made = experiment()
    first, second, sorted_ = made.order(number=0), made.order(number=1), made.order("dataset")
    assert first.tolist() != second.tolist() and sorted_.tolist() == sorted(first.tolist()) == sorted(second.tolist())


def test_whoever_listens_hears_every_answer() -> None:
    made = experiment()
    method = get_method("closed", CONFIG)
    trained, told = made.fit(method.recipe), list[int]()

    def listen(assignment: Assignment, positions: Indices) -> None:
        decisions = made.decisions(assignment, positions, len(told), 0.5)
        assert [decision.source for decision in decisions] == [made.items[at].source for at in positions]
        told.extend(decision.index for decision in decisions)

    made.run(method, trained, made.order(), on_answers=listen)
    assert told == list(range(110))


def test_bad_images_are_left_out_and_counted() -> None:
    bad = [memory_item(b"x", "bad.png", "0"), memory_item(b"y", "worse.png", "7")]
    made, answers = run("closed", Dataset("with bad ones", [bad[0], *DATA.items, bad[1]], DATA.known))
    clean, expected = run("closed")
    assert [skipped.source for skipped in made.skipped] == ["bad.png", "worse.png"]
    assert made.score(answers)["sizes"]["skipped"] == 2
    assert made.score(answers)["strict"] == clean.score(expected)["strict"]


def test_everything_known_leaves_new_empty() -> None:
    made, answers = run("closed", Dataset("all known", DATA.items, tuple("01234567")))
    scores = made.score(answers)
    assert scores["sizes"]["old_share"] == 1.0 and scores["strict"]["new"] == 0.0
    assert scores["categories"]["memory"] == 8


def test_curves_end_at_the_scores() -> None:
    random = np.random.default_rng(0)
    truth, ids = random.choice(list("abcd"), 333), random.integers(0, 6, 333)
    curves, final = along(truth, ids, ["a", "b"]), strict_accuracy(truth, ids, ["a", "b"])
    assert curves["answered"][-1] == 333 and len(curves["answered"]) == 20
    assert [curves[f"strict_{part}"][-1] for part in ("all", "old", "new")] == pytest.approx(
        [final.all, final.old, final.new]
    )
    assert curves["categories"][-1] == 6 and curves["categories"] == sorted(curves["categories"])


def test_scores_of_the_reference_example() -> None:
    found = score(list("00011222"), [0, 0, 3, 0, 1, 3, 3, 0], ["0", "1"])
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
