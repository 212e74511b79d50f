import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_ocd.memory import Beliefs, Recent
from talon_ocd.memory.beliefs import Ints
from talon_ocd.memory.two_covariance import Floats, TwoCovariance
from tests.memory.worlds import TAILS, drawn_members, drawn_model
from tests.twins.evidence import SlowEvidence

CALM = TwoCovariance(np.zeros(2), np.eye(2), np.full(2, 9.0), np.inf)
"""Two coordinates: members lie around their mean with standard deviation 1, means around 0 with 3."""


def remembered(
    model: TwoCovariance, labelled: list[Floats], images: Floats, homes: Ints, categories: int, capacity: int = 100
) -> tuple[Recent, Beliefs]:
    """Images that were answered with their homes, and what is believed of the categories then."""
    counts, sums = np.zeros(categories), np.zeros((categories, model.size))
    for category, rows in enumerate(labelled):
        counts[category], sums[category] = len(rows), rows.sum(axis=0)
    np.add.at(counts, homes, 1.0)
    np.add.at(sums, homes, images)
    recent = Recent(capacity, model.size)
    recent.add(images, homes)
    return recent, Beliefs(model, counts, sums)


def check_sums(recent: Recent, beliefs: Beliefs, labelled: list[Floats], images: Floats) -> None:
    """Counts and sums are those of the labelled images and of the present homes."""
    _, _, homes = recent.thoughts()
    for category in range(beliefs.size):
        rows = images[homes == category]
        known = labelled[category] if category < len(labelled) else np.empty((0, images.shape[1]))
        assert beliefs.counts[category] == len(rows) + len(known)
        np.testing.assert_allclose(beliefs.sums[category], rows.sum(axis=0) + known.sum(axis=0), atol=1e-9)


@given(
    st.integers(1, 3),
    st.integers(0, 4),
    st.integers(0, 25),
    st.integers(1, 3),
    st.sampled_from(TAILS),
    st.floats(-6.0, 6.0),
    st.integers(0, 9999),
)
@settings(max_examples=150)
def test_second_thoughts_are_those_of_the_slow_twin(
    known: int, discovered: int, images: int, sweeps: int, tail: float, hurdle: float, seed: int
) -> None:
    model, random = drawn_model(2, seed, tail), np.random.default_rng(seed)
    labelled = drawn_members(model, [2] * known, seed)
    true = random.integers(0, known + discovered, images)
    drawn = np.stack(drawn_members(model, [images] * (known + discovered), seed))  # the means are the labelled ones'
    rows = drawn[true, np.arange(images)]
    homes = np.where(random.random(images) < 0.3, random.integers(0, known + discovered, images), true)
    recent, beliefs = remembered(model, labelled, rows, homes, known + discovered)
    slow = SlowEvidence(
        [part.tolist() for part in labelled], model.psi.tolist(), tail, images=rows.tolist(),
        homes=homes.tolist(), founders=list(range(discovered)), answer_weight=1.0,
    )  # fmt: skip
    moves = recent.rethink(beliefs, hurdle, sweeps)
    assert moves == slow.think_again(sweeps, hurdle)
    positions, answers, now = recent.thoughts()
    assert (
        now.tolist() == slow.homes and answers.tolist() == homes.tolist() and positions.tolist() == list(range(images))
    )
    check_sums(recent, beliefs, labelled, rows)


@pytest.mark.parametrize("half", [1, 2, 5])
def test_halves_of_one_cluster_become_one_and_do_not_change_places(half: int) -> None:
    images, homes = np.tile([6.0, 0.0], (2 * half, 1)), np.repeat([2, 1], half)
    recent, beliefs = remembered(CALM, [np.tile([-6.0, 0.0], (3, 1))], images, homes, 3)
    assert recent.rethink(beliefs, hurdle=-1.0, sweeps=1) == half
    assert recent.thoughts()[2].tolist() == [1] * 2 * half and beliefs.counts.tolist() == [3.0, 2.0 * half, 0.0]


def test_a_planted_mistake_moves_and_its_answer_stays() -> None:
    left, right = np.tile([-6.0, 0.0], (4, 1)), np.tile([6.0, 0.0], (4, 1))
    images, homes = np.concatenate([left, right]), np.array([2, 2, 2, 2, 3, 3, 3, 2])
    recent, beliefs = remembered(CALM, [np.zeros((3, 2)), np.zeros((3, 2))], images, homes, 4)
    assert recent.rethink(beliefs, hurdle=0.0, sweeps=2) == 1
    _, answers, now = recent.thoughts()
    assert answers.tolist() == homes.tolist() and now.tolist() == [2, 2, 2, 2, 3, 3, 3, 3]
    assert beliefs.counts.tolist() == [3, 3, 4, 4]
    np.testing.assert_allclose(beliefs.sums[2:], [[-24.0, 0.0], [24.0, 0.0]], atol=1e-12)
    assert recent.rethink(beliefs, hurdle=0.0, sweeps=2) == 0


@pytest.mark.parametrize(("hurdle", "moves"), [(0.0, 1), (50.0, 0)])
def test_an_image_alone_stays_unless_another_category_passes_the_hurdle(hurdle: float, moves: int) -> None:
    labelled = [np.tile([6.0, 0.0], (5, 1)), np.tile([-6.0, 0.0], (5, 1))]
    recent, beliefs = remembered(CALM, labelled, np.array([[5.5, 0.0]]), np.array([2]), 3)
    odds = float(beliefs.log_odds(np.array([[5.5, 0.0]]), np.array([0]))[0])
    assert 0.0 < odds < 50.0
    assert recent.rethink(beliefs, hurdle, sweeps=1) == moves
    assert beliefs.living == 3 - moves and beliefs.size == 3
    if moves:
        np.testing.assert_array_equal(beliefs.sums[2], np.zeros(2))  # nothing but rounding would be left


def test_an_image_far_from_all_others_stays_where_it_is() -> None:
    recent, beliefs = remembered(CALM, [np.zeros((5, 2))], np.array([[8.0, 0.0], [-8.0, 0.0]]), np.array([1, 2]), 3)
    assert recent.rethink(beliefs, hurdle=-1.0, sweeps=3) == 0


def test_nothing_to_think_about() -> None:
    beliefs = Beliefs(CALM, np.ones(2), np.eye(2))
    assert Recent(10, 2).rethink(beliefs, 0.0, 2) == 0
    recent, alone = remembered(CALM, [], np.ones((3, 2)), np.zeros(3, np.int64), 1)
    assert recent.rethink(alone, 0.0, 2) == 0  # one category leaves no choice


def test_many_images_are_thought_about_like_few() -> None:
    """More images than are compared at once; the planted mistakes are those that move."""
    random = np.random.default_rng(0)
    true = random.integers(0, 3, 5000)
    images = np.array([[9.0, 0.0], [-9.0, 0.0], [0.0, 9.0]])[true] + random.normal(size=(5000, 2))
    homes = true.copy()
    wrong = np.arange(0, 5000, 101)
    homes[wrong] = (true[wrong] + 1) % 3
    recent, beliefs = remembered(CALM, [], images, homes, 3, capacity=5000)
    assert recent.rethink(beliefs, 0.0, 1) == len(wrong)
    assert recent.thoughts()[2].tolist() == true.tolist()
    check_sums(recent, beliefs, [], images)


@given(st.integers(0, 9), st.lists(st.integers(0, 12), max_size=8))
def test_the_last_images_are_kept_oldest_first(capacity: int, parts: list[int]) -> None:
    recent, total = Recent(capacity, 2), sum(parts)
    numbers = np.arange(total)
    for part in np.split(numbers, np.cumsum(parts)):
        recent.add(np.stack([part, -part], axis=1).astype(np.float64), part)
    kept = min(capacity, total)
    positions, answers, homes = recent.thoughts()
    assert positions.tolist() == answers.tolist() == homes.tolist() == numbers[total - kept :].tolist()
    assert len(recent) == kept and recent.pushed_out == total - kept


def test_images_pushed_out_leave_what_they_added() -> None:
    """Two images were answered wrongly; the older one is no longer kept, so that only the younger one moves."""
    images = np.array([[6.0, 0.0], [6.0, 0.0], [-6.0, 0.0]])
    homes = np.array([1, 1, 1])
    recent, beliefs = remembered(CALM, [np.tile([6.0, 0.0], (5, 1)), np.tile([-6.0, 0.0], (9, 1))], images, homes, 2, 2)
    assert recent.pushed_out == 1
    assert recent.rethink(beliefs, 0.0, 2) == 1
    positions, answers, now = recent.thoughts()
    assert positions.tolist() == [1, 2] and answers.tolist() == [1, 1] and now.tolist() == [0, 1]
    assert beliefs.counts.tolist() == [6, 11]
    np.testing.assert_allclose(beliefs.sums, [[36.0, 0.0], [-54.0, 0.0]], atol=1e-12)


@given(st.integers(0, 6), st.integers(0, 15), st.integers(0, 15))
def test_saved_in_the_middle_it_goes_on(capacity: int, before: int, after: int) -> None:
    rows = np.arange(2.0 * (before + after)).reshape(-1, 2)
    ids = np.arange(before + after)
    whole, first, second = Recent(capacity, 2), Recent(capacity, 2), Recent(capacity, 2)
    whole.add(rows, ids)
    first.add(rows[:before], ids[:before])
    second.load_state_dict(first.state_dict())
    second.add(rows[before:], ids[before:])
    assert second.pushed_out == whole.pushed_out
    for mine, other in zip(second.thoughts(), whole.thoughts(), strict=True):
        np.testing.assert_array_equal(mine, other)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


@pytest.mark.parametrize("capacity", [0, 2, 3, 50])
def test_another_capacity_takes_over_the_last_images(capacity: int) -> None:
    first, second = Recent(4, 2), Recent(capacity, 2)
    first.add(np.arange(14.0).reshape(7, 2), np.arange(7))
    second.load_state_dict(first.state_dict())
    second.add(np.zeros((1, 2)), np.array([7]))
    kept = min(capacity, 5)
    assert second.thoughts()[0].tolist() == second.thoughts()[1].tolist() == list(range(8 - kept, 8))
