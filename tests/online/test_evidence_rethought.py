"""Second thoughts of the evidence rule: when they come, about which images, and what they change."""

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_ocd.config import EvidenceConfig
from talon_ocd.online import EvidenceRule
from tests.online.worlds import NORTH, NOTHING, WEST, plain_rule, world


@given(st.integers(0, 40), st.booleans(), st.integers(3, 40), st.sampled_from([0, 5, 1024]), st.integers(0, 9999))
@settings(max_examples=40)
def test_a_stream_with_second_thoughts_is_that_of_the_slow_twin(
    images: int, learns: bool, keep: int, newest: int, seed: int
) -> None:
    drawn = world(images, seed, new=4, noise=0.2)
    stream = drawn.stream(learns, adapt_every=4, keep=keep, every=3, newest=newest, regroup=0)
    slow = drawn.slow(learns, keep)
    wanted = []
    for number, x in enumerate(drawn.coordinates(), 1):
        wanted.append(slow.observe(x))
        if learns and number % 4 == 0 and (newest or number % 12 == 0):
            slow.think_again(2, slow.hurdle, newest if number % 12 else 8192)
    found = stream.observe_many(drawn.features)
    assert [decision.category for decision in found] == [row[0] for row in wanted]
    np.testing.assert_allclose([decision.similarity for decision in found], [row[2] for row in wanted], atol=1e-5)
    assert isinstance(stream.rule, EvidenceRule)
    if learns:
        first = max(images - keep, 0)
        positions, answers, homes = (part.tolist() for part in stream.rule.recent.thoughts())
        assert positions == list(range(first, images))
        assert (answers, homes) == (slow.answers[first:], slow.homes[first:])


def test_second_thoughts_of_such_streams_move_images() -> None:
    moved = 0
    for seed in range(10):
        drawn = world(40, seed, new=4, noise=0.2)
        stream = drawn.stream(adapt_every=4, every=3)
        stream.observe_many(drawn.features)
        thoughts = stream.second_thoughts()
        assert thoughts is not None and thoughts.remembered == 40
        moved += len(thoughts.moves)
    assert moved > 5


def test_images_are_grouped_anew_when_second_thoughts_have_doubled_in_number() -> None:
    class Counting(EvidenceRule):
        at: ClassVar[list[int]] = []

        def regroup(self) -> int:
            self.at.append(self.adaptations + 1)
            return super().regroup()

    drawn = world(4, 0)
    rule = Counting(drawn.evidence, EvidenceConfig(every=3))
    for _ in range(60):
        rule.adapt()
    assert Counting.at == [3, 6, 12, 24, 48]


def test_images_are_grouped_anew_only_if_they_are_likelier_then() -> None:
    """After second thoughts about either grouping; all of what is not taken is forgotten."""
    outcomes = []
    for seed in range(12):
        drawn = world(90, seed, new=8, noise=0.15, offset=2.0)
        weighed, anew, old = (drawn.rule(weigh_regrouping=weighs) for weighs in (True, False, False))
        for rule in (weighed, anew, old):
            rule.assign(drawn.features, NOTHING)
        moved = weighed.regroup()
        if anew.regroup():
            anew.think_again()
        old.think_again()
        likelier = anew.beliefs.log_evidence() > old.beliefs.log_evidence()
        outcomes.append(likelier)
        taken = anew if likelier else old
        assert bool(moved) == likelier
        for mine, theirs in zip(weighed.recent.thoughts(), taken.recent.thoughts(), strict=True):
            assert mine.tolist() == theirs.tolist()
        assert weighed.beliefs.counts.tolist() == taken.beliefs.counts.tolist()
        assert weighed.look(drawn.features, NOTHING).ids.tolist() == taken.look(drawn.features, NOTHING).ids.tolist()
    assert len(set(outcomes)) == 2


def test_images_of_held_categories_stay_when_the_rule_groups_anew() -> None:
    drawn, homes = world(90, 1, new=8, noise=0.5, offset=2.0), list[list[int]]()
    for held in (False, True):
        rule = drawn.rule(weigh_regrouping=False)
        rule.assign(drawn.features, NOTHING)
        before = rule.recent.thoughts()[2]
        if held:
            moved = before[before != homes[0]]
            fullest = int(np.bincount(moved).argmax())
            rule.held = np.array([fullest])
        assert rule.regroup() > 0
        homes.append(rule.recent.thoughts()[2].tolist())
    own = before == fullest
    assert np.array(homes[1])[own].tolist() == before[own].tolist() != np.array(homes[0])[own].tolist()


def lonely_founder(**settings: Any) -> EvidenceRule:
    """A rule whose first image founded a category, though by now it would join category 0: a new one got unlikely."""
    rule = plain_rule([4.0, 4.0], [NORTH, WEST], **settings)
    near_north = torch.tensor([[0.33, 0.943981]])
    assert -1.0 < rule.look(near_north, NOTHING).similarities[0] < 0.0
    assert rule.assign(near_north, NOTHING).ids.tolist() == [2]
    assert set(rule.assign(torch.tensor([WEST] * 100), NOTHING).ids.tolist()) == {1}
    return rule


def test_ids_are_never_used_again() -> None:
    rule = lonely_founder()
    assert rule.think_again() == 1
    assert rule.beliefs.counts.tolist() == [4.25, 29.0, 0.0] and rule.beliefs.living == 2
    founded = rule.assign(torch.tensor([[0.0, -1.0]]), NOTHING)
    assert founded.ids.tolist() == [3] and founded.founded.tolist() == [True]
    _, answers, homes = rule.recent.thoughts()
    assert (answers[0], homes[0]) == (2, 0)  # the answer stays


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("newest", [0, 100])
def test_second_thoughts_come_every_so_many_adaptations(every: int, newest: int) -> None:
    """About all images; those about the newest in between don't reach back to the first one."""
    rule = lonely_founder(every=every, newest=newest)
    for number in range(1, every + 1):
        assert rule.beliefs.living == 3
        rule.adapt()
        assert rule.adaptations == number
    assert rule.beliefs.living == 2


def test_the_newest_images_are_thought_of_at_every_adaptation() -> None:
    rule = lonely_founder(every=9, newest=101)
    rule.adapt()
    assert rule.beliefs.living == 2


def test_without_sweeps_there_are_no_second_thoughts() -> None:
    rule = lonely_founder(every=1, sweeps=0)
    rule.adapt()
    assert rule.think_again() == 0 and rule.beliefs.living == 3
