"""Bursts, noise and streams full of news: batches that the encoder must not learn from."""

import numpy as np
import pytest

from talon_ocd import DiscoveryStream, Talon
from talon_ocd.config import GuardConfig
from talon_ocd.images import ImageItem, memory_item
from tests import tiny
from tests.online.guarded import opened

FINER = 2.0
"""Nats: the rule refuses noise, so that it is the encoder that suffers."""


def one_class(count: int) -> list[ImageItem]:
    return list(tiny.part(20, 20 + count, ("1",)))


def noise(count: int) -> list[ImageItem]:
    random = np.random.default_rng(0)
    return [memory_item(random.integers(0, 256, (8, 8), dtype=np.uint8), f"noise {number}") for number in range(count)]


def accuracy(stream: DiscoveryStream) -> float:
    """Share of clean digits of known classes that the stream answers with their class."""
    items = tiny.part(50, 70, tiny.KNOWN)
    return float(np.mean([stream.decide(item).category == int(str(item.label)) for item in items]))


def test_a_burst_of_one_class_drives_no_step(fitted: Talon) -> None:
    stream = opened(fitted, threshold=-1.0, guard=GuardConfig(), adapt_every=32)
    stream.observe_many(one_class(1) * 28 + tiny.incoming(4))
    (event,) = stream.guard.take_events()
    assert event["kind"] == "skipped" and "of the last 32 answers are one category" in event["reason"]
    assert stream.guard.skipped == 1 and stream.adapter.steps == 0


def test_a_burst_that_is_split_into_many_categories_is_seen_by_its_features(fitted: Talon) -> None:
    burst, mixed = (opened(fitted, 1.5, GuardConfig(most_new=1.0), adapt_every=32) for _ in range(2))
    burst.observe_many(one_class(32))
    mixed.observe_many(tiny.incoming(64))
    (event,) = burst.guard.take_events()
    assert event["kind"] == "skipped" and "as alike as if nearly all were of one class" in event["reason"]
    assert (burst.guard.skipped, mixed.guard.skipped, mixed.guard.taken) == (1, 0, 1)


def test_a_batch_that_founds_mostly_new_categories_drives_no_step(fitted: Talon) -> None:
    stream = opened(fitted, threshold=1.5, guard=GuardConfig(), adapt_every=32)
    stream.observe_many(tiny.incoming(32))
    (event,) = stream.guard.take_events()
    assert event["reason"] == "100% of the last 32 answers founded a category" and stream.adapter.steps == 0


def test_the_rate_of_new_categories_is_looked_at_over_the_last_answers(fitted: Talon) -> None:
    stream = opened(fitted, threshold=1.5, guard=GuardConfig())
    stream.observe_many(tiny.incoming(96))
    # too few answers to speak of a rate in the first batch, which founds as many categories; the second one judges it
    assert (stream.guard.taken + stream.guard.refused, stream.guard.skipped) == (1, 4)


@pytest.mark.parametrize("threshold", [-1.0, None], ids=["nearest", "evidence"])
def test_a_bad_stream_ruins_the_encoder_unless_it_is_guarded(fitted: Talon, threshold: float | None) -> None:
    bad = [*one_class(48), *noise(48), *list(tiny.part(20, 52, ("5",))), *noise(32)] * 2
    without = opened(fitted, threshold, finer=FINER, adapt=("prototypes",))
    free, guarded = (opened(fitted, threshold, one, 80, FINER, encoder_lr=3.0) for one in (None, GuardConfig()))
    for stream in (without, free, guarded):
        stream.observe_many(bad)
    assert accuracy(free) < accuracy(without) - 0.05  # the pre-trained part can't be ruined
    assert accuracy(guarded) > accuracy(without) - 0.05
