"""The simulated pool behaves as sums on paper say; nothing here needs Ray."""

import importlib
import sys
from dataclasses import replace
from typing import Any

import pytest

from talon_ocd.errors import ConfigError
from talon_ocd.scale.pool import Pool
from talon_ocd.scale.simulation import simulate

ROUGH: dict[str, Any] = {"jitter": 0.3, "stragglers": 0.02, "failures": 0.01, "restart_seconds": 4.0, "seed": 3}


@pytest.mark.parametrize(("trunk", "owner"), [(1.0, 0.25), (0.25, 1.0), (0.5, 0.5)])
def test_one_encoder_and_one_owner_are_a_line_of_two_stations(trunk: float, owner: float) -> None:
    outcome = simulate(Pool(encoders=1, batch=8, batches=50, trunk_seconds=trunk, owner_seconds=owner))
    expected = trunk + owner + 49 * max(trunk, owner)
    assert outcome.seconds == pytest.approx(expected)
    assert outcome.images_a_second == pytest.approx(8 * 50 / expected)
    assert outcome.owner_busy == pytest.approx((50 * owner / (expected - trunk),))
    assert outcome.encoder_busy == pytest.approx(50 * trunk / expected)


def test_what_the_owner_waited_before_it_was_warm_does_not_count() -> None:
    pool = Pool(encoders=4, batches=40, trunk_seconds=10.0, owner_seconds=1.0)
    first_round = 10.0 + 4 * 1.0
    later_rounds = 9 * 10.0  # each ends 10 s after the one before
    assert simulate(pool).seconds == pytest.approx(first_round + later_rounds)
    assert simulate(pool).owner_busy == pytest.approx((40.0 / (4.0 + 90.0),))
    assert simulate(replace(pool, warm_up=4)).owner_busy == pytest.approx((36.0 / 90.0,))


@pytest.mark.parametrize("encoders", [1, 2, 7, 32])
def test_the_slower_side_sets_the_rate(encoders: int) -> None:
    pool = Pool(encoders=encoders, batch=16, batches=3000, trunk_seconds=1.0, owner_seconds=0.1)
    assert simulate(pool).images_a_second == pytest.approx(16 * min(encoders / 1.0, 1 / 0.1), rel=0.02)


def test_no_queue_grows_beyond_its_bound() -> None:
    for owner_seconds in (0.001, 0.1, 1.0):
        pool = Pool(encoders=8, batches=600, trunk_seconds=0.8, owner_seconds=owner_seconds, **ROUGH)
        outcome = simulate(pool)
        assert outcome.most_under_way <= pool.most_under_way == 28
        assert outcome.most_at_an_encoder <= 3
        assert outcome.most_waiting <= outcome.most_under_way


def test_a_slow_owner_fills_the_queue_to_its_bound_and_no_further() -> None:
    pool = Pool(encoders=4, batches=400, trunk_seconds=0.1, owner_seconds=1.0, at_an_encoder=2, at_the_owner=5)
    outcome = simulate(pool)
    assert outcome.most_under_way == outcome.most_waiting == 4 * 2 + 5
    assert outcome.owner_busy == pytest.approx((1.0,))


@pytest.mark.parametrize("mode", ["exact", "barrier", "async"])
def test_littles_law(mode: str) -> None:
    pool = Pool(encoders=5, batches=800, mode=mode, head_seconds=0.05, adapt_every=4, owner_seconds=0.2, **ROUGH)
    outcome = simulate(pool)
    assert outcome.mean_under_way == pytest.approx(outcome.mean_latency * pool.batches / outcome.seconds)


def test_random_arrivals_wait_as_long_as_the_formula_for_one_server_says() -> None:
    load, seconds = 0.7, 0.5
    outcome = simulate(
        Pool(
            encoders=1, batches=20_000, trunk_seconds=0.0, owner_seconds=seconds, arrivals=load / seconds,
            at_the_owner=100_000, at_an_encoder=100_000,
        )
    )  # fmt: skip
    assert outcome.mean_latency == pytest.approx(seconds + load * seconds / (2 * (1 - load)), rel=0.05)
    assert outcome.owner_busy == pytest.approx((load,), rel=0.03)
    assert outcome.mean_at_source == 0.0


def test_what_finds_no_room_waits_at_the_source() -> None:
    pool = Pool(encoders=2, batches=300, trunk_seconds=0.1, owner_seconds=0.5, arrivals=4.0)
    outcome = simulate(pool)
    assert outcome.mean_at_source > 10.0
    assert outcome.most_under_way == pool.most_under_way
    assert outcome.latency["p50"] <= outcome.latency["p99"] <= outcome.latency["max"]


def test_a_barrier_costs_broadcast_and_head_once_an_adaptation() -> None:
    every, times = 4, 50
    pool = Pool(
        encoders=every, batches=every * times, trunk_seconds=0.2, head_seconds=0.05, owner_seconds=0.3,
        adapt_seconds=0.4, adapt_every=every, broadcast_seconds=0.1, mode="barrier",
    )  # fmt: skip
    cycle = every * 0.3 + 0.4 + 0.05
    assert simulate(pool).seconds == pytest.approx(0.2 + times * cycle + (times - 1) * 0.1)


def test_without_prefetching_a_barrier_costs_the_trunk_as_well() -> None:
    pool = Pool(
        encoders=1, batches=40, trunk_seconds=0.2, head_seconds=0.05, owner_seconds=0.3, mode="barrier",
        at_an_encoder=1, at_the_owner=0,
    )  # fmt: skip
    assert simulate(pool).seconds == pytest.approx(40 * (0.2 + 0.05 + 0.3))


def test_an_owner_that_runs_the_head_itself_waits_for_nobody() -> None:
    pool = Pool(
        encoders=16, batches=400, trunk_seconds=1.0, head_seconds=0.02, owner_seconds=0.1, adapt_seconds=0.08,
        adapt_every=4, broadcast_seconds=9.0,
    )  # fmt: skip
    outcome = simulate(pool)
    assert outcome.seconds == pytest.approx(1.0 + 400 * (0.1 + 0.02 + 0.08 / 4))
    assert outcome.owner_busy == pytest.approx((1.0,))


def test_async_keeps_its_bound_and_pays_for_what_is_older() -> None:
    pool = Pool(
        encoders=8, batches=500, trunk_seconds=0.7, head_seconds=0.02, owner_seconds=0.1, mode="async",
        adapt_every=2, broadcast_seconds=0.05, staleness=1, **ROUGH,
    )  # fmt: skip
    strict, loose = simulate(pool), simulate(replace(pool, staleness=1000))
    assert strict.most_behind == 1
    assert strict.encoded_anew > 0
    assert loose.encoded_anew == 0
    assert loose.most_behind > 1


def test_work_that_is_lost_is_done_again_and_every_batch_is_answered_once() -> None:
    pool = Pool(encoders=4, batches=4000, trunk_seconds=1.0, owner_seconds=0.01, failures=0.1, restart_seconds=2.0)
    outcome = simulate(pool)
    assert outcome.redone / (4000 + outcome.redone) == pytest.approx(0.1, rel=0.15)
    lost = (0.5 + 2.0) * 0.1 / 0.9
    assert outcome.images_a_second == pytest.approx(256 * 4 / (1.0 + lost), rel=0.05)


def test_regions_divide_the_work_and_the_fullest_one_sets_the_rate() -> None:
    pool = Pool(encoders=200, batch=1000, batches=2000, trunk_seconds=1.0, owner_seconds=0.1)
    even = simulate(replace(pool, shares=(0.25,) * 4))
    assert even.images_a_second == pytest.approx(4 * 1000 / 0.1, rel=0.05)
    uneven = simulate(replace(pool, shares=(0.5, 0.3, 0.2), boundary=0.25, exchange_seconds=0.5))
    assert uneven.images_a_second == pytest.approx(1000 / (0.1 * 0.5 * 1.25), rel=0.05)
    busiest, middle, idlest = uneven.owner_busy
    assert busiest > middle > idlest
    assert uneven.latency["p50"] > 0.5


def test_sixty_four_encoders_keep_an_owner_busy_in_spite_of_stragglers_and_failures() -> None:
    pool = Pool(
        encoders=64, batches=6000, trunk_seconds=64 * 0.04 / 1.25, owner_seconds=0.04, jitter=0.2, stragglers=0.01,
        straggle=4.0, failures=0.0005, restart_seconds=10.0, at_the_owner=4 * 64,
    )  # fmt: skip
    outcome = simulate(pool)
    assert min(outcome.owner_busy) > 0.9
    assert outcome.redone > 0
    assert outcome.most_under_way <= pool.most_under_way


def test_the_seed_is_the_run() -> None:
    pool = Pool(encoders=6, batches=300, **ROUGH)
    assert simulate(pool) == simulate(pool)
    assert simulate(pool) != simulate(replace(pool, seed=4))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("encoders", 0),
        ("mode", "sync"),
        ("warm_up", 2000),
        ("boundary", 1.5),
        ("shares", (0.5, 0.4)),
        ("arrivals", 0.0),
        ("failures", 1),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name}="):
        Pool(**{name: value})  # type: ignore[arg-type]


def test_simulating_needs_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    for name in ("talon_ocd.scale.pool", "talon_ocd.scale.simulation"):
        monkeypatch.delitem(sys.modules, name)
    assert importlib.import_module("talon_ocd.scale.simulation").simulate is not simulate  # it was read anew
