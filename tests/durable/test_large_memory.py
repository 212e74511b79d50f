"""Streams whose memory has an index: after a restart they go on as if there had been none."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from talon_ocd import Talon
from talon_ocd.backbones import PairedHead
from talon_ocd.config import OnlineConfig
from talon_ocd.durable import DurableStream, fingerprint
from talon_ocd.memory import lists, neighbours
from tests import tiny

BOTH = "prototypes,encoder"


@lru_cache
def fitted() -> Talon:
    talon = tiny.tiny_talon(adapt_every=8, index_above=1, images=16)
    talon.fit(tiny.labelled())
    return talon


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have several lists of few prototypes, and let them go in one after another; read so few that some are missed."""
    monkeypatch.setattr(lists, "LONG", 3)
    monkeypatch.setattr(neighbours, "AT_ONCE", 2)
    monkeypatch.setattr(neighbours, "FIRST_LOOK", 1)
    monkeypatch.setattr(neighbours, "SECOND_LOOK", 1)


def opened(folder: Path, adapt: str = BOTH) -> DurableStream:
    return fitted().stream(folder, threshold=0.95, adapt=adapt)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("adapt", ["prototypes", BOTH])
@pytest.mark.parametrize("snapshot", [False, True])
def test_a_restart_goes_on_with_the_same_index(adapt: str, snapshot: bool, tmp_path: Path) -> None:
    images = tiny.incoming(90)
    with opened(tmp_path / "whole", adapt) as stream:
        wanted = [decision.category for decision in stream.run(images)]
        state = stream.state_dict()
    first = opened(tmp_path / "parts", adapt)
    found = [decision.category for decision in first.run(images[:45])]
    if snapshot:
        first.close()
    else:  # as a process that is killed: no snapshot, no goodbye
        first.journal.close()
    with opened(tmp_path / "parts", adapt) as again:
        found += [decision.category for decision in again.run(images[45:])]
        assert same(again.state_dict(), state)
    assert found == wanted
    assert len(state["discovery.memory.index.centres"]) > 2


def test_streams_from_before_there_was_an_index_go_on() -> None:
    talon, own = fitted(), fitted().config
    later = {"answer_weight": 1.0, "share_prior": 50.0, "newest": 0, "regroup": 0, "least_share": 0.1}
    settings = own.override(concentration="known", share_weight=own.evidence.prior_weight, **later)
    head = talon.backbone.head
    assert isinstance(head, PairedHead)
    weight = float(head.weight)
    try:
        head.weight.fill_(1.0)  # as it was when nobody could set it
        talon.config = replace(settings, online=OnlineConfig())
        facts = {
            "names": talon.names,
            **{part: talon.config.to_dict()[part] for part in ("online", "evidence", "guard")},
        }
        del facts["online"]["index_above"], facts["online"]["half_precision"], facts["evidence"]["smoothing_classes"]
        facts["evidence"]["smoothing"] = 0.5
        for name in (*later, "share_weight"):
            del facts["evidence"][name]
        facts["evidence"]["concentration"] = "auto"  # as it was called
        assert talon.evidence is not None
        encoder = {name: value for name, value in talon.backbone.state_dict().items() if name != "head.weight"}
        states = (talon.memory, talon.evidence, talon.probe)
        before = fingerprint(facts, encoder, *({} if part is None else part.state_dict() for part in states))
        assert talon.fingerprint() == before
        talon.config = replace(settings, online=OnlineConfig(index_above=0))  # as models have it that were saved then
        assert talon.fingerprint() == before
        for changes in ({"index_above": 50_000}, {"half_precision": True}):
            talon.config = replace(settings, online=OnlineConfig(**changes))
            assert talon.fingerprint() != before
        talon.config = replace(settings, online=OnlineConfig())
        head.weight.fill_(0.5)
        assert talon.fingerprint() != before
    finally:
        talon.config = own
        head.weight.fill_(weight)
