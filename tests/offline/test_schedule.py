"""The schedule against the released code's values, and what happens to a warm-up that does not fit."""

from __future__ import annotations

import pytest

from talon_ocd.offline.schedule import effective_warmup, learning_rate


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (0, 1.00e-4), (10, 2.80e-4), (25, 5.50e-4), (49, 9.82e-4), (50, 5.00e-4),
        (60, 3.46e-4), (75, 1.46e-4), (90, 2.45e-5), (99, 2.5e-7),
    ],
)  # fmt: skip
def test_official_values(epoch: int, expected: float) -> None:
    assert learning_rate(epoch, 1e-3, 100, 50, 1e-4, 0.0) == pytest.approx(expected, rel=2e-2 if epoch == 99 else 4e-3)


def test_cosine_without_warmup_falls_from_base_to_floor() -> None:
    rates = [learning_rate(epoch, 1e-3, 100, floor=1e-5) for epoch in range(101)]
    assert rates[0] == 1e-3
    assert rates[100] == pytest.approx(1e-5)
    assert rates == sorted(rates, reverse=True)


def test_warmup_start_is_the_same_for_every_group() -> None:
    assert learning_rate(0, 1e-4, 100, 50, 1e-4) == learning_rate(0, 1e-3, 100, 50, 1e-4) == 1e-4


@pytest.mark.parametrize("epochs", [1, 2, 3, 20, 50])
def test_a_shortened_preset_rises_and_falls(epochs: int) -> None:
    warmup = effective_warmup(epochs, 50)
    assert warmup == epochs // 2
    rates = [learning_rate(epoch, 1e-3, epochs, 50, 1e-4) for epoch in range(epochs)]
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert all(0 < rate <= 1e-3 for rate in rates)


@pytest.mark.parametrize(
    ("epochs", "warmup", "expected"), [(60, 50, 50), (10, 10, 1), (10, 300, 5), (0, 0, 0), (0, 5, 0)]
)
def test_warmup_is_only_scaled_when_it_does_not_fit(epochs: int, warmup: int, expected: int) -> None:
    assert effective_warmup(epochs, warmup) == expected
