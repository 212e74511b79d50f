"""Guards with their models and streams: who has one, and how it goes on after a save."""

from pathlib import Path

import pytest
from safetensors.torch import load, save

from talon_ocd import Talon
from talon_ocd.config import GuardConfig
from talon_ocd.online import Guard
from talon_ocd.online import guard as module
from tests import tiny
from tests.online.guarded import HARMFUL, head, ids, learn_one_batch_late, opened, rush, same, waits


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


def test_a_model_guards_the_streams_whose_encoder_learns(fitted: Talon) -> None:
    assert fitted.stream().guard is None
    guarded = fitted.stream(adapt="prototypes,encoder")
    assert isinstance(guarded.guard, Guard) and guarded.guard is not fitted.stream(adapt="encoder").guard
    assert fitted.stream(threshold=0.8, adapt="encoder").guard is not None


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
