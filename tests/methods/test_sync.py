"""SynC against a loop over classes, with the founder's id where it belongs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.methods.sync import SyncMethod, SyncRecipe, SyncStream, own_cosines
from tests.methods.learning import BACKBONE, clean, labelled_digits


def unit_rows(seed: int, rows: int, size: int = 6) -> Tensor:
    return F.normalize(torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)), dim=1)


def stream_of(seed: int, known: int = 3) -> SyncStream:
    thresholds = torch.rand(known, generator=torch.Generator().manual_seed(seed)) * 0.8
    return SyncStream(nn.Identity(), unit_rows(seed + 1, known), thresholds)


def slow_answers(features: Tensor, prototypes: Tensor, thresholds: Tensor) -> list[int]:
    """The rule as section 3.15 words it."""
    members = [(prototype.double(), float(threshold)) for prototype, threshold in zip(prototypes, thresholds)]  # noqa: B905
    ids = []
    for feature in features.double():
        margins = [float(feature @ prototype) - threshold for prototype, threshold in members]
        best = margins.index(max(margins))
        if margins[best] >= 0:
            ids.append(best)
        else:
            ids.append(len(members))
            members.append((feature, members[best][1]))
    return ids


@given(st.integers(0, 2**31 - 1))
@settings(max_examples=30)
def test_answers_equal_the_slow_loop(seed: int) -> None:
    stream, features = stream_of(seed), unit_rows(seed + 2, 50)
    prototypes, thresholds = unit_rows(seed + 1, 3), stream.thresholds.clone()
    ids = np.concatenate([stream.observe(part).ids for part in features.split(11)]).tolist()
    assert ids == slow_answers(features, prototypes, thresholds)
    assert stream.size == max(3, max(ids) + 1)


def test_a_founder_gets_the_id_of_its_own_category() -> None:
    stream = SyncStream(nn.Identity(), torch.eye(4)[:2], torch.tensor([0.9, 0.5]))
    answers = stream.observe(torch.tensor([[0.0, 0.1, 1.0, 0.0], [0.0, 0.0, 1.0, 0.1], [0.0, 0.0, 0.6, 0.8]]))
    assert answers.ids.tolist() == [2, 2, 2] and answers.founded.tolist() == [True, False, False]
    assert torch.allclose(stream.thresholds, torch.tensor([0.9, 0.5, 0.5]))  # of class 1, whose margin was larger


def test_statistics_equal_a_loop_and_a_lone_image_has_no_spread() -> None:
    features, prototypes = unit_rows(0, 9), unit_rows(1, 3)
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2])
    means, stds = own_cosines(features, labels, prototypes)
    for label in range(3):
        cosines = [float(z @ prototypes[label]) for z in features[labels == label]]
        assert means[label].item() == pytest.approx(np.mean(cosines), abs=1e-6)
        assert stds[label].item() == pytest.approx(np.std(cosines), abs=1e-6)
    assert stds[2] == 0


def test_more_deviations_open_fewer_categories() -> None:
    with labelled_digits() as labelled:
        trained = SyncRecipe(epochs=1).fit(BACKBONE, labelled, seed=0)
        hidden = clean(labelled)
        sizes = []
        for deviations in (0.0, 1.0, 3.0, 100.0):
            stream = SyncMethod(deviations=deviations).stream(trained)
            stream.observe(hidden)
            sizes.append(stream.size)
        assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1] == 4


def test_training_lowers_the_loss_and_depends_on_the_seed_only() -> None:
    with labelled_digits() as labelled:
        recipe = SyncRecipe(epochs=6, batch_size=32)
        trained, again = (recipe.fit(BACKBONE, labelled, seed=4) for _ in range(2))
        losses = [epoch["loss"] for epoch in trained.report["losses"]]
        assert losses[-1] < losses[0]
        assert all(torch.equal(trained.facts[name], again.facts[name]) for name in trained.facts)


def test_a_saved_stream_goes_on() -> None:
    features = unit_rows(5, 80)
    stream, other = stream_of(5), stream_of(5)
    stream.observe(features[:40])
    other.load_state_dict(stream.state_dict())
    assert np.array_equal(stream.observe(features[40:]).ids, other.observe(features[40:]).ids)


@pytest.mark.slow
def test_thousands_of_categories() -> None:
    stream = SyncStream(nn.Identity(), unit_rows(0, 100, 1280), torch.full((100,), 0.9))
    features = unit_rows(1, 3000, 1280)
    assert stream.observe(features).founded.all()
