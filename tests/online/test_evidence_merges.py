"""Which categories are proposed for merging."""

import sys
from itertools import combinations

import numpy as np
import pytest

from tests.online.worlds import EAST, NORTH, PLAIN, WEST, plain_rule
from tests.twins.two_covariance import same


def test_halves_of_one_cluster_are_proposed_for_merging_and_clusters_far_apart_are_not() -> None:
    rule = plain_rule([5.0], [NORTH])
    for direction in (EAST, [0.999, 0.0447], WEST):
        rule.beliefs.found(10.0 * np.array(direction))
        for _ in range(4):
            rule.beliefs.join(rule.beliefs.size - 1, 10.0 * np.array(direction))
    merges = rule.merges()
    assert [pair[:2] for pair in merges] == [(1, 2)]
    counts, sums = rule.beliefs.counts, rule.beliefs.sums
    wanted = same(PLAIN, counts[1:2], sums[1:2], counts[2:3], sums[2:3])
    np.testing.assert_allclose(merges[0][2], wanted)


def test_known_classes_are_merged_with_discovered_ones_only() -> None:
    rule = plain_rule([5.0, 5.0, 0.0], [EAST, EAST, EAST])
    rule.beliefs.found(np.array([10.0, 0.0]))
    assert [pair[:2] for pair in rule.merges()] == [(0, 3), (1, 3)]
    rule.beliefs.leave(3, np.array([10.0, 0.0]))
    assert rule.merges() == []


@pytest.mark.parametrize("block", [2**20, 7])
def test_the_surest_merges_come_first(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["talon_ocd.memory.merges"], "BLOCK", block)
    random = np.random.default_rng(0)
    rule = plain_rule([5.0, 5.0, 70.0, 0.0], [NORTH, NORTH, EAST, WEST])
    for angle, count in zip(random.uniform(0.0, 2 * np.pi, 60), random.choice([1.0, 2.0, 3.0, 60.0], 60), strict=True):
        place = 10.0 * np.array([np.cos(angle), np.sin(angle)])
        rule.beliefs.put(np.array([rule.beliefs.size]), np.array([count]), count * place[None])
    every = rule.merges(most=10**6)
    counts, sums = rule.beliefs.counts, rule.beliefs.sums
    slow = {
        (a, b): float(same(PLAIN, counts[[a]], sums[[a]], counts[[b]], sums[[b]])[0])
        for a, b in combinations(np.flatnonzero(counts).tolist(), 2)
        if b >= 4
    }
    assert {pair[:2] for pair in every} == {pair for pair, odds in slow.items() if odds > 0.0}
    odds = [pair[2] for pair in every]
    np.testing.assert_allclose(odds, [slow[first, second] for first, second, _ in every], atol=1e-9)
    assert odds == sorted(odds, reverse=True) and len(odds) > 20
    assert rule.merges() == every[:20] and rule.merges(most=3) == every[:3]
