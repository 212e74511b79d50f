import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from talon_ocd import Decision, DiscoveryStream, Talon
from talon_ocd.config import ADAPTATIONS, GuardConfig
from talon_ocd.errors import DataError
from talon_ocd.images import ImageItem, memory_item
from talon_ocd.online import EvidenceRule, Guard, Probe
from talon_ocd.online import guard as module
from tests import tiny

FINER = 2.0
"""Nats: the rule refuses noise, so that it is the encoder that suffers."""
GENTLE, HARMFUL = 1e-4, 30.0
BY_BOTH_RULES = pytest.mark.parametrize("threshold", [0.8, None], ids=["cosine", "evidence"])


def opened(
    talon: Talon,
    threshold: float | None = 0.8,
    guard: GuardConfig | None = None,
    probe: int = 32,
    finer: float = 0.0,
    every: int = 100,
    **changes: Any,
) -> Any:
    """A stream whose whole head adapts every 16 answers; without a threshold evidence decides.

    A probe of 32 images is looked at in one part: a step at one adaptation, the verdict at the next. Second thoughts,
    ``every`` so many adaptations, have a turn of their own: by default these streams are too short for any.
    """
    lively = {"adapt": ADAPTATIONS, "adapt_every": 16, "encoder_lr": GENTLE, "encoder_scope": "head"}
    online = replace(talon.config.online, **{**lively, **changes})
    rule = None
    if threshold is None:
        assert talon.evidence is not None
        evidence = talon.evidence.with_offset(talon.evidence.offset + finer)
        settings = replace(talon.config.evidence, every=every, learn_share=False)  # noise would teach that all is new
        rule = EvidenceRule(evidence, settings)
    else:
        online = replace(online, threshold=threshold)
    assert talon.probe is not None
    guardian = None if guard is None else Guard(tiny.some_of(talon.probe, probe), guard)
    return DiscoveryStream(talon.backbone, talon.memory.copy(), online, talon.names, rule=rule, guard=guardian)


def head(stream: DiscoveryStream) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in stream.adapter.head.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def ids(decisions: list[Decision]) -> list[int]:
    return [decision.category for decision in decisions]


def rush(stream: DiscoveryStream, rate: float) -> None:
    """Let the encoder learn at another rate from now on."""
    stream.adapter.config = replace(stream.adapter.config, encoder_lr=rate)


def one_class(count: int) -> list[ImageItem]:
    return list(tiny.part(20, 20 + count, ("1",)))


def noise(count: int) -> list[ImageItem]:
    random = np.random.default_rng(0)
    return [memory_item(random.integers(0, 256, (8, 8), dtype=np.uint8), f"noise {number}") for number in range(count)]


def waits(stream: Any) -> bool:
    """Is there a step that was not judged yet?"""
    return any(name.startswith("guard.candidate.") for name in stream.state_dict())


def learn_one_batch_late(stream: Any) -> None:
    """Let a stream without a guard do what one whose steps all pass should do: every other step, one batch late."""
    adapter, waiting = stream.adapter, list[dict[str, Tensor]]()
    step = adapter.step

    def late(*words: Any) -> None:
        if waiting:
            adapter.load_state_dict(waiting.pop())
            return
        before = adapter.state_dict()
        step(*words)
        waiting.append(adapter.state_dict())
        adapter.load_state_dict(before)

    adapter.step = late


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
    assert thought == [4, 8]
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


def test_what_the_memory_lost_is_not_the_fault_of_a_step(fitted: Talon) -> None:
    stream = opened(fitted, guard=GuardConfig(most_new=1.0, most_of_one=1.0), encoder_lr=0.0)
    known = stream.memory.prototypes[: stream.memory.known].clone()
    stream.memory.replace(torch.arange(len(known)), known.roll(1, dims=0))  # every class has another one's prototype
    stream.observe_many(tiny.incoming(64))
    assert (stream.guard.taken, stream.guard.refused) == (2, 0)


@pytest.mark.parametrize(
    ("probe", "quickly_read"), [(32, 1000), (64, 1000), (32, 0)], ids=["one look", "two looks", "a late verdict"]
)
def test_the_guard_goes_on_after_a_save_as_if_nothing_had_been(
    fitted: Talon, monkeypatch: pytest.MonkeyPatch, probe: int, quickly_read: int
) -> None:
    monkeypatch.setattr(module, "QUICKLY_READ", quickly_read)
    settings, images, waited = GuardConfig(patience=2, pause=2), tiny.incoming() * 2, set()
    whole, first, second = (opened(fitted, guard=settings, probe=probe) for _ in range(3))
    for stream in (whole, first):
        stream.observe_many(images[:32])
    for stream in (whole, first, second):
        rush(stream, HARMFUL)
    expected = ids(whole.observe_many(images[32:]))
    for cut in range(32, len(images), 17):
        kept = save(first.state_dict())
        waited.add(waits(first))
        second.load_state_dict(load(kept))
        answers = ids(second.observe_many(images[cut:]))
        assert answers == expected[cut - 32 :] and same(second.state_dict(), whole.state_dict())
        assert same(head(second), head(whole))
        first.observe_many(images[cut : cut + 17])
    assert waited == {True, False} and second.guard.rolled_back == whole.guard.rolled_back >= 1
    assert second.guard.take_events() == whole.guard.take_events() != []


def test_a_stream_that_goes_back_drops_the_step_that_waits(fitted: Talon) -> None:
    stream, images = opened(fitted, guard=GuardConfig(most_new=1.0)), tiny.incoming()
    stream.observe_many(images[:32])
    earlier = stream.state_dict()
    stream.observe_many(images[32:48])
    assert waits(stream)
    stream.go_back(earlier)
    assert not waits(stream) and stream.guard.taken == 1


def test_the_end_of_a_stream_is_an_adaptation_like_others(fitted: Talon) -> None:
    stream, images = opened(fitted, guard=GuardConfig(most_new=1.0)), tiny.incoming()
    stream.observe_many(images[:24])
    assert waits(stream) and stream.adapter.steps == 0
    stream.flush()
    assert not waits(stream) and stream.adapter.steps == stream.guard.taken == 1


def test_states_with_and_without_a_guard_go_together(fitted: Talon) -> None:
    images = tiny.incoming()
    guarded, free = opened(fitted, guard=GuardConfig(most_new=1.0)), opened(fitted)
    free.observe_many(images[:32])
    guarded.observe_many(images[:48])
    later, unguarded = opened(fitted, guard=GuardConfig(most_new=1.0)), opened(fitted)
    later.observe_many(images[:16])
    assert waits(later) and waits(guarded)
    later.load_state_dict(free.state_dict())
    assert not waits(later)  # its step was of another head
    unguarded.load_state_dict(guarded.state_dict())
    assert same(head(unguarded), head(guarded)) and ids(unguarded.observe_many(images[48:])) != []
    learn_one_batch_late(free)
    expected = ids(free.observe_many(images[32:64]))
    assert ids(later.observe_many(images[32:64])) == expected and same(head(later), head(free))
    assert later.guard.taken == 1
    rush(later, HARMFUL)
    before = head(later)
    later.observe_many(images[64:96])
    assert later.guard.refused == 1 and same(before, head(later))  # before is not the head that it started with


def test_events_that_nobody_takes_do_not_pile_up(fitted: Talon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_EVENTS", 5)
    stream = opened(fitted, threshold=1.5, guard=GuardConfig(), probe=8, adapt_every=4)
    stream.observe_many(tiny.incoming(72))
    assert stream.guard.skipped > 5
    assert [event["answered"] for event in stream.guard.take_events()] == [56, 60, 64, 68, 72]


def accuracy(stream: DiscoveryStream) -> float:
    """Share of clean digits of known classes that the stream answers with their class."""
    items = tiny.part(50, 70, tiny.KNOWN)
    return float(np.mean([stream.decide(item).category == int(str(item.label)) for item in items]))


@pytest.mark.parametrize("threshold", [-1.0, None], ids=["nearest", "evidence"])
def test_a_bad_stream_ruins_the_encoder_unless_it_is_guarded(fitted: Talon, threshold: float | None) -> None:
    bad = [*one_class(48), *noise(48), *list(tiny.part(20, 52, ("5",))), *noise(32)] * 2
    without = opened(fitted, threshold, finer=FINER, adapt=("prototypes",))
    free, guarded = (opened(fitted, threshold, one, 80, FINER, encoder_lr=3.0) for one in (None, GuardConfig()))
    for stream in (without, free, guarded):
        stream.observe_many(bad)
    assert accuracy(free) < accuracy(without) - 0.05  # the pre-trained part can't be ruined
    assert accuracy(guarded) > accuracy(without) - 0.05


def test_a_model_guards_the_streams_whose_encoder_learns(fitted: Talon) -> None:
    assert fitted.stream().guard is None
    guarded = fitted.stream(adapt="prototypes,encoder")
    assert isinstance(guarded.guard, Guard) and guarded.guard is not fitted.stream(adapt="encoder").guard
    assert fitted.stream(threshold=0.8, adapt="encoder").guard is not None


def test_a_stream_with_a_folder_writes_every_verdict_once_and_goes_on_with_the_pause(
    fitted: Talon, tmp_path: Path
) -> None:
    rough = {"encoder_lr": HARMFUL, "encoder_scope": "head", "adapt_every": 8}
    talon = Talon(fitted.backbone, fitted.config.override(**rough, most_new=1.0, patience=2, pause=2))
    assert fitted.probe is not None
    talon.names, talon.evidence, talon.probe = fitted.names, fitted.evidence, tiny.some_of(fitted.probe, 16)
    talon._memory, talon._threshold = fitted.memory, fitted.threshold
    images, answers = tiny.incoming(), []
    whole = talon.stream(adapt="prototypes,encoder")
    expected = ids(whole.observe_many(images))
    assert whole.guard is not None and whole.guard.rolled_back >= 1
    for start in range(0, len(images), 23):
        with talon.stream(tmp_path / "stream", adapt="prototypes,encoder") as stream:
            answers += ids(stream.observe_many(images[start : start + 23]))
            written = [event.data["reason"] for event in stream.journal.events(0, ("guard",))]
    assert answers == expected
    assert written == [event["reason"] for event in whole.guard.take_events()]


def test_presets_of_the_paper_have_no_guard() -> None:
    talon = tiny.tiny_talon("official", epochs=0)
    talon.fit(tiny.labelled())
    assert talon.probe is None and talon.stream().guard is None


def test_a_model_without_a_probe_says_that_nothing_watches(fitted: Talon) -> None:
    bare = Talon(fitted.backbone, fitted.config)
    bare.names, bare.evidence = fitted.names, fitted.evidence
    bare._memory, bare._threshold = fitted.memory, fitted.threshold
    with pytest.warns(UserWarning, match=r"no probe.*guard\.enabled"):
        assert bare.stream(adapt="encoder").guard is None
    assert bare.stream().guard is None
    bare.config = fitted.config.override(**{"guard.enabled": False})
    assert bare.stream(adapt="encoder").guard is None


def test_a_probe_without_images_or_labels_is_refused() -> None:
    for images, labels in ((0, 0), (2, 1)):
        with pytest.raises(DataError, match=f"{labels} labels for {images} images"):
            Probe(torch.zeros(images, 3), torch.zeros(labels, dtype=torch.int64))
