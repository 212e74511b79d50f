import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage

from talon_ocd.memory import Beliefs, Recent
from talon_ocd.memory.beliefs import Ints
from talon_ocd.memory.regroup import carried_over, ward
from talon_ocd.memory.two_covariance import Floats
from tests.memory.test_recent import CALM, check_sums
from tests.memory.test_recent import remembered as with_all_known

SOUTH = np.tile([0.0, -20.0], (4, 1))
"""Labelled images of a class that is far from all others."""


def partition(groups: Ints) -> set[frozenset[int]]:
    """Which points are together, whatever their groups are called."""
    return {frozenset(np.flatnonzero(groups == group).tolist()) for group in np.unique(groups)}


def slow_ward(points: Floats, sizes: Floats, fixed: int, wanted: int) -> set[frozenset[int]]:
    """Join the two groups whose union spreads least, from the definition: sums of squares around weighted means."""
    groups = [frozenset([point]) for point in range(len(points))]

    def spread(group: frozenset[int]) -> float:
        rows = sorted(group)
        mean = np.average(points[rows], axis=0, weights=sizes[rows])
        return float((sizes[rows] * ((points[rows] - mean) ** 2).sum(axis=1)).sum())

    while len(groups) > wanted:
        pairs = [
            (spread(one | other) - spread(one) - spread(other), one, other)
            for place, one in enumerate(groups)
            for other in groups[place + 1 :]
            if sum(point < fixed for point in one | other) < 2
        ]
        if not pairs:
            break
        _, one, other = min(pairs, key=lambda pair: pair[0])
        groups = [group for group in groups if group not in (one, other)] + [one | other]
    return set(groups)


@given(st.integers(1, 14), st.integers(0, 4), st.integers(1, 8), st.integers(0, 9999))
@settings(max_examples=150)
def test_groups_are_those_of_the_slow_twin(number: int, fixed: int, wanted: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    points, sizes = random.normal(size=(number, 3)), np.where(np.arange(number) < fixed, 5.25, 1.0)
    found = ward(points, sizes, fixed, wanted)
    assert partition(found) == slow_ward(points, sizes, fixed, wanted)
    assert found[: min(fixed, number)].tolist() == list(range(min(fixed, number)))  # a fixed point calls its group
    assert (found[found] == found).all()


@pytest.mark.parametrize("wanted", [1, 5, 30])
def test_groups_of_points_that_count_alike_are_those_of_scipy(wanted: int) -> None:
    random = np.random.default_rng(0)
    points = random.normal(size=(200, 8)) + 3.0 * random.normal(size=(10, 8)).repeat(20, axis=0)
    scipys = fcluster(linkage(points, "ward"), wanted, "maxclust")
    assert partition(ward(points, np.ones(200), 0, wanted)) == partition(scipys)


def test_groups_get_the_categories_that_most_of_their_images_were_answered_with() -> None:
    groups, answers = np.array([0, 0, 0, 1, 1, 2]), np.array([7, 7, 9, 7, 9, 3])
    assert carried_over(groups, answers, np.array([5, 7, 9])).tolist() == [7, 9, 5]  # 3 is not to be given
    assert carried_over(groups, answers, np.array([7, 8, 9, 11])).tolist()[:2] == [7, 9]


def remembered(labelled: Floats, images: Floats, homes: Ints) -> tuple[Recent, Beliefs]:
    """Images that were answered with their homes; only the first category is a known class."""
    recent, beliefs = with_all_known(CALM, [labelled], images, homes, int(homes.max()) + 1)
    beliefs.known = 1
    return recent, beliefs


def crossed(per_kind: int = 6) -> tuple[Floats, Ints]:
    """Two kinds far apart, and answers that share both out to two categories alike; a third one is right."""
    random = np.random.default_rng(0)
    kinds = np.array([[9.0, 0.0], [-9.0, 0.0], [0.0, 20.0]]).repeat(per_kind, axis=0)
    images = kinds + 0.3 * random.normal(size=kinds.shape)
    mixed = np.where(np.arange(2 * per_kind) % 3 == 0, 2, 1)
    return images, np.concatenate([mixed, np.full(per_kind, 3)])


def test_kinds_that_share_two_categories_get_one_each_and_sums_follow() -> None:
    images, homes = crossed()
    recent, beliefs = remembered(SOUTH, images, homes)
    assert recent.regroup(beliefs, most=100) > 0
    _, answers, now = recent.thoughts()
    assert answers.tolist() == homes.tolist()  # what was said stays
    assert partition(now) == {frozenset(range(6)), frozenset(range(6, 12)), frozenset(range(12, 18))}
    assert set(now.tolist()) == {1, 2, 3} and set(now[12:].tolist()) == {3} and beliefs.living == 4
    check_sums(recent, beliefs, [SOUTH], images)
    assert recent.regroup(beliefs, most=100) == 0  # all is well


def test_images_that_people_spoke_of_and_categories_with_older_members_stay() -> None:
    images, homes = crossed()
    recent, beliefs = remembered(SOUTH, images, homes)
    settled = recent.settle(12)
    assert settled == 3
    recent.regroup(beliefs, most=100)
    assert recent.thoughts()[2][12] == -1 and beliefs.counts[3] >= 1.0  # what a person said is still there
    recent, beliefs = remembered(SOUTH, images, homes)
    counts = beliefs.counts.copy()
    assert recent.regroup(beliefs, most=8) == 0 and (beliefs.counts == counts).all()  # all have older members
    assert recent.regroup(beliefs, most=3) == 0  # no room for images beside categories


def test_categories_that_are_held_keep_their_images_and_their_meaning() -> None:
    images, homes = crossed()
    recent, beliefs = remembered(SOUTH, images, homes)
    recent.regroup(beliefs, most=100, held=np.array([1]))
    assert (recent.thoughts()[2][homes == 1] == 1).all()  # though they are of two kinds
    recent, beliefs = remembered(SOUTH, images, homes)
    recent.regroup(beliefs, most=100, held=np.array([3]))
    assert recent.thoughts()[2][12:].tolist() == [3] * 6 and len(set(recent.thoughts()[2][:6].tolist())) == 1


def test_equal_images_are_grouped_too() -> None:
    points = np.repeat(np.array([[0.0, 0.0], [3.0, 0.0]]), 50, axis=0)
    assert partition(ward(points, np.ones(100), 0, 2)) == {frozenset(range(50)), frozenset(range(50, 100))}


def test_a_known_class_without_labelled_images_is_neither_given_away_nor_a_magnet() -> None:
    images, homes = crossed()
    homes = np.where(homes == 3, 0, homes)  # the third kind is at home in a class that has nothing else
    recent, beliefs = remembered(np.empty((0, 2)), images, homes)
    assert recent.regroup(beliefs, most=100) > 0
    now = recent.thoughts()[2]
    assert now[12:].tolist() == [0] * 6 and set(now[:12].tolist()) == {1, 2} and len(set(now[:6].tolist())) == 1


def test_a_known_class_without_labelled_images_takes_part_with_what_it_has() -> None:
    images, homes = crossed()
    homes = np.where(homes == 3, 0, homes)
    homes[12] = 1  # an image of the class's kind that was answered with another category
    recent, beliefs = remembered(np.empty((0, 2)), images, homes)
    recent.regroup(beliefs, most=100)
    assert recent.thoughts()[2][12] == 0
