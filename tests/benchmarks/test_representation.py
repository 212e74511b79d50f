import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from tests.benchmarks.test_ceilings import CONFIG, SCRIPTS, planted

pytestmark = pytest.mark.skipif(not SCRIPTS.is_dir(), reason="installed without the scripts")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield importlib.import_module("representation")
    for name in ("representation", "measuring"):
        del sys.modules[name]


class Numbers:
    """Views in which image i is the number i."""

    def pair(self, index: Tensor, generator: torch.Generator) -> Tensor:
        return index.double().repeat(2, 1)[..., None]


def test_precision_counts_the_own_class_among_as_many_as_there_are(script: ModuleType) -> None:
    classes = np.array([0, 0, 0, 1, 1, 2])
    scores = np.array(
        [
            [np.inf, 1.0, 3.0, 2.0, 9.0, 8.0],  # right, wrong: (1 + 0) / 2
            [1.0, np.inf, 2.0, 3.0, 4.0, 5.0],  # right, right
            [4.0, 3.0, np.inf, 1.0, 2.0, 5.0],  # wrong, wrong
            [1.0, 2.0, 3.0, np.inf, 4.0, 5.0],  # wrong
            [2.0, 3.0, 4.0, 1.0, np.inf, 5.0],  # right
            [1.0, 2.0, 3.0, 4.0, 5.0, np.inf],  # alone in its class: does not count
        ]
    )
    precision, nearest = script.ranked(scores, classes)
    assert precision == pytest.approx((0.5 + 1 + 0 + 0 + 1) / 5)
    assert nearest == pytest.approx(3 / 5)


def test_above_is_the_area_under_the_curve(script: ModuleType) -> None:
    random = np.random.default_rng(0)
    first, second = random.integers(0, 9, 40).astype(float), random.integers(0, 7, 50).astype(float)  # with ties
    wanted = roc_auc_score(np.repeat([1, 0], [40, 50]), np.concatenate([first, second]))
    assert script.above(first, second) == pytest.approx(wanted)


def test_pseudo_novel_classes_lie_halfway_between_two_known_ones(script: ModuleType) -> None:
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 2])
    views, both, weights = script.mixed(Numbers(), labels, torch.eye(3), seed=0)
    assert both.tolist() == [*labels.tolist(), *(3 + labels).tolist()]
    pairs = views.pair(torch.tensor([4, 7, 11]), torch.Generator())[0, :, 0]  # image 4, then 0 and 4 mixed
    assert pairs[0] == 4.0
    for mixed, image in ((pairs[1], 0), (pairs[2], 4)):
        partner = int(2 * mixed) - image
        assert labels[partner] != labels[image]
        torch.testing.assert_close(
            weights[3 + labels[image]], (weights[labels[image]] + weights[labels[partner]]) / 2**0.5
        )


def test_clear_classes_are_judged_better_than_blurred_ones(script: ModuleType) -> None:
    found = {}
    for spread in (0.1, 2.0):
        features, labels = planted(spread)
        known = torch.from_numpy(labels < 3)
        found[spread] = script.judge(features[known], torch.from_numpy(labels)[known], features, labels, CONFIG)
    assert all(found[0.1][name] > found[2.0][name] for name in script.MEASURES)
    assert found[0.1]["precision"] == pytest.approx(1.0)
