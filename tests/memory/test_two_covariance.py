import copy
import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_ocd.errors import DataError
from talon_ocd.memory import TwoCovariance
from talon_ocd.memory.two_covariance import MOST_COUNTED
from tests.memory.test_prototypes import unit_rows
from tests.memory.worlds import TAILS, counts_and_sums, drawn_members, drawn_model
from tests.twins.evidence import log_density_of_members, log_density_of_next, next_member
from tests.twins.two_covariance import log_odds, same

sizes = st.lists(st.integers(0, 7), min_size=1, max_size=4)


@given(sizes, st.integers(1, 4), st.integers(0, 999))
@settings(max_examples=60)
def test_the_next_member_is_that_of_the_joint_gaussian(members: list[int], dims: int, seed: int) -> None:
    model = drawn_model(dims, seed)
    drawn = drawn_members(model, members, seed)
    means, variances, volumes = model.predictive(*counts_and_sums(drawn))
    for i, rows in enumerate(drawn):
        mean, variance = next_member(rows.tolist(), model.psi.tolist())
        np.testing.assert_allclose(means[i], mean, atol=1e-10)
        np.testing.assert_allclose(variances[i], variance, rtol=1e-10)
        assert abs(volumes[i] - 0.5 * np.log(variance).sum()) < 1e-10


@given(sizes, st.integers(1, 4), st.sampled_from(TAILS), st.integers(0, 999))
@settings(max_examples=60)
def test_log_odds_are_those_of_the_densities(members: list[int], dims: int, tail: float, seed: int) -> None:
    model = drawn_model(dims, seed, tail)
    drawn = drawn_members(model, members, seed)
    x = drawn_members(model, [len(members)], seed + 1)[0]
    psi = model.psi.tolist()
    wanted = [
        log_density_of_next(row.tolist(), rows.tolist(), psi, tail) - log_density_of_next(row.tolist(), [], psi, tail)
        for row, rows in zip(x, drawn, strict=True)
    ]
    np.testing.assert_allclose(log_odds(model, x, *counts_and_sums(drawn)), wanted, atol=1e-9)


def test_gaussian_log_odds_are_a_ratio_of_densities_of_all_data() -> None:
    model = drawn_model(3, 5)
    rows, x = drawn_members(model, [6, 1], 6)
    psi = model.psi.tolist()
    together = log_density_of_members([*rows.tolist(), x[0].tolist()], psi)
    apart = log_density_of_members(rows.tolist(), psi) + log_density_of_members(x.tolist(), psi)
    np.testing.assert_allclose(log_odds(model, x, *counts_and_sums([rows])), together - apart, atol=1e-9)


@pytest.mark.parametrize("tail", TAILS)
def test_a_category_without_members_is_a_new_one(tail: float) -> None:
    model = drawn_model(6, 0, tail)
    x = drawn_members(model, [9], 1)[0]
    odds = log_odds(model, x, np.zeros(9), np.zeros((9, 6)))
    np.testing.assert_allclose(odds, 0.0, atol=1e-12)


def test_more_members_at_one_place_speak_for_images_there_and_against_images_elsewhere() -> None:
    model = drawn_model(4, 3, 10.0)
    place = np.sqrt(model.psi)
    counts = np.array([1.0, 2.0, 5.0, 20.0])
    sums = counts[:, None] * place
    near = log_odds(model, np.tile(place, (4, 1)), counts, sums)
    far = log_odds(model, np.tile(-2 * place, (4, 1)), counts, sums)
    assert (np.diff(near) > 0).all() and near[0] > 0
    assert (np.diff(far) < 0).all() and far[0] < 0


@pytest.mark.parametrize("tail", TAILS)
def test_a_category_is_never_better_known_than_by_fifty_members(tail: float) -> None:
    model = drawn_model(5, 1, tail)
    x, place = drawn_members(model, [1, 1], 2)
    counts = np.array([MOST_COUNTED - 1, MOST_COUNTED, 3 * MOST_COUNTED])
    fewer, fifty, many = log_odds(model, np.tile(x, (3, 1)), counts, counts[:, None] * place).tolist()
    assert abs(fifty - many) < 1e-9 and abs(fifty - fewer) > 1e-6


@given(st.integers(0, 4), st.integers(0, 4), st.integers(1, 4), st.integers(0, 999))
@settings(max_examples=60)
def test_two_categories_are_one_by_the_densities_of_all_their_members(a: int, b: int, dims: int, seed: int) -> None:
    model = drawn_model(dims, seed)
    first, second = drawn_members(model, [a, b], seed)
    psi = model.psi.tolist()
    wanted = log_density_of_members([*first.tolist(), *second.tolist()], psi)
    wanted -= log_density_of_members(first.tolist(), psi) + log_density_of_members(second.tolist(), psi)
    odds = same(model, *counts_and_sums([first]), *counts_and_sums([second]))
    np.testing.assert_allclose(odds, wanted, atol=1e-9)
    np.testing.assert_allclose(odds, same(model, *counts_and_sums([second]), *counts_and_sums([first])), atol=1e-12)


def test_large_categories_are_compared_as_if_four_members_lay_at_their_means() -> None:
    model = drawn_model(2, 8)
    first, second = drawn_members(model, [80, 3], 9)
    four = np.tile(first.mean(axis=0), (4, 1))
    psi = model.psi.tolist()
    wanted = log_density_of_members([*four.tolist(), *second.tolist()], psi)
    wanted -= log_density_of_members(four.tolist(), psi) + log_density_of_members(second.tolist(), psi)
    odds = same(model, *counts_and_sums([first]), *counts_and_sums([second]))
    np.testing.assert_allclose(odds, wanted, atol=1e-8)


def test_coordinates_centre_scale_and_project() -> None:
    model = drawn_model(3, 2)
    features = unit_rows(7, 5, 0)
    for feature, found in zip(features, model.coordinates(features), strict=True):
        centred = feature.double().numpy() - model.centre
        np.testing.assert_allclose(found, (centred / np.linalg.norm(centred)) @ model.transform, rtol=1e-5, atol=1e-6)


def test_a_feature_at_the_centre_has_coordinates_too() -> None:
    model = replace(drawn_model(3, 2), centre=np.eye(5)[0])
    np.testing.assert_array_equal(model.coordinates(torch.eye(5)[:1]), np.zeros((1, 3)))


@pytest.mark.parametrize("size", [1, 2, 5, 7, 9, 10, 15, 16, 17, 40, 100, 235])
@pytest.mark.parametrize("feature_size", [20, 300, 768])
def test_coordinates_do_not_show_how_images_are_batched(size: int, feature_size: int) -> None:
    model, rows = drawn_model(size, 3, feature_size=feature_size), unit_rows(200, feature_size, 4)
    together = model.coordinates(rows)
    assert together.shape == (200, size)
    for batch in (1, 7, 64, 99):
        parts = np.concatenate([model.coordinates(part) for part in rows.split(batch)])
        np.testing.assert_array_equal(parts, together)
    slow = (rows.double() - torch.from_numpy(model.centre)).numpy()
    slow = slow / np.linalg.norm(slow, axis=1, keepdims=True) @ model.transform
    np.testing.assert_allclose(together, slow, atol=1e-4)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), replace])
def test_copies_of_a_model_that_was_used_give_the_same(copied: Callable[[TwoCovariance], TwoCovariance]) -> None:
    model, rows = drawn_model(100, 3, feature_size=700), unit_rows(3, 700, 4)
    before, volume = model.coordinates(rows), model.new_volume
    again = copied(model)
    np.testing.assert_array_equal(again.coordinates(rows), before)
    assert again.new_volume == volume and again.tail == model.tail


@pytest.mark.parametrize("tail", TAILS)
def test_state_round_trip_is_exact(tail: float) -> None:
    model = drawn_model(3, 4, tail)
    again = TwoCovariance.from_state_dict(model.state_dict())
    for name in ("centre", "transform", "psi"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    assert again.tail == tail and again.size == 3


@pytest.mark.parametrize(
    "change",
    [
        {"centre": torch.zeros(6, dtype=torch.float64)},
        {"psi": torch.ones(2, dtype=torch.float64)},
        {"psi": torch.ones(1, 3, dtype=torch.float64)},
        {"psi": torch.tensor([1.0, float("nan"), 1.0])},
        {"psi": torch.tensor([1.0, -2.0, 1.0])},
        {"transform": torch.full((5, 3), float("inf"))},
        {"transform": torch.zeros(3, 5)},
        {"tail": torch.tensor(0.0)},
        {"tail": torch.tensor(-3.0)},
        {"tail": torch.tensor(float("nan"))},
    ],
)
def test_parameters_that_do_not_belong_together_are_refused(change: dict[str, torch.Tensor]) -> None:
    state = drawn_model(3, 4).state_dict()
    with pytest.raises(DataError, match="load another copy"):
        TwoCovariance.from_state_dict({**state, **change})
