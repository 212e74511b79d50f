import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from talon_ocd.config import EvidenceConfig
from talon_ocd.memory.beliefs import Ints
from talon_ocd.memory.two_covariance import Floats
from talon_ocd.metrics import strict_accuracy
from talon_ocd.offline.estimate import estimate
from talon_ocd.online import Evidence
from tests.memory.worlds import counts_and_sums, drawn_members, drawn_model

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks"
CONFIG = EvidenceConfig(dimensions=8)

pytestmark = pytest.mark.skipif(not SCRIPTS.is_dir(), reason="installed without the scripts")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The scripts as modules; a script finds its neighbours because Python looks in its folder."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    names = ("ceilings", "reestimation", "measuring")
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        del sys.modules[name]


def planted(spread: float, classes: int = 6, each: int = 20, seed: int = 0) -> tuple[Tensor, Ints]:
    """Unit features ``(N, 12)`` around directions of their classes."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    rows = random.normal(size=(classes, 12))[labels] + spread * random.normal(size=(len(labels), 12))
    return torch.nn.functional.normalize(torch.from_numpy(rows).float(), dim=1), labels


def evidence(features: Tensor, labels: Ints) -> Evidence:
    """What the first three classes say."""
    known = labels < 3
    return estimate(features[torch.from_numpy(known)], torch.from_numpy(labels[known]), CONFIG)


def test_k_means_finds_planted_clusters(scripts: dict[str, ModuleType]) -> None:
    features, labels = planted(0.2)
    found = scripts["ceilings"].k_means(features.numpy(), 6, seed=0)
    assert strict_accuracy(labels, found, known_classes=3).all == 1.0


def test_true_means_tell_separate_classes_apart(scripts: dict[str, ModuleType]) -> None:
    features, labels = planted(0.2)
    found = scripts["ceilings"].by_true_means(evidence(features, labels), CONFIG, features, labels)
    left_out = scripts["ceilings"].by_true_means_left_out(evidence(features, labels), features, labels)
    assert np.array_equal(found, labels) and np.array_equal(left_out, labels)


def test_an_image_in_its_own_mean_flatters_the_rule(scripts: dict[str, ModuleType]) -> None:
    features, labels = planted(4.0, each=5)
    found = scripts["ceilings"].by_true_means(evidence(features, labels), CONFIG, features, labels)
    left_out = scripts["ceilings"].by_true_means_left_out(evidence(features, labels), features, labels)
    assert (left_out == labels).mean() < (found == labels).mean() < 1.0


def test_the_probe_learns_and_is_asked_about_other_images(scripts: dict[str, ModuleType]) -> None:
    features, labels = planted(0.5)
    tested, found = scripts["ceilings"].probe(features, labels, seed=0)
    assert np.bincount(labels[tested]).tolist() == [10] * 6 and len(set(tested.tolist())) == 60
    assert (found == labels[tested]).mean() > 0.95
    shuffled = np.random.default_rng(1).permutation(labels)
    tested, found = scripts["ceilings"].probe(features, shuffled, seed=0)
    assert (found == shuffled[tested]).mean() < 0.4  # no label of a tested image leaks


def test_a_class_of_one_image_is_trained_on(scripts: dict[str, ModuleType]) -> None:
    first, second = scripts["ceilings"].halves(np.array([0, 1, 1, 0, 2]), np.array([4, 3, 2, 1, 0]))
    assert first.tolist() == [4, 3, 2] and second.tolist() == [1, 0]


def shifted_world() -> tuple[Evidence, list[Floats], Floats]:
    """Evidence whose ψ is a tenth of the truth, members of 300 classes, and where the mean of the classes is."""
    truth = drawn_model(4, seed=1, feature_size=6)
    shift = np.array([2.0, -1.0, 0.5, 0.0])
    members = [rows + shift for rows in drawn_members(truth, [12] * 300, seed=2)]
    wrong = type(truth)(truth.centre, truth.transform, truth.psi / 10.0, truth.tail)
    return Evidence(wrong, *counts_and_sums(members)), members, shift


@pytest.mark.parametrize("parts", [("psi", "mean"), ("mean",), ("psi",)])
def test_estimates_follow_mature_categories(scripts: dict[str, ModuleType], parts: tuple[str, ...]) -> None:
    world, members, shift = shifted_world()
    rule = scripts["reestimation"].Reestimating(world, EvidenceConfig(smoothing_classes=0.0), parts)
    kept = np.concatenate(members[:3])
    rule.recent.add(kept, np.repeat(np.arange(3), 12))
    features = torch.nn.functional.normalize(torch.randn(5, 6, generator=torch.Generator().manual_seed(0)), dim=1)
    before = rule.beliefs.model.coordinates(features)
    rule.estimate_again()
    rule.estimate_again()  # what is right stays
    moved = before[0] - rule.beliefs.model.coordinates(features)[0]
    assert moved == pytest.approx(shift if "mean" in parts else np.zeros(4), abs=0.5)
    expected = world.model.psi * (10.0 if "psi" in parts else 1.0)
    if parts == ("psi",):
        expected = expected + shift**2  # around an origin that is wrong, the spread is larger
    assert rule.beliefs.model.psi == pytest.approx(expected, rel=0.35)
    recent = rule.recent.state_dict()["coordinates"].numpy()
    assert recent == pytest.approx(kept - moved) and rule.beliefs.known == 300
    assert rule.beliefs.sums[:3] == pytest.approx(recent.reshape(3, 12, 4).sum(axis=1))


def test_few_mature_categories_change_nothing(scripts: dict[str, ModuleType]) -> None:
    world, members, _ = shifted_world()
    few = Evidence(world.model, *counts_and_sums(members[:4] + [rows[:9] for rows in members[4:]]))
    rule = scripts["reestimation"].Reestimating(few, EvidenceConfig(), ("psi", "mean"))
    rule.estimate_again()
    assert rule.beliefs.model is world.model


@pytest.mark.slow
def test_the_script_measures_and_writes(
    scripts: dict[str, ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TALON_CACHE", str(tmp_path / "cache"))
    encoder = ("--backbone", "tiny-vit", "--image-size", "16", "--set", "epochs=1", "--set", "views=2")
    target = tmp_path / "ceilings.json"
    words = [*encoder, "--set", "rounds=1", "--seeds", "0", "--orders", "1", "--fits", str(tmp_path), "-o", str(target)]
    assert scripts["ceilings"].main(words) == 0
    content = json.loads(target.read_text(encoding="utf-8"))
    assert content["summary"].keys() == content["what"].keys() and len(content["rows"]) == len(content["what"])
    assert content["command"].startswith("python benchmarks/ceilings.py --backbone") and content["seeds"] == [0]
    found = content["summary"]
    assert (
        found["kmeans"]["found"]["mean"] == 10.0
        and found["true-means"]["all"]["mean"] > found["evidence"]["all"]["mean"]
    )
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(content["what"])
    assert len(list((tmp_path / "fits").iterdir())) == 1
