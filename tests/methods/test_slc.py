"""SLC against a loop over leaders, and its rehearsed thresholds on clusters that lie apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.config import CalibrationConfig
from talon_ocd.methods import get_method
from talon_ocd.methods.base import Trained
from talon_ocd.methods.slc import (
    LeaderStream,
    LinearNetwork,
    SlcMethod,
    SlcRecipe,
    leader_grid,
    leader_stream,
    leader_trials,
)
from talon_ocd.offline import Labelled, class_means
from talon_ocd.offline.calibrate import choose
from talon_ocd.offline.rehearse import Rehearsed, rehearsals
from tests.methods.learning import BACKBONE, clean, labelled_digits
from tests.offline.standin import Listener

QUICK = CalibrationConfig(rounds=1, orders=1, grid=8, try_untrained=False)
RECIPE = SlcRecipe(epochs=3, batch_size=32, calibration=QUICK)
KNOWN = 3


def unit_rows(seed: int, rows: int, size: int = 4) -> Tensor:
    return F.normalize(torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)), dim=1)


def clusters(classes: int, each: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.eye(16)[:classes]
    labels = torch.arange(classes).repeat_interleave(each)
    return F.normalize(centres[labels] + 0.05 * torch.randn(len(labels), 16, generator=generator), dim=1), labels


def slow_leaders(features: Tensor, threshold: float, first_id: int) -> list[int]:
    """Sequential leader clustering as the textbook has it."""
    leaders: list[Tensor] = []
    ids = []
    for feature in features.double():
        cosines = [float(feature @ leader) for leader in leaders]
        if cosines and max(cosines) >= threshold:
            ids.append(first_id + cosines.index(max(cosines)))
        else:
            leaders.append(feature)
            ids.append(first_id + len(leaders) - 1)
    return ids


def empty_stream(threshold: float) -> LeaderStream:
    return LeaderStream(nn.Identity(), leader_stream(torch.empty(0, 4), threshold), KNOWN)


@given(st.integers(0, 2**31 - 1), st.floats(-0.9, 0.99))
@settings(max_examples=30)
def test_leaders_equal_the_slow_loop_in_batches_of_any_size(seed: int, threshold: float) -> None:
    features = unit_rows(seed, 40)
    stream = empty_stream(threshold)
    answers = [stream.observe(part) for part in features.split(7)]
    ids = np.concatenate([part.ids for part in answers]).tolist()
    assert ids == slow_leaders(features, threshold, KNOWN)
    assert stream.size == max(ids) + 1 and stream.known == KNOWN


def test_the_first_image_leads_and_reserved_ids_are_never_given() -> None:
    stream = empty_stream(0.5)
    first = stream.observe(torch.eye(4)[:1])
    assert (first.ids.tolist(), first.founded.tolist(), first.runner_ups.tolist()) == ([KNOWN], [True], [-1])
    second = stream.observe(torch.tensor([[0.3, 1.0, 0.0, 0.0]]))
    assert (second.ids.tolist(), second.runner_ups.tolist()) == ([KNOWN + 1], [KNOWN])


def test_a_look_changes_nothing_and_a_saved_stream_goes_on() -> None:
    features = unit_rows(0, 60)
    stream, other = empty_stream(0.6), empty_stream(0.6)
    stream.observe(features[:30])
    looked = stream.decide(features[30:31])
    other.load_state_dict(stream.state_dict())
    answers, continued = stream.observe(features[30:]), other.observe(features[30:])
    assert looked.ids[0] == answers.ids[0] and np.array_equal(answers.ids, continued.ids)


def test_seeded_leaders_are_the_known_classes() -> None:
    facts = {"prototypes": torch.eye(4)[:KNOWN], "threshold_seeded": torch.tensor(0.5), "threshold": torch.tensor(0.7)}
    trained = Trained(BACKBONE, nn.Identity(), facts, ("a", "b", "c"))
    stream = SlcMethod(RECIPE, seed_with_class_means=True).stream(trained)
    assert stream.observe(torch.eye(4)).ids.tolist() == [0, 1, 2, 3] and stream.threshold == 0.5
    assert SlcMethod(RECIPE).stream(trained).observe(torch.eye(4)).ids.tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize("with_means", [False, True])
def test_rehearsals_find_clusters_that_lie_apart(with_means: bool) -> None:
    features, labels = clusters(8, 12)
    fold = Rehearsed([0, 1, 2, 3], class_means(features[labels < 4], labels[labels < 4], 4), features, labels)
    trials = leader_trials([fold], 0, CalibrationConfig(grid=20), with_means, seed=0)
    best = choose(trials)
    assert best.strict_all == 1.0 and best.found_ratio == 1.0
    grid = leader_grid([fold], 20, with_means)
    assert [trial.threshold for trial in trials] == grid == sorted(grid)


def test_both_starts_share_one_fit() -> None:
    plain, with_means = get_method("slc"), get_method("slc-seeded")
    assert plain.recipe.key == with_means.recipe.key and plain != with_means


def test_training_lowers_the_loss_and_depends_on_the_seed_only() -> None:
    with labelled_digits() as labelled:
        recipe = SlcRecipe(epochs=12, batch_size=32, calibration=QUICK)
        trained, again = (recipe.fit(BACKBONE, labelled, seed=4) for _ in range(2))
        losses = [epoch["loss"] for epoch in trained.report["losses"]]
        assert losses[-1] < 0.8 * losses[0]
        assert all(torch.equal(trained.facts[name], again.facts[name]) for name in trained.facts)
        logits = trained.network.classifier(trained.network(clean(labelled)))  # type: ignore[operator]
        assert (logits.argmax(dim=1) == labelled.labels).float().mean() > 0.7


class Watched(SlcRecipe):
    """Remembers which labels took part in every training."""

    trained_on: list[Tensor] = []  # noqa: RUF012 - shared on purpose

    def train(self, network: LinearNetwork, labelled: Labelled, *rest: object) -> dict[str, object]:
        self.trained_on.append(labelled.labels)
        return super().train(network, labelled, *rest)  # type: ignore[arg-type]


def test_a_rehearsal_trains_on_its_own_fold_only() -> None:
    Watched.trained_on.clear()
    with labelled_digits() as labelled:
        Watched(epochs=1, calibration=QUICK).fit(BACKBONE, labelled, seed=0)
        fold = next(rehearsals(labelled.labels, QUICK, seed=0))
        everything, part = Watched.trained_on
        assert torch.equal(everything, labelled.labels)
        assert torch.equal(part, labelled.labels[fold.train].unique(return_inverse=True)[1])
        assert len(part.unique()) == 2 and not set(fold.train) & set(fold.stream)


def test_one_class_falls_back_with_a_note() -> None:
    with labelled_digits() as labelled:
        one = Labelled(labelled.outputs, torch.zeros(len(labelled), dtype=torch.int64), ("0",), labelled.views)
        listener = Listener()
        trained = RECIPE.fit(BACKBONE, one, seed=0, progress=listener)
        assert trained.facts["threshold"] == 0.75 and "0.75" in listener.notes[0]
