"""The guard's verdicts: which steps of the encoder pass, when, and what follows if they do not."""

import json
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from talon_ocd import Talon
from talon_ocd.config import GuardConfig
from talon_ocd.errors import DataError
from talon_ocd.online import Probe
from talon_ocd.online import guard as module
from tests import tiny
from tests.online.guarded import GENTLE, HARMFUL, head, ids, learn_one_batch_late, opened, rush, same, waits

BY_BOTH_RULES = pytest.mark.parametrize("threshold", [0.8, None], ids=["cosine", "evidence"])


@BY_BOTH_RULES
def test_good_steps_pass_unchanged(fitted: Talon, threshold: float | None) -> None:
    guarded, free = opened(fitted, threshold, GuardConfig(most_new=1.0)), opened(fitted, threshold)
    learn_one_batch_late(free)
    expected = ids(free.observe_many(tiny.incoming()))
    assert ids(guarded.observe_many(tiny.incoming())) == expected
    assert same(head(guarded), head(free)) and not same(head(free), fitted.backbone.head.state_dict())
    state = {name: value for name, value in guarded.state_dict().items() if not name.startswith("guard.")}
    assert same(state, free.state_dict())
    assert (guarded.guard.taken, guarded.guard.refused, guarded.guard.skipped) == (len(tiny.incoming()) // 32, 0, 0)
    assert guarded.guard.take_events() == []


@BY_BOTH_RULES
def test_a_harmful_step_never_answers_and_is_written_down(fitted: Talon, threshold: float | None) -> None:
    stream = opened(fitted, threshold, GuardConfig(most_new=1.0))
    stream.observe_many(tiny.incoming(64))
    before, steps = head(stream), stream.adapter.steps
    rush(stream, HARMFUL)
    stream.observe_many(tiny.incoming()[64:80])
    assert waits(stream) and same(before, head(stream)) and stream.adapter.steps == steps == 2
    assert stream.guard.take_events() == []
    stream.observe_many(tiny.incoming()[80:96])
    assert not waits(stream) and same(before, head(stream)) and stream.adapter.steps == 2
    assert stream.guard.refused == 1 and stream.guard.taken == 2
    (event,) = stream.guard.take_events()
    assert event["kind"] == "refused" and event["answered"] == 96 and "on the probe fell from" in event["reason"]
    assert event["values"]["accuracy"] < 1 and json.loads(json.dumps(event)) == event


def test_the_head_changes_when_a_step_has_passed_and_only_then(fitted: Talon) -> None:
    stream, heads = opened(fitted, guard=GuardConfig(most_new=1.0)), []
    for start in range(0, 96, 16):
        stream.observe_many(tiny.incoming()[start : start + 16])
        heads.append((stream.adapter.steps, head(stream)))
    assert [steps for steps, _ in heads] == [0, 1, 1, 2, 2, 3]
    for (steps, one), (later, other) in pairwise(heads):
        assert same(one, other) == (steps == later)


@pytest.mark.parametrize("encoder_first", [True, False])
def test_the_guard_and_second_thoughts_take_turns(
    fitted: Talon, monkeypatch: pytest.MonkeyPatch, encoder_first: bool
) -> None:
    """No adaptation is both: at every fourth one the step or the look that is due waits for the next."""
    settings = GuardConfig(most_new=1.0, most_of_one=1.0)
    stream = opened(fitted, None, settings, probe=16, every=4, adapt_every=8, encoder_first=encoder_first)
    thought, think = list[int](), stream.discovery.rule.think_again

    def counted() -> int:
        thought.append(stream.answered // 8)
        return int(think())

    monkeypatch.setattr(stream.discovery.rule, "think_again", counted)
    answers, turns = list[int](), list[tuple[bool, int]]()
    for start in range(0, 64, 8):
        answers += ids(stream.observe_many(tiny.incoming()[start : start + 8]))
        turns.append((waits(stream), stream.guard.taken))
    assert set(thought) == {4, 8}  # more than once where images are grouped anew
    step, thoughts, look = "a step waits", "as before", "it is judged"
    wanted = [step, look, step, thoughts, look, step, look, thoughts]
    assert [waiting for waiting, _ in turns] == [True, False, True, True, False, True, False, False]
    assert [taken for _, taken in turns] == [wanted[: at + 1].count(look) for at in range(8)]
    assert stream.guard.state_dict()["recent"][0].tolist() == answers  # it saw all of them, with and without a turn


def test_an_encoder_without_a_guard_leaves_second_thoughts_their_turn(fitted: Talon) -> None:
    for every, wanted in ((4, [1, 2, 3, 3, 4, 5]), (1, [1, 2, 3, 4, 5, 6])):  # if all think again, there is no turn
        stream, steps = opened(fitted, None, every=every), list[int]()
        for start in range(0, 96, 16):
            stream.observe_many(tiny.incoming()[start : start + 16])
            steps.append(stream.adapter.steps)
        assert steps == wanted


@BY_BOTH_RULES
def test_a_verdict_on_many_categories_has_an_adaptation_of_its_own(
    fitted: Talon, monkeypatch: pytest.MonkeyPatch, threshold: float | None
) -> None:
    stream, images = opened(fitted, threshold, GuardConfig(most_new=1.0)), tiny.incoming()
    monkeypatch.setattr(module, "QUICKLY_READ", stream.memory.known - 1)
    read, readings, passed, encode = stream.guard._read, list[int](), list[int](), stream.adapter.encode

    def counted_reading(*words: Any) -> Any:
        readings.append(stream.answered // 16)
        return read(*words)

    def counted(hidden: Tensor, with_graph: bool = False) -> Tensor:
        if len(hidden) == 32:
            passed.append(stream.answered // 16)
        features: Tensor = encode(hidden, with_graph)
        return features

    monkeypatch.setattr(stream.guard, "_read", counted_reading)
    monkeypatch.setattr(stream.adapter, "encode", counted)
    for start in range(0, 96, 16):
        stream.observe_many(images[start : start + 16])
    assert passed == [2, 5] and readings == [3, 3, 3, 6, 6, 6]
    assert stream.guard.taken == stream.adapter.steps == 2


def test_a_large_probe_is_looked_at_in_parts(fitted: Talon, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stop passes more images through the head than it is allowed to, and the verdict is that of one look."""
    settings, images = GuardConfig(most_new=1.0), tiny.incoming()
    stream, at_once = (opened(fitted, guard=settings, probe=72) for _ in range(2))
    at_once.guard._at_once = 72
    passed, encode = list[int](), stream.adapter.encode

    def counted(hidden: Tensor, with_graph: bool = False) -> Tensor:
        passed.append(len(hidden))
        features: Tensor = encode(hidden, with_graph)
        return features

    monkeypatch.setattr(stream.adapter, "encode", counted)
    taken = []
    for start in range(0, 64, 16):
        stream.observe_many(images[start : start + 16])
        taken.append(stream.guard.taken)
    assert taken == [0, 0, 0, 1]  # a step, then looks at 32, 32 and 8 images
    assert passed == [16, 16, 32, 16, 32, 16, 8]
    at_once.observe_many(images[:32])
    assert at_once.guard.taken == 1
    assert all(torch.allclose(head(stream)[name], value, atol=1e-6) for name, value in head(at_once).items())


def test_a_head_or_a_gradient_that_is_not_finite_is_refused(fitted: Talon) -> None:
    stream = opened(fitted, guard=GuardConfig(most_new=1.0), encoder_clip=None)
    before = head(stream)
    rush(stream, 1e38)
    stream.observe_many(tiny.incoming(32))
    stream.adapter.loss = lambda features, ids, prototypes, hidden: features.sum() * torch.inf
    stream.observe_many(tiny.incoming()[32:48])
    assert same(before, head(stream)) and not waits(stream)
    reasons = [event["reason"] for event in stream.guard.take_events()]
    assert reasons == ["the head gives features that are not finite", "the gradient is not finite"]


def test_refusals_in_a_row_lead_back_to_the_frozen_head_and_pauses_grow(fitted: Talon) -> None:
    frozen = head(opened(fitted))
    settings = GuardConfig(most_new=1.0, patience=2, pause=1, longest_pause=3)
    stream = opened(fitted, guard=settings)
    images = tiny.incoming() * 5
    stream.observe_many(images[:32])
    assert not same(frozen, head(stream))
    rush(stream, HARMFUL)
    stream.observe_many(images[32:])
    assert same(frozen, head(stream))
    kinds = [event["kind"] for event in stream.guard.take_events()]
    assert kinds[:6] == ["refused", "refused", "rolled_back"] * 2
    # 1 step taken, then 2 refused + 1 adaptation left out, 2 + 2, 2 + 3, 2 + 3, ...: a step and its verdict are two
    adaptations = len(images) // 16
    pauses, at = [], 2
    for length in (1, 2, 3, 3, 3, 3, 3):
        pauses.append((at + 4, length))
        at += 4 + length
    rolled_back = [length for start, length in pauses if start <= adaptations]
    assert stream.guard.rolled_back == len(rolled_back) >= 4
    judged = stream.guard.taken + stream.guard.refused
    assert 2 * judged + waits(stream) + stream.guard.skipped == adaptations
    assert stream.guard.skipped == sum(rolled_back) - stream.guard.pause


def test_a_step_that_passes_ends_the_row_of_refusals(fitted: Talon) -> None:
    stream, images = opened(fitted, guard=GuardConfig(most_new=1.0, patience=2)), tiny.incoming() * 2
    for start, rate in enumerate((HARMFUL, GENTLE, HARMFUL, GENTLE)):
        rush(stream, rate)
        stream.observe_many(images[32 * start : 32 * start + 32])
    assert (stream.guard.refused, stream.guard.taken, stream.guard.rolled_back) == (2, 2, 0)


def test_what_the_memory_lost_is_not_the_fault_of_a_step(fitted: Talon) -> None:
    stream = opened(fitted, guard=GuardConfig(most_new=1.0, most_of_one=1.0), encoder_lr=0.0)
    known = stream.memory.prototypes[: stream.memory.known].clone()
    stream.memory.replace(torch.arange(len(known)), known.roll(1, dims=0))  # every class has another one's prototype
    stream.observe_many(tiny.incoming(64))
    assert (stream.guard.taken, stream.guard.refused) == (2, 0)


def test_the_end_of_a_stream_is_an_adaptation_like_others(fitted: Talon) -> None:
    stream, images = opened(fitted, guard=GuardConfig(most_new=1.0)), tiny.incoming()
    stream.observe_many(images[:24])
    assert waits(stream) and stream.adapter.steps == 0
    stream.flush()
    assert not waits(stream) and stream.adapter.steps == stream.guard.taken == 1


def test_events_that_nobody_takes_do_not_pile_up(fitted: Talon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_EVENTS", 5)
    stream = opened(fitted, threshold=1.5, guard=GuardConfig(), probe=8, adapt_every=4)
    stream.observe_many(tiny.incoming(72))
    assert stream.guard.skipped > 5
    assert [event["answered"] for event in stream.guard.take_events()] == [56, 60, 64, 68, 72]


def test_a_probe_without_images_or_labels_is_refused() -> None:
    for images, labels in ((0, 0), (2, 1)):
        with pytest.raises(DataError, match=f"{labels} labels for {images} images"):
            Probe(torch.zeros(images, 3), torch.zeros(labels, dtype=torch.int64))
