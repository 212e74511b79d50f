from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_ocd.errors import DataError
from talon_ocd.memory import Beliefs
from talon_ocd.memory.two_covariance import Floats, TwoCovariance
from tests.memory.worlds import TAILS, counts_and_sums, drawn_members, drawn_model
from tests.twins.evidence import log_density_of_members
from tests.twins.two_covariance import log_odds

sizes = st.lists(st.integers(0, 60), min_size=1, max_size=12)


def believed(model: TwoCovariance, sizes: list[int], seed: int) -> Beliefs:
    return Beliefs(model, *counts_and_sums(drawn_members(model, sizes, seed)))


def screened(beliefs: Beliefs, x: Floats) -> Floats:
    return beliefs.screen(beliefs.seen(x)).astype(np.float64)


def exact(beliefs: Beliefs, x: Floats) -> Floats:
    """Log-odds ``(B, K)`` of every image with every category."""
    columns = [beliefs.log_odds(x, np.full(len(x), category)) for category in range(beliefs.size)]
    return np.stack(columns, axis=1)


@given(sizes, st.integers(1, 9), st.sampled_from(TAILS), st.integers(0, 999))
@settings(max_examples=150)
def test_the_screen_ranks_categories_as_the_exact_evidence_does(
    members: list[int], dims: int, tail: float, seed: int
) -> None:
    model = drawn_model(dims, seed, tail)
    beliefs, x = believed(model, members, seed), drawn_members(model, [8], seed + 1)[0]
    order = screened(beliefs, x).argsort(axis=1, kind="stable")
    ranked = np.take_along_axis(exact(beliefs, x), order, axis=1)
    rounding = 1e-4 * (1.0 + np.abs(ranked[:, 1:]))
    empty = np.isneginf(ranked)
    assert ((ranked[:, :-1] >= ranked[:, 1:] - rounding) | empty[:, 1:]).all()
    assert (np.diff(empty.astype(int), axis=1) >= 0).all()  # the empty ones come last


@given(sizes, st.integers(1, 9), st.sampled_from(TAILS), st.integers(0, 999))
@settings(max_examples=60)
def test_scores_say_what_the_densities_are(members: list[int], dims: int, tail: float, seed: int) -> None:
    model = drawn_model(dims, seed, tail)
    beliefs, x = believed(model, members, seed), drawn_members(model, [8], seed + 1)[0]
    living = beliefs.counts > 0
    found = beliefs.log_density_of_scores(screened(beliefs, x))[:, living] + model.new_surprise(x)[:, None]
    np.testing.assert_allclose(found, exact(beliefs, x)[:, living], rtol=1e-4, atol=1e-3)
    assert np.isposinf(screened(beliefs, x)[:, ~living]).all()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(0, 3), st.integers(0, 999))
@settings(max_examples=60)
def test_members_that_come_one_by_one_are_those_that_come_at_once(homes: list[int], known: int, seed: int) -> None:
    model = drawn_model(3, seed, 9.0)
    labelled = drawn_members(model, [2] * known, seed)
    members = [list(rows) for rows in labelled]
    counts, sums = counts_and_sums(labelled) if known else (np.empty(0), np.empty((0, 3)))
    beliefs = Beliefs(model, counts, sums)
    for home, x in zip(homes, drawn_members(model, [len(homes)], seed + 1)[0], strict=True):
        if home < beliefs.size:
            beliefs.join(home, x)
            members[home].append(x)
        else:
            assert beliefs.found(x) == len(members)
            members.append([x])
    together = Beliefs(model, *counts_and_sums([np.stack(rows) for rows in members]))
    x = drawn_members(model, [5], seed + 2)[0]
    np.testing.assert_array_equal(beliefs.counts, together.counts)
    np.testing.assert_allclose(beliefs.sums, together.sums, atol=1e-12)
    np.testing.assert_allclose(exact(beliefs, x), exact(together, x), atol=1e-9)
    np.testing.assert_allclose(screened(beliefs, x), screened(together, x), rtol=1e-5)
    assert (beliefs.known, beliefs.size, beliefs.living) == (known, len(members), len(members))


def test_log_odds_are_those_of_the_model() -> None:
    model = drawn_model(4, 1, 7.0)
    beliefs, x = believed(model, [3, 1, 70], 2), drawn_members(model, [3], 3)[0]
    chosen = np.array([2, 0, 2])
    wanted = log_odds(model, x, beliefs.counts[chosen], beliefs.sums[chosen])
    np.testing.assert_allclose(beliefs.log_odds(x, chosen), wanted, atol=1e-10)


def test_some_categories_are_screened_like_all() -> None:
    model = drawn_model(4, 1, 7.0)
    beliefs, x = believed(model, [3, 1, 0, 5], 2), drawn_members(model, [6], 3)[0]
    seen = beliefs.seen(x)
    some = beliefs.screen(seen, np.array([3, 0]))
    np.testing.assert_allclose(some, beliefs.screen(seen)[:, [3, 0]], rtol=1e-6)


@pytest.mark.parametrize("tail", TAILS)
def test_a_category_that_lost_its_members_keeps_its_id_and_never_wins(tail: float) -> None:
    model = drawn_model(3, 4, tail)
    beliefs = believed(model, [2, 3], 5)
    left = beliefs.found(np.zeros(3))
    beliefs.put(np.array([left]), np.zeros(1), np.zeros((1, 3)))
    at_its_place = np.zeros((1, 3))
    assert screened(beliefs, at_its_place).argmin() != left
    assert screened(beliefs, at_its_place)[0, left] == np.inf
    assert np.isneginf(beliefs.log_odds(at_its_place, np.array([left])))
    assert (beliefs.size, beliefs.living) == (3, 2)
    assert beliefs.found(np.ones(3)) == 3  # its id is not used again


def test_whoever_keeps_nothing_can_begin_again() -> None:
    beliefs = believed(drawn_model(3, 4), [2, 3], 5)
    beliefs.keep(np.empty(0, np.int64))
    assert (beliefs.size, beliefs.living) == (0, 0) and screened(beliefs, np.ones((2, 3))).shape == (2, 0)
    assert beliefs.prediction(np.zeros(1, np.int64)).levels.tolist() == [0]
    assert beliefs.found(np.ones(3)) == 0 and beliefs.living == 1


@pytest.mark.parametrize("tail", TAILS)
def test_no_favour_is_too_large_for_an_empty_category(tail: float) -> None:
    beliefs = believed(drawn_model(3, 4, tail), [2, 0], 5)
    scores = beliefs.screen(beliefs.seen(np.ones((1, 3))))
    beliefs.favour(scores, 1e6)
    assert np.isfinite(scores[0, 0]) and scores[0, 1] == np.inf


def test_replacing_members_is_starting_with_them() -> None:
    model = drawn_model(3, 4, 12.0)
    beliefs, other = believed(model, [2, 3, 4], 5), believed(model, [5, 1, 2], 6)
    beliefs.put(np.arange(3), other.counts.copy(), other.sums.copy())
    x = drawn_members(model, [6], 7)[0]
    np.testing.assert_array_equal(screened(beliefs, x), screened(other, x))
    np.testing.assert_array_equal(exact(beliefs, x), exact(other, x))


def test_growth_keeps_everything() -> None:
    model = drawn_model(4, 0, 30.0)
    beliefs, added = believed(model, [2, 2, 2], 1), drawn_members(model, [500], 2)[0]
    x = drawn_members(model, [3], 3)[0]
    first = exact(beliefs, x)
    for row in added:
        beliefs.found(row)
    assert beliefs.size == 503 and beliefs.known == 3 and beliefs.living == 503
    np.testing.assert_array_equal(beliefs.sums[3:], added)
    np.testing.assert_array_equal(beliefs.counts, [2, 2, 2, *[1] * 500])
    np.testing.assert_allclose(exact(beliefs, x)[:, :3], first, atol=1e-12)
    fresh = Beliefs(model, beliefs.counts, beliefs.sums)
    np.testing.assert_allclose(screened(beliefs, x), screened(fresh, x), rtol=1e-5)


def test_a_copy_goes_its_own_way() -> None:
    model = drawn_model(3, 0, 30.0)
    beliefs = believed(model, [2, 2], 1)
    beliefs.found(np.ones(3))
    before, x = beliefs.state_dict(), np.zeros((1, 3))
    scores = screened(beliefs, x)
    copied = Beliefs.from_state_dict(model, beliefs.state_dict())
    np.testing.assert_array_equal(screened(copied, x), scores)
    copied.join(0, np.ones(3))
    copied.found(np.zeros(3))
    copied.put(np.arange(copied.size), copied.counts + 1.0, copied.sums + 1.0)
    assert all(torch.equal(value, before[name]) for name, value in beliefs.state_dict().items())
    np.testing.assert_array_equal(screened(beliefs, x), scores)
    assert (beliefs.size, copied.size, copied.known) == (3, 4, 2)


def test_what_was_given_stays_as_it_is() -> None:
    model = drawn_model(3, 0)
    counts, sums = counts_and_sums(drawn_members(model, [2, 2], 1))
    given_counts, given_sums = counts.copy(), sums.copy()
    Beliefs(model, counts, sums).join(0, np.ones(3))
    np.testing.assert_array_equal(counts, given_counts)
    np.testing.assert_array_equal(sums, given_sums)


def test_state_round_trip_is_exact() -> None:
    model = drawn_model(3, 0, 11.0)
    beliefs = believed(model, [2, 0], 1)
    beliefs.found(np.ones(3))
    again = Beliefs.from_state_dict(model, beliefs.state_dict())
    assert (again.known, again.size, again.living) == (2, 3, 2)
    np.testing.assert_array_equal(again.sums, beliefs.sums)
    x = drawn_members(model, [4], 2)[0]
    np.testing.assert_array_equal(screened(again, x), screened(beliefs, x))


Change = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


@pytest.mark.parametrize(
    "change",
    [
        lambda state: {"sums": state["sums"][:, :2]},
        lambda state: {"sums": state["sums"][:2]},
        lambda state: {"counts": state["counts"][None]},
        lambda state: {"counts": -state["counts"]},
        lambda state: {"counts": state["counts"] * float("nan")},
        lambda state: {"sums": state["sums"] + float("inf")},
        lambda state: {"known": torch.tensor(4)},
        lambda state: {"known": torch.tensor(-1)},
    ],
)
def test_a_state_that_does_not_fit_together_is_refused(change: Change) -> None:
    model = drawn_model(3, 0)
    state = believed(model, [2, 2, 1], 1).state_dict()
    with pytest.raises(DataError, match="load another copy"):
        Beliefs.from_state_dict(model, {**state, **change(state)})


@given(st.integers(0, 12), st.integers(1, 4), st.integers(1, 4), st.integers(0, 999))
@settings(max_examples=60)
def test_the_evidence_of_two_groupings_differs_as_the_density_of_all_members_does(
    images: int, groups: int, dims: int, seed: int
) -> None:
    model = drawn_model(dims, seed)
    rows, random = drawn_members(model, [images], seed)[0], np.random.default_rng(seed)
    found, wanted = [], []
    for _ in range(2):
        home = random.integers(0, groups, images)
        members = [rows[home == group] for group in range(groups)]
        found.append(Beliefs(model, *counts_and_sums(members)).log_evidence())
        wanted.append(sum(log_density_of_members(group.tolist(), model.psi.tolist()) for group in members))
    np.testing.assert_allclose(found[1] - found[0], wanted[1] - wanted[0], atol=1e-8 * (1.0 + abs(wanted[0])))


def test_a_copy_learns_by_itself() -> None:
    beliefs = believed(drawn_model(3, 0), [4, 5], 0)
    counts, other = beliefs.counts.copy(), beliefs.copy()
    other.join(1, np.ones(3))
    other.found(np.ones(3))
    assert (other.size, other.living, other.known) == (3, 3, 2) and other.model is beliefs.model
    assert (beliefs.size, beliefs.living) == (2, 2) and (beliefs.counts == counts).all()
