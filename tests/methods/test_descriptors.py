"""RankStat and WTA: descriptors against slow twins, their number, and what training does to them."""

from __future__ import annotations

import math
from functools import partial
from itertools import combinations, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from talon_ocd.errors import ConfigError
from talon_ocd.methods import get_method
from talon_ocd.methods.base import Method, seeded
from talon_ocd.methods.codes import Describe
from talon_ocd.methods.descriptors import DescriptorRecipe, RankStatMethod, WtaMethod, largest, winners
from tests.methods.learning import BACKBONE, agreement, clean, labelled_digits
from tests.twins import losses as twin

# Few levels, so that ties are common.
rows = st.lists(st.lists(st.integers(-3, 3).map(float), min_size=12, max_size=12), min_size=1, max_size=20)
SMALL = DescriptorRecipe(mlp_width=32, batch_size=40, epochs=10, lr=0.05, dimensions=12)
METHODS: list[tuple[Method, Describe]] = [
    (RankStatMethod(SMALL), partial(largest, top=3)),
    (WtaMethod(SMALL), partial(winners, groups=3)),
]


def slow_largest(row: list[float], top: int) -> list[int]:
    left = list(range(len(row)))
    chosen = []
    for _ in range(top):
        best = left[0]
        for at in left:
            if row[at] > row[best]:
                best = at
        chosen.append(best)
        left.remove(best)
    return sorted(chosen)


def slow_winners(row: list[float], groups: int) -> list[int]:
    width = len(row) // groups
    return [row[at : at + width].index(max(row[at : at + width])) for at in range(0, len(row), width)]


@given(rows, st.integers(1, 12))
def test_largest_equals_its_slow_twin(values: list[list[float]], top: int) -> None:
    assert largest(np.array(values), top).tolist() == [slow_largest(row, top) for row in values]


@given(rows, st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_winners_equal_their_slow_twin(values: list[list[float]], groups: int) -> None:
    assert winners(np.array(values), groups).tolist() == [slow_winners(row, groups) for row in values]


@given(st.permutations(range(12)), st.floats(0.1, 10), st.floats(-5, 5))
def test_descriptors_see_ranks_only(ranks: list[int], scale: float, shift: float) -> None:
    values = np.array([ranks], dtype=float)
    for _, describe in METHODS:
        assert np.array_equal(describe(values), describe(np.exp(values / 4) * scale + shift))


def test_there_are_as_many_descriptors_as_published() -> None:
    sets = np.zeros((math.comb(32, 3), 32))
    for row, chosen in zip(sets, combinations(range(32), 3), strict=True):
        row[list(chosen)] = 1
    assert len(np.unique(largest(sets, 3), axis=0)) == 4960
    triples = np.zeros((16**3, 48))
    for row, (a, b, c) in zip(triples, product(range(16), repeat=3), strict=True):
        row[[a, 16 + b, 32 + c]] = 1
    assert len(np.unique(winners(triples, 3), axis=0)) == 4096


def test_loss_is_the_cross_entropy_of_the_first_view() -> None:
    with seeded(2):
        network, views = SMALL.network(BACKBONE, 3), torch.randn(2, 5, 8, 4, 4)
    labels = torch.tensor([0, 2, 1, 1, 0])
    expected = twin.cross_entropy(network.classifier(network(views[0])).tolist(), labels.tolist())
    assert SMALL.loss(network)(views, labels)["loss"].item() == pytest.approx(expected, rel=1e-5)
    assert SMALL.loss(network)(views.roll(1, 0), labels)["loss"].item() != pytest.approx(expected, rel=1e-3)


def test_an_image_alone_is_seen_twice() -> None:
    with seeded(2):
        network, views = SMALL.network(BACKBONE, 3), torch.randn(2, 1, 8, 4, 4)
    both = network.classifier(network(views.flatten(0, 1)))
    expected = F.cross_entropy(both, torch.tensor([2, 2]))
    torch.testing.assert_close(SMALL.loss(network)(views, torch.tensor([2]))["loss"], expected)


@pytest.mark.parametrize(("method", "describe"), METHODS)
def test_training_lowers_the_loss_and_unites_classes(method: Method, describe: Describe) -> None:
    with labelled_digits() as labelled:
        with seeded(1):
            untrained = SMALL.network(BACKBONE, labelled.classes)
        untrained.eval()
        trained = SMALL.fit(BACKBONE, labelled, seed=1)
        hidden, labels = clean(labelled), labelled.labels
    with torch.no_grad():
        before = agreement(untrained(hidden), labels, describe)
        after = agreement(trained.network(hidden), labels, describe)
    losses = [epoch["loss"] for epoch in trained.report["losses"]]
    assert losses[-1] < 0.5 * losses[0]
    assert after[0] - after[1] > 0.1 + before[0] - before[1]
    ids = method.stream(trained).observe(hidden).ids
    assert len(set(ids.tolist())) == len(np.unique(describe(trained.network(hidden).numpy()), axis=0))


@settings(deadline=None, max_examples=10)
@given(st.integers(1, 3))
def test_tiny_labelled_sets_train(count: int) -> None:
    with labelled_digits(count) as labelled:
        assert SMALL.fit(BACKBONE, labelled, seed=0).network(clean(labelled)).isfinite().all()


def test_registered_settings_are_the_published_ones() -> None:
    rank, wta = get_method("rankstat"), get_method("wta")
    assert isinstance(rank, RankStatMethod)
    assert isinstance(wta, WtaMethod)
    assert (rank.recipe.dimensions, rank.top) == (32, 3)
    assert (wta.recipe.dimensions, wta.groups) == (48, 3)
    assert (rank.recipe.with_epochs(5).epochs, rank.recipe.lr) == (5, 0.01)


def test_impossible_descriptors_are_refused() -> None:
    with pytest.raises(ConfigError, match="257 dimensions"):
        DescriptorRecipe(dimensions=257)
    with pytest.raises(ConfigError, match="top=13 of 12"):
        RankStatMethod(SMALL, top=13)
    with pytest.raises(ConfigError, match="5 groups"):
        WtaMethod(SMALL, groups=5)
