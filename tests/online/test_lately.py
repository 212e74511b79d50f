"""The window of newest answers, against a list of all of them; and what it changes in the rule."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_ocd.config import EvidenceConfig
from talon_ocd.errors import ConfigError
from talon_ocd.online.rules.lately import Lately
from tests.online.worlds import NOTHING, assert_same_answers, rows_of, world


@given(st.integers(64, 90), st.lists(st.integers(0, 64), max_size=8), st.integers(0, 63), st.integers(0, 999))
def test_counts_are_those_of_the_last_answers(window: int, sizes: list[int], waiting: int, seed: int) -> None:
    random, lately, answers = np.random.default_rng(seed), Lately(window, 63), list[bool]()
    for size in sizes:
        coming = random.random(size) < 0.4
        lately.add(coming)
        answers += coming.tolist()
        told = answers[: max(len(answers) - waiting, 0)][-window:]
        assert lately.counts(waiting) == (len(told), sum(told))
        assert lately.found(waiting) == sum(answers[max(len(answers) - waiting, 0) :])
        assert lately.discovered.tolist() == answers[-window - 63 :]


@pytest.mark.parametrize("window", [0, 64, 70, 512])
@given(images=st.integers(0, 200), seed=st.integers(0, 99))
@settings(max_examples=6)
def test_answers_in_a_window_are_those_of_the_slow_twin(window: int, images: int, seed: int) -> None:
    drawn = world(images, seed, known=2, new=3, offset=-2.0)
    together, alone = (drawn.rule(share_window=window) for _ in range(2))
    slow = replace(drawn.slow(), share_window=window)
    batch = rows_of(together.assign(drawn.features, NOTHING))
    assert_same_answers(
        batch, [row for feature in drawn.features for row in rows_of(alone.assign(feature[None], NOTHING))]
    )
    assert_same_answers(batch, [slow.observe(x) for x in drawn.coordinates()])


def test_what_came_long_ago_does_not_count() -> None:
    """After 500 known images and 64 others a window of 64 has forgotten the known ones."""
    drawn, favours = world(0, 3, known=2, new=2), []
    for window in (64, 0):
        rule = drawn.rule(share_window=window)
        rule.assign(drawn.means.repeat(250, 1), NOTHING)
        rule.offset = 1e6  # from now on every image founds a category
        rule.assign(drawn.means.repeat(32, 1), NOTHING)
        assert (rule.answered, rule.discovered) == (564, 64)
        rule.assign(drawn.means.repeat(6, 1), NOTHING)  # up to the next 64th answer; those that wait don't count
        rule.offset = 0.0
        favours.append(rule._batch(np.zeros((1, rule.beliefs.model.size))).favour)
    np.testing.assert_allclose(favours, [5.0 * np.log(10 / 74), 5.0 * np.log(510 / 86)], rtol=1e-12)


def test_all_answers_tell_the_share_up_to_the_last_64th() -> None:
    drawn = world(0, 3, known=2, new=2)
    rule = drawn.rule(share_window=0)
    rule.assign(drawn.means.repeat(32, 1), NOTHING)
    assert (rule.answered, rule.discovered) == (64, 0)
    told = rule._share()
    rule.offset = 1e6  # from now on every image founds a category
    for answered in range(65, 129):
        assert rule._share() == told == 10 / 84
        rule.assign(drawn.means[:1], NOTHING)
        assert rule.answered == answered
    assert rule._share() == 74 / 148


@pytest.mark.parametrize("first", [1e6, -1e6], ids=["all new", "all known"])
def test_a_share_that_weighs_absurdly_much_is_borne(first: float) -> None:
    """Known classes are 13,800 nats ahead or behind: more than a float32 has room for, or the exponent of a float."""
    drawn = world(70, 3, known=2, new=3)
    absurd: dict[str, Any] = {"share_weight": 500.0, "least_share": 1e-12, "share_prior": 1e-9}
    rule, slow = drawn.rule(**absurd), replace(drawn.slow(), **absurd)
    rule.offset = slow.offset = first
    found = rows_of(rule.assign(drawn.features[:64], NOTHING))
    assert_same_answers(found, [slow.observe(x) for x in drawn.coordinates()[:64]])
    rule.offset = slow.offset = 0.0
    found = rows_of(rule.assign(drawn.features[64:], NOTHING))
    assert_same_answers(found, [slow.observe(x) for x in drawn.coordinates()[64:]])
    assert {row[0] < 2 for row in found} == {first < 0}


@pytest.mark.parametrize("window", [-1, 1, 63, 2**16 + 1])
def test_a_window_that_is_too_short_or_too_long_is_refused(window: int) -> None:
    with pytest.raises(ConfigError, match="share_window"):
        EvidenceConfig(share_window=window)
