import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.config import CalibrationConfig, OnlineConfig
from talon_ocd.errors import DataError
from talon_ocd.memory import PrototypeMemory
from talon_ocd.offline import calibrate, class_means
from talon_ocd.offline.calibrate import Calibration, rehearsals
from talon_ocd.online import FeatureStream
from tests.offline.standin import Listener

ONLINE = OnlineConfig(adapt=("prototypes",))
CONFIG = CalibrationConfig()


def clusters(classes: int, each: int, spread: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit features ``(N, 16)`` around random directions, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, 16, generator=generator)
    labels = torch.arange(classes).repeat_interleave(each)
    return F.normalize(centres[labels] + spread * torch.randn(len(labels), 16, generator=generator), dim=1), labels


def run(features: Tensor, labels: Tensor, config: CalibrationConfig = CONFIG, seed: int = 0) -> Calibration:
    return calibrate(labels, {0: lambda train, wanted: features[torch.from_numpy(wanted)]}, ONLINE, config, seed)


def test_separable_clusters_are_all_discovered_with_the_chosen_threshold() -> None:
    features, labels = clusters(16, 20)
    known = labels < 8
    result = run(features[known], labels[known])
    stream = FeatureStream(
        PrototypeMemory(class_means(features[known], labels[known], 8)), OnlineConfig(threshold=result.threshold)
    )
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    ids = torch.tensor([decision.category for decision in stream.observe_many(features[order])])
    assert stream.memory.size == 16
    for label in range(16):
        assert len(ids[labels[order] == label].unique()) == 1


def test_the_threshold_is_the_best_of_a_grid_that_is_reported() -> None:
    result = run(*clusters(6, 10, spread=0.4))
    grid = [trial.threshold for trial in result.trials]
    assert len(grid) == CONFIG.grid and grid == sorted(grid) and -1 <= grid[0] < grid[-1] <= 1.0001
    assert result.threshold in grid
    chosen = next(trial for trial in result.trials if trial.threshold == result.threshold)
    assert chosen.strict_all >= np.mean([trial.strict_all for trial in result.trials])
    assert (result.rounds, result.held_out) == (2, 3)
    assert result.to_dict()["trials"][0]["threshold"] == grid[0]


def test_the_middle_of_equally_good_thresholds_is_taken() -> None:
    features = torch.eye(8).repeat_interleave(5, dim=0)  # every threshold between 0 and 1 is right
    result = run(features, torch.arange(8).repeat_interleave(5))
    assert 0.4 < result.threshold < 0.6


def test_the_same_seed_gives_the_same_table_and_leaves_global_randomness_alone() -> None:
    features, labels = clusters(6, 10, spread=0.5)
    state: Any = np.random.get_state()
    torch_state = torch.get_rng_state()
    first = run(features, labels, seed=5)
    assert first == run(features, labels, seed=5) and first != run(features, labels, seed=6)
    after: Any = np.random.get_state()
    assert np.array_equal(state[1], after[1]) and torch.equal(torch_state, torch.get_rng_state())


def test_a_head_never_sees_what_it_is_asked_about() -> None:
    features, labels = clusters(6, 10)
    asked: list[tuple[set[int], set[int]]] = []

    def encode_fold(train: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> Tensor:
        asked.append((set(train.tolist()), set(wanted[len(train) :].tolist())))
        return features[torch.from_numpy(wanted)]

    calibrate(labels, {0: encode_fold}, ONLINE, CONFIG, 0)
    novel = []
    for train, stream in asked:
        assert not train & stream and train | stream == set(range(60))
        trained = {int(labels[i]) for i in train}
        novel.append(set(range(6)) - trained)
        assert len(trained) == 3 and {int(labels[i]) for i in stream} == set(range(6))
    assert novel[0] != novel[1]


@pytest.mark.parametrize("sizes", [[5, 5], [1, 1], [1, 5], [1, 1, 1], [2, 1, 30]])
def test_few_and_small_classes_work(sizes: list[int]) -> None:
    labels = torch.cat([torch.full((size,), label) for label, size in enumerate(sizes)])
    features = F.normalize(torch.randn(len(labels), 16, generator=torch.Generator().manual_seed(0)), dim=1)
    result = run(features, labels)
    assert result.threshold in [trial.threshold for trial in result.trials]


def test_equal_features_still_give_a_threshold() -> None:
    result = run(torch.eye(4)[0].expand(12, 4), torch.arange(3).repeat_interleave(4))
    assert -1 <= result.threshold <= 1


def test_the_length_of_training_that_rehearses_better_is_chosen() -> None:
    features, labels = clusters(8, 12)
    noise = F.normalize(torch.randn(features.shape, generator=torch.Generator().manual_seed(9)), dim=1)
    encoders = {
        epochs: lambda train, wanted, rows=rows: rows[torch.from_numpy(wanted)]
        for epochs, rows in ((0, noise), (5, features), (9, noise))
    }
    result = calibrate(labels, encoders, ONLINE, CONFIG, 0)
    assert result.epochs == 5 and len(result.trials) == 3 * CONFIG.grid
    assert result.threshold in [trial.threshold for trial in result.trials if trial.epochs == 5]


def test_one_class_is_refused() -> None:
    with pytest.raises(DataError, match="at least 2 known classes, got 1"):
        list(rehearsals(torch.zeros(5, dtype=torch.int64), CONFIG, 0))


def test_long_streams_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[rehearsals.__module__], "MOST_STREAMED", 7)
    _, labels = clusters(6, 10)
    assert [len(fold.stream) for fold in rehearsals(labels, CONFIG, 0)] == [7, 7]


def test_progress_counts_thresholds() -> None:
    features, labels = clusters(4, 6)
    listener = Listener()
    calibrate(labels, {0: lambda train, wanted: features[torch.from_numpy(wanted)]}, ONLINE, CONFIG, 0, listener)
    assert listener.done == CONFIG.grid
