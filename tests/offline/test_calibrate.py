import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd import discover_features
from talon_ocd.config import CalibrationConfig, OnlineConfig, TalonConfig
from talon_ocd.errors import DataError
from talon_ocd.memory import PrototypeMemory
from talon_ocd.metrics import strict_accuracy
from talon_ocd.offline import calibrate, class_means, estimate, rescaled
from talon_ocd.offline.calibrate import (
    FARTHER,
    OFFSETS,
    UNTOLD,
    Calibration,
    _folds,
    pays,
    try_offsets,
    weighed,
)
from talon_ocd.offline.rehearse import Trial, _score, encoded, rehearsals, try_thresholds
from talon_ocd.online import EvidenceRule, FeatureStream
from tests.offline.standin import Listener

CONFIG = CalibrationConfig()
EVIDENCE = TalonConfig(calibration=CONFIG)
COSINE = TalonConfig(online=OnlineConfig(rule="cosine"), calibration=CONFIG)


def clusters(classes: int, each: int, spread: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit features ``(N, 16)`` around random directions, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, 16, generator=generator)
    labels = torch.arange(classes).repeat_interleave(each)
    return F.normalize(centres[labels] + spread * torch.randn(len(labels), 16, generator=generator), dim=1), labels


def run(features: Tensor, labels: Tensor, config: TalonConfig = COSINE, seed: int = 0) -> Calibration:
    return calibrate(labels, {0: lambda train, wanted: features[torch.from_numpy(wanted)]}, config, seed)


def streamed(features: Tensor, labels: Tensor, known: Tensor, config: TalonConfig) -> list[list[int]]:
    """Ids that each class gets in a stream of everything, after a rehearsal on the ``known`` images."""
    result = run(features[known], labels[known], config)
    memory = PrototypeMemory(class_means(features[known], labels[known], int(labels[known].max()) + 1))
    if config.online.by_evidence:
        evidence = estimate(features[known], labels[known], config.evidence).with_offset(result.threshold)
        evidence = rescaled(evidence, result.residuals, config.evidence.heavy_tails)
        stream = FeatureStream(memory, config.online, rule=EvidenceRule(evidence, config.evidence))
    else:
        stream = FeatureStream(memory, OnlineConfig(threshold=result.threshold))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    ids = torch.tensor([decision.category for decision in stream.observe_many(features[order])])
    return [ids[labels[order] == label].unique().tolist() for label in range(int(labels.max()) + 1)]


@pytest.mark.parametrize("config", [COSINE, EVIDENCE], ids=["cosine", "evidence"])
def test_separable_clusters_are_all_discovered_with_what_was_chosen(config: TalonConfig) -> None:
    features, labels = clusters(16, 20)
    found = streamed(features, labels, labels < 8, config)
    assert found[:8] == [[label] for label in range(8)]
    assert sorted(found[8:]) == [[category] for category in range(8, 16)]


def test_the_threshold_is_the_best_of_a_grid_that_is_reported() -> None:
    result = run(*clusters(6, 10, spread=0.4))
    assert result.rule == "cosine" and not len(result.residuals)
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


def test_offsets_are_rehearsed_and_reported_with_the_spread_of_unseen_images() -> None:
    result = run(*clusters(6, 30, spread=0.5), EVIDENCE)
    assert result.rule == "evidence" and [trial.threshold for trial in result.trials] == list(OFFSETS)
    found = [trial.found_ratio for trial in result.trials]
    assert found == sorted(found) and found[0] < 1 < found[-1]
    assert OFFSETS[0] < result.threshold < OFFSETS[-1]
    assert len(result.residuals) == 3 * 4 * 10  # rounds, known classes, images not trained on
    assert "residuals" not in result.to_dict()


def trials(
    epochs: int, accuracy: list[float], found: list[float] | None = None, rounds: tuple[float, ...] = (-0.2, 0.0, 0.2)
) -> list[Trial]:
    """Candidates with such accuracies; ``rounds`` is how much easier or harder each round is."""
    ratios = [1.0 + at for at in range(len(accuracy))] if found is None else found
    both = enumerate(zip(accuracy, ratios, strict=True))
    return [
        Trial(epochs, OFFSETS[at], value, 0.0, 0.0, ratio, 0.1, tuple(value + ease for ease in rounds))
        for at, (value, ratio) in both
    ]


def test_the_offset_is_a_mean_in_which_a_point_of_accuracy_counts_e_times() -> None:
    accuracy = [0.58, 0.6, 0.59, 0.3]
    parts = [(math.exp(100 * value), offset) for value, offset in zip(accuracy, OFFSETS, strict=False)]
    expected = sum(weight * offset for weight, offset in parts) / sum(weight for weight, _ in parts)
    assert weighed(trials(0, accuracy))[1] == pytest.approx(expected)
    assert weighed(trials(0, [0.3, 0.55, 0.6, 0.55, 0.3]))[1] == pytest.approx(OFFSETS[2])
    assert weighed(trials(0, [0.9, 0.2, 0.1]))[1] == pytest.approx(OFFSETS[0])
    assert weighed(trials(0, [0.5] * len(OFFSETS)))[1] == pytest.approx(np.mean(OFFSETS))  # says nothing


def test_training_must_pay_in_the_same_rounds() -> None:
    untrained = trials(0, [0.1, 0.5, 0.2])
    assert weighed(untrained + trials(9, [0.1, 0.2, 0.53]))[0] == 9  # rounds differ, but each one gains
    assert weighed(untrained + trials(9, [0.65, 0.4, 0.65]))[0] == 9  # a dip between two good ones
    assert weighed(trials(0, [0.5] * 3) + trials(9, [0.1, 0.56, 0.1]))[0] == 9  # bad offsets don't count
    assert weighed(trials(9, [0.5, 0.2]) + trials(0, [0.5, 0.2]))[0] == 0
    assert weighed(untrained + trials(9, [0.1, 0.2, 0.59], rounds=(0.2, 0.0, -0.2)))[0] == 0  # better, not surely
    assert not pays(np.array([0.04, 0.0, 0.01, -0.01])) and pays(np.array([0.04, 0.03, 0.05, 0.01]))


def test_offsets_that_find_too_few_categories_count_less_or_nothing_if_others_are_nearly_as_good() -> None:
    floor = [0.6, 0.6, 0.6, 0.6, 0.6]  # everything joins known classes, and that looks fair
    _, offset = weighed(trials(0, floor, [0.7, 0.8, 0.95, 1.1, 1.4]))
    assert offset == pytest.approx((OFFSETS[3] + OFFSETS[4]) / 2)
    _, offset = weighed(trials(0, floor, [0.5, 0.6, 0.7, 0.975, 1.4]))
    assert offset == pytest.approx((OFFSETS[3] + 2 * OFFSETS[4]) / 3)
    for few in ([0.5, 0.6, 0.7, 0.8, 0.9], [0.5, 0.6, 0.7, 0.8, 0.951]):  # none finds enough, or hardly
        assert weighed(trials(0, floor, few))[1] == pytest.approx(OFFSETS[2])
    _, offset = weighed(trials(0, [0.6, 0.6, 0.6, 0.6, 0.2], [0.9, 0.9, 0.9, 0.9, 1.0]))  # enough, but bad
    assert offset == pytest.approx((OFFSETS[0] + OFFSETS[3]) / 2)


def test_larger_offsets_follow_if_the_best_seems_to_be_among_them() -> None:
    def tried(best: float, enough: float) -> list[float]:
        """Offsets that are tried if accuracy is best at one of them, and enough categories are found from one on."""

        def rehearse(offsets: Sequence[float]) -> list[Trial]:
            rows = [(offset, 0.8 - 0.01 * abs(offset - best), 1.0 + 0.1 * (offset - enough)) for offset in offsets]
            return [Trial(0, offset, value, 0.0, 0.0, found, 0.1, (value,) * 3) for offset, value, found in rows]

        found = try_offsets(rehearse)
        assert abs(weighed(found)[1] - best) < 2.0
        return [trial.threshold for trial in found]

    assert tried(best=1.0, enough=-2.0) == list(OFFSETS)
    assert tried(best=4.0, enough=4.0) == list(OFFSETS)
    assert tried(best=5.9, enough=6.1) == list(OFFSETS)  # larger ones are worse
    assert tried(best=9.0, enough=3.0) == [*OFFSETS, *FARTHER]
    assert tried(best=20.0, enough=17.0) == [*OFFSETS, *FARTHER]
    assert tried(best=8.0, enough=6.1) == [*OFFSETS, *FARTHER]


def test_larger_offsets_follow_if_even_the_largest_finds_too_few_categories() -> None:
    def rehearse(offsets: Sequence[float]) -> list[Trial]:
        rows = [(offset, 0.4 if offset < 12 else 0.6, 0.7 if offset < 12 else 1.1) for offset in offsets]
        return [Trial(0, offset, value, 0.0, 0.0, found, 0.1, (value,) * 3) for offset, value, found in rows]

    assert weighed(try_offsets(rehearse))[1] == pytest.approx(22.0)


def test_two_names_of_one_kind_do_not_take_the_offset_away() -> None:
    features, labels = clusters(10, 30)
    second = (labels < 2) & (torch.arange(len(labels)) % 2 == 1)
    listener = Listener()
    result = calibrate(
        torch.where(second, labels + 10, labels),
        {0: lambda train, wanted: features[torch.from_numpy(wanted)]},
        EVIDENCE,
        0,
        listener,
    )
    assert listener.done == len(FARTHER)  # too few are found, so that larger ones are looked at last
    assert [trial.threshold for trial in result.trials] == list(OFFSETS) and result.threshold < OFFSETS[-1]


@pytest.mark.parametrize("config", [COSINE, EVIDENCE], ids=["cosine", "evidence"])
def test_the_same_seed_gives_the_same_table_and_leaves_global_randomness_alone(config: TalonConfig) -> None:
    features, labels = clusters(6, 10, spread=0.5)
    state: Any = np.random.get_state()
    torch_state = torch.get_rng_state()
    first, again = (run(features, labels, config, seed=5) for _ in range(2))
    assert first.to_dict() == again.to_dict() != run(features, labels, config, seed=6).to_dict()
    assert np.array_equal(first.residuals, again.residuals)
    after: Any = np.random.get_state()
    assert np.array_equal(state[1], after[1]) and torch.equal(torch_state, torch.get_rng_state())


@pytest.mark.parametrize("config", [COSINE, EVIDENCE], ids=["cosine", "evidence"])
def test_a_head_never_sees_what_it_is_asked_about(config: TalonConfig) -> None:
    features, labels = clusters(6, 10)
    asked: list[tuple[set[int], set[int]]] = []

    def encode_fold(train: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> Tensor:
        asked.append((set(train.tolist()), set(wanted[len(train) :].tolist())))
        return features[torch.from_numpy(wanted)]

    calibrate(labels, {0: encode_fold}, config, 0)
    novel = []
    for train, stream in asked:
        assert not train & stream and train | stream == set(range(60))
        trained = {int(labels[i]) for i in train}
        novel.append(set(range(6)) - trained)
        assert len(trained) == (3 if config is COSINE else 4) and {int(labels[i]) for i in stream} == set(range(6))
    assert novel[0] != novel[1]
    assert config is COSINE or set.union(*novel) == set(range(6))  # every class is held out once


@pytest.mark.parametrize("sizes", [[5, 5], [1, 1], [1, 5], [1, 1, 1], [2, 1, 30]])
@pytest.mark.parametrize("config", [COSINE, EVIDENCE], ids=["cosine", "evidence"])
def test_few_and_small_classes_work(sizes: list[int], config: TalonConfig) -> None:
    labels = torch.cat([torch.full((size,), label) for label, size in enumerate(sizes)])
    features = F.normalize(torch.randn(len(labels), 16, generator=torch.Generator().manual_seed(0)), dim=1)
    result = run(features, labels, config)
    assert result.rule == "cosine"  # one class, or one image of each, says nothing about spread
    assert result.threshold in [trial.threshold for trial in result.trials]


def test_two_classes_and_three_images_are_enough_to_rehearse_evidence() -> None:
    features, labels = clusters(3, 4)
    keep = torch.arange(12) != 11
    keep[10] = False  # each round trains on two thirds of two classes: twice on two images and one
    result = run(features[keep], labels[keep], EVIDENCE)
    assert result.rule == "evidence" and (result.rounds, result.held_out) == (3, 1)


@pytest.mark.parametrize("config", [COSINE, EVIDENCE], ids=["cosine", "evidence"])
def test_equal_features_still_give_a_threshold(config: TalonConfig) -> None:
    result = run(torch.eye(4)[0].expand(16, 4), torch.arange(4).repeat_interleave(4), config)
    assert result.rule == config.online.rule
    assert min(OFFSETS) <= result.threshold <= (1 if config is COSINE else max(OFFSETS))


def test_the_length_of_training_that_rehearses_better_is_chosen() -> None:
    features, labels = clusters(8, 12)
    noise = F.normalize(torch.randn(features.shape, generator=torch.Generator().manual_seed(9)), dim=1)
    encoders = {
        epochs: lambda train, wanted, rows=rows: rows[torch.from_numpy(wanted)]
        for epochs, rows in ((0, noise), (5, features), (9, noise))
    }
    result = calibrate(labels, encoders, COSINE, 0)
    assert result.epochs == 5 and len(result.trials) == 3 * CONFIG.grid
    assert result.threshold in [trial.threshold for trial in result.trials if trial.epochs == 5]
    assert calibrate(labels, encoders, EVIDENCE, 0).epochs == 5


def test_one_class_is_refused() -> None:
    with pytest.raises(DataError, match="at least 2 known classes, got 1"):
        list(rehearsals(torch.zeros(5, dtype=torch.int64), CONFIG, 0))


def test_long_streams_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[rehearsals.__module__], "MOST_STREAMED", 7)
    _, labels = clusters(6, 10)
    assert [len(fold.stream) for fold in rehearsals(labels, CONFIG, 0)] == [7, 7]


@pytest.mark.parametrize(("most", "each"), [(40, 10), (30, 10), (29, 9), (12, 5)])
def test_training_for_a_rehearsal_is_cut_but_leaves_each_class_five_images(
    monkeypatch: pytest.MonkeyPatch, most: int, each: int
) -> None:
    monkeypatch.setattr(sys.modules[rehearsals.__module__], "MOST_TRAINED", most)
    labels = torch.arange(6).repeat_interleave(20)
    for fold in rehearsals(labels, CONFIG, 0):  # three classes are held out, half of the others' images trained on
        sizes = torch.bincount(labels[fold.train])
        assert sizes[sizes > 0].tolist() == [each] * 3
        assert not set(fold.stream) & set(fold.train)


def test_what_is_not_trained_on_for_its_number_is_not_streamed_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else known classes were the more common in rehearsals, the more images are labelled."""
    labels = torch.arange(6).repeat_interleave(20)
    all_trained = list(rehearsals(labels, CONFIG, 0, 2 / 3))
    assert [(len(fold.train), len(fold.stream)) for fold in all_trained] == [(3 * 13, 3 * 7 + 60)] * 2
    monkeypatch.setattr(sys.modules[rehearsals.__module__], "MOST_TRAINED", 18)
    for fold, whole in zip(rehearsals(labels, CONFIG, 0, 2 / 3), all_trained, strict=True):
        assert len(fold.train) == 18 and set(fold.train) < set(whole.train)
        assert np.array_equal(fold.stream, whole.stream)


@pytest.mark.parametrize(("images", "orders"), [(9, 12), (90, 6), (150, 4)])
def test_short_streams_are_answered_in_more_orders(images: int, orders: int) -> None:
    features, labels = clusters(6, images)  # two classes held out, a third of the others' images besides
    assert {len(trial.runs) for trial in run(features, labels, EVIDENCE).trials} == {3 * orders}
    more = replace(EVIDENCE, calibration=replace(CONFIG, orders=orders + 1))
    assert {len(trial.runs) for trial in run(features, labels, more).trials} == {3 * orders + 3}


def test_progress_counts_thresholds() -> None:
    features, labels = clusters(4, 6)
    listener = Listener()
    for config, number in ((COSINE, CONFIG.grid), (EVIDENCE, len(OFFSETS))):
        calibrate(labels, {0: lambda train, wanted: features[torch.from_numpy(wanted)]}, config, 0, listener)
        assert listener.done == number


def test_few_classes_hardly_move_the_offset() -> None:
    features, labels = clusters(6, 10, spread=0.5)
    result = run(features, labels, EVIDENCE)
    own = [trial for trial in result.trials if trial.epochs == result.epochs]
    assert result.threshold == pytest.approx(weighed(own)[1] * 6 / (6 + UNTOLD))


def test_who_founds_a_category_is_not_right_by_that() -> None:
    features, labels = clusters(6, 12, spread=0.4)
    fold = next(rehearsals(labels, CONFIG, 0, 2 / 3))
    made = encoded(fold, labels, lambda train, wanted: features[torch.from_numpy(wanted)], EVIDENCE.evidence)
    trials = try_thresholds([made], [-1e6, 0.0, 1e6], EVIDENCE, epochs=0, orders=2, seed=0)
    everything_is_known, usual, everything_is_new = trials
    assert everything_is_new.strict_all == everything_is_new.strict_new == 0.0
    assert everything_is_new.found_ratio == len(fold.stream) / 6
    assert everything_is_known.found_ratio <= 0.5 < everything_is_known.strict_all
    assert 0.5 < usual.strict_all <= 1.0


def test_only_the_second_half_of_a_stream_is_scored() -> None:
    features, labels = clusters(6, 12)
    fold = next(rehearsals(labels, CONFIG, 0, 2 / 3))
    made = encoded(fold, labels, lambda train, wanted: features[torch.from_numpy(wanted)], EVIDENCE.evidence)
    order = np.arange(len(fold.stream))
    assert _score(made, order, EVIDENCE, 0.0, True) == [1.0, 1.0, 1.0, 1.0]
    truth = made.truth.clone()
    truth[: len(truth) // 2] = (truth[: len(truth) // 2] + 1) % 6  # wrong answers in the first half only
    assert _score(replace(made, truth=truth), order, EVIDENCE, 0.0, True) == [1.0, 1.0, 1.0, 1.0]
    assert _score(replace(made, truth=truth, evidence=None), order, COSINE, 0.7, True)[0] < 0.9  # as the paper scores


@pytest.mark.parametrize("images", [3, 5])
def test_few_labelled_images_a_class_do_not_shatter_the_stream(images: int) -> None:
    """A rehearsal has one or two images of each known class then: were founders right, any number of them would do."""
    random = np.random.default_rng(0)
    centres, known = random.normal(size=(60, 64)), np.repeat(np.arange(30), images)
    labelled = centres[known] + 1.5 * random.normal(size=(len(known), 64))
    truth = random.permutation(np.repeat(np.arange(60), 12))
    ids = discover_features(labelled, known, centres[truth] + 1.5 * random.normal(size=(720, 64)))
    assert 30 < len(np.unique(ids)) < 90
    assert strict_accuracy(truth, ids, range(30)).all > 0.4


def test_what_to_expect_is_what_the_nearest_trial_reached() -> None:
    features, labels = clusters(8, 12, spread=0.4)
    result = run(features, labels, EVIDENCE)
    near = result.nearest
    assert near in result.trials and near.epochs == result.epochs
    assert abs(near.threshold - result.threshold) == min(abs(one.threshold - result.threshold) for one in result.trials)
    assert result.to_dict()["expected"] == {"all": near.strict_all, "old": near.strict_old, "new": near.strict_new}
    assert not list(result.warnings(by_evidence=True))


def test_what_to_expect_is_what_that_length_of_training_reached() -> None:
    def reached(epochs: int, threshold: float) -> Trial:
        return Trial(epochs, threshold, 0.1 * epochs, 0.0, 0.0, 1.0, 0.0)

    table = tuple(reached(epochs, threshold) for epochs in (0, 5) for threshold in (epochs / 10, 2.0))
    for epochs, threshold, near in ((0, 0.4, 0.0), (5, 0.1, 0.5), (0, 1.9, 2.0), (5, 1.9, 2.0)):
        found = Calibration("evidence", threshold, epochs, table, 3, 2, np.empty((0, 0)))
        assert found.nearest == reached(epochs, near)


def test_people_are_warned_of_what_can_not_be_told_apart() -> None:
    noise = F.normalize(torch.randn(80, 16, generator=torch.Generator().manual_seed(0)), dim=1)
    hopeless = run(noise, torch.arange(8).repeat_interleave(10), EVIDENCE)
    assert ["hard to tell apart" in one for one in hopeless.warnings(by_evidence=True)] == [True]
    assert not list(hopeless.warnings(by_evidence=False))
    few = run(*clusters(3, 1), EVIDENCE)
    assert few.rule == "cosine" and "too few labelled images" in next(few.warnings(by_evidence=True))


@pytest.mark.parametrize(("classes", "held_out"), [(4, 1), (6, 2), (7, 2), (10, 3)])
def test_a_third_held_out_makes_three_rounds_which_hold_nearly_each_class_out(classes: int, held_out: int) -> None:
    labels = torch.arange(classes).repeat_interleave(3)
    folds, _ = _folds(labels, EVIDENCE, 0)
    novel = [set(range(classes)) - set(labels[fold.train].tolist()) for fold in folds]
    assert [len(held) for held in novel] == [held_out] * 3
    assert len(set.union(*novel)) == 3 * held_out


def test_no_more_rounds_than_it_takes_to_hold_every_class_out() -> None:
    features, labels = clusters(7, 4)
    config = replace(EVIDENCE, evidence=replace(EVIDENCE.evidence, rehearse_new=0.001))
    assert run(features, labels, config).rounds == 7
