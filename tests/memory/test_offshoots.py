"""Kinds that a known class took in leave it, if its labelled images are not like them."""

from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import fisher_exact

from talon_ocd.memory import Beliefs, Recent, TwoCovariance
from talon_ocd.memory.offshoots import chance, offshoot
from talon_ocd.memory.two_covariance import Floats
from tests.memory.worlds import drawn_members, drawn_model

FLAT = TwoCovariance(np.zeros(22), np.eye(22, 20), np.full(20, 1.0), np.inf)


def kinds(places: list[tuple[int, float]], seed: int = 0, model: TwoCovariance = FLAT) -> Floats:
    """So many images at each distance along the first coordinate."""
    random = np.random.default_rng(seed)
    rows = [random.normal(size=(number, model.size)) + place * np.eye(model.size)[0] for number, place in places]
    return np.concatenate(rows)


def leaving(members: Floats, labelled: Floats, most_chance: float = 1e-4) -> list[int]:
    found = offshoot(FLAT, members, labelled, float(len(labelled)), labelled.sum(axis=0), most_chance)
    return [] if found is None else np.flatnonzero(found).tolist()


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_chance_is_fishers_exact_test(found: int, others: int, like: int, unlike: int) -> None:
    expected = fisher_exact([[found, others], [like, unlike]], alternative="greater").pvalue
    assert chance(found, found + others, like, like + unlike) == pytest.approx(expected, rel=1e-9)


def test_chance_counts_the_ways_to_deal_a_half_out() -> None:
    found, members, like, labelled = 4, 6, 1, 5
    half = found + like
    ways = [more for more in range(half + 1) if more >= found]
    assert chance(found, members, like, labelled) == pytest.approx(
        sum(comb(members, more) * comb(labelled, half - more) for more in ways) / comb(members + labelled, half)
    )


def test_a_kind_that_labelled_images_are_not_like_leaves() -> None:
    members, labelled = kinds([(40, 0.0), (40, 6.0)]), kinds([(40, 0.0)], seed=1)
    assert leaving(members, labelled) == list(range(40, 80))


def test_images_of_the_class_stay_even_if_it_has_two_sides() -> None:
    both = kinds([(40, 0.0), (40, 6.0)])
    assert leaving(both, kinds([(20, 0.0), (20, 6.0)], seed=1)) == []
    assert leaving(kinds([(80, 0.0)]), kinds([(40, 0.0)], seed=1)) == []


@pytest.mark.parametrize(("number", "expected"), [(3, []), (40, list(range(40, 80)))])
def test_a_few_labelled_images_do_not_tell(number: int, expected: list[int]) -> None:
    assert leaving(kinds([(40, 0.0), (40, 6.0)]), kinds([(number, 0.0)], seed=1)) == expected


def test_less_chance_needs_more_images() -> None:
    members, labelled = kinds([(12, 0.0), (12, 6.0)]), kinds([(12, 0.0)], seed=1)
    assert leaving(members, labelled, 1e-2) == list(range(12, 24))
    assert leaving(members, labelled, 1e-7) == []


@pytest.mark.parametrize(("members", "labelled"), [(0, 20), (7, 20), (20, 0), (20, 2)])
def test_with_too_few_images_nothing_leaves(members: int, labelled: int) -> None:
    assert leaving(kinds([(members, 30.0)]), kinds([(labelled, 0.0)], seed=1)) == []


def test_a_class_that_people_emptied_loses_nothing() -> None:
    members, labelled = kinds([(40, 0.0), (40, 6.0)]), kinds([(40, 0.0)], seed=1)
    assert offshoot(FLAT, members, labelled, 0.0, np.zeros(20), 1e-4) is None


@given(st.integers(0, 9999))
def test_real_members_of_a_class_hardly_ever_leave(seed: int) -> None:
    model = drawn_model(12, seed)
    (rows,) = drawn_members(model, [100], seed + 1)
    found = offshoot(model, rows[40:], rows[:40], 40.0, rows[:40].sum(axis=0), 1e-6)
    assert found is None


def test_what_leaves_begins_a_category_and_sums_stay_those_of_the_members() -> None:
    labelled = [kinds([(40, 0.0)], seed=1), kinds([(40, -30.0)], seed=2)]
    members = np.concatenate([kinds([(40, 0.0), (40, 6.0)]), kinds([(30, -30.0)], seed=3)])
    answers = np.repeat([0, 1], [80, 30])
    counts, sums = np.array([40.0, 40.0]), np.stack([rows.sum(axis=0) for rows in labelled])
    beliefs, recent = Beliefs(FLAT, counts, sums, answer_weight=0.25), Recent(200, 20)
    for member, answer in zip(members, answers.tolist(), strict=True):
        beliefs.join(answer, member)
    recent.add(members, answers)
    assert recent.branch(beliefs, labelled, 1e-4).tolist() == [0]
    homes = recent.thoughts()[2]
    assert homes.tolist() == [0] * 40 + [2] * 40 + [1] * 30 and beliefs.size == 3 and beliefs.living == 3
    assert recent.thoughts()[1].tolist() == answers.tolist()  # answers stay
    np.testing.assert_allclose(beliefs.counts, [50.0, 47.5, 40.0])
    parts = [members[homes == slot].sum(axis=0) for slot in range(3)]
    np.testing.assert_allclose(beliefs.sums, [sums[0] + parts[0] / 4, sums[1] + parts[1] / 4, parts[2]])
    assert recent.branch(beliefs, labelled, 1e-4).tolist() == []  # once is enough


def test_two_classes_can_be_left_at_once_in_their_order() -> None:
    places = (0.0, -30.0)
    labelled = [kinds([(40, place)], seed=5 + number) for number, place in enumerate(places)]
    members = np.concatenate([kinds([(40, place), (40, place + 6.0)], seed=9) for place in places])
    beliefs = Beliefs(FLAT, np.full(2, 40.0), np.stack([rows.sum(axis=0) for rows in labelled]), answer_weight=0.25)
    recent, answers = Recent(200, 20), np.repeat([0, 1], 80)
    for member, answer in zip(members, answers.tolist(), strict=True):
        beliefs.join(answer, member)
    recent.add(members, answers)
    assert recent.branch(beliefs, labelled, 1e-4).tolist() == [0, 1]
    expected = [slot for slot, _ in product((0, 2, 1, 3), range(40))]
    assert recent.thoughts()[2].tolist() == expected
