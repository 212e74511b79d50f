"""Streams whose head adapts, with and without a guard; what the tests of guards share."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from talon_ocd import Decision, DiscoveryStream, Talon
from talon_ocd.config import ADAPTATIONS, GuardConfig
from talon_ocd.online import EvidenceRule, Guard
from tests import tiny

GENTLE, HARMFUL = 1e-4, 30.0


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
