"""Streams whose memory has an index: what was answered stays answered, whatever another graph would find."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

from talon_ocd import Talon
from talon_ocd.config import OnlineConfig
from talon_ocd.durable import DurableStream, fingerprint
from talon_ocd.durable.journal import JOURNAL
from talon_ocd.errors import StreamError
from talon_ocd.memory import CandidateIndex, neighbours
from tests import tiny

pytest.importorskip("usearch", reason="the index needs usearch: pip install 'talon-ocd[index]'")
BOTH = "prototypes,encoder"


@lru_cache
def fitted() -> Talon:
    talon = tiny.tiny_talon(adapt_every=8, index_above=1, images=16)
    talon.fit(tiny.labelled())
    return talon


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "WAITING", 0)


def opened(folder: Path, adapt: str = BOTH) -> DurableStream:
    return fitted().stream(folder, threshold=0.7, adapt=adapt)


def killed_after(folder: Path, adapt: str = BOTH) -> tuple[list[int], dict[str, torch.Tensor]]:
    """Answer some images as a process does that is killed: no snapshot, no goodbye."""
    stream = opened(folder, adapt)
    answers = [decision.category for decision in stream.run(tiny.incoming(45))]
    state = stream.state_dict()
    stream.journal.close()
    return answers, state


@pytest.mark.parametrize("adapt", ["prototypes", BOTH])
def test_a_replay_gives_the_answers_that_a_graph_gave_once(
    adapt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, _ = killed_after(tmp_path / "right", adapt)
    with monkeypatch.context() as blind:  # this graph misses everything, exact search helps near the threshold only
        blind.setattr(CandidateIndex, "_propose", lambda self, features, look: np.full((len(features), 1), -1))
        wrong, state = killed_after(tmp_path / "wrong", adapt)
    assert wrong != right
    with opened(tmp_path / "wrong", adapt) as again:
        found = again.state_dict()
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], state[name]) for name in state)


def test_a_journal_that_names_a_category_too_far_away_is_refused(tmp_path: Path) -> None:
    answers, _ = killed_after(tmp_path / "stream")
    with sqlite3.connect(tmp_path / "stream" / JOURNAL) as connection:
        connection.execute("UPDATE decisions SET category = ? WHERE idx = 0", ((answers[0] + 1) % 4,))
    connection.close()
    with pytest.raises(StreamError, match="the journal says"):
        opened(tmp_path / "stream")


def test_streams_from_before_there_was_an_index_go_on() -> None:
    talon, settings = fitted(), fitted().config
    try:
        talon.config = replace(settings, online=OnlineConfig())
        facts = {
            "names": talon.names,
            **{part: talon.config.to_dict()[part] for part in ("online", "evidence", "guard")},
        }
        del facts["online"]["index_above"], facts["online"]["half_precision"]
        assert talon.evidence is not None
        states = (talon.backbone, talon.memory, talon.evidence, talon.probe)
        before = fingerprint(facts, *({} if part is None else part.state_dict() for part in states))
        assert talon.fingerprint() == before
        for changes in ({"index_above": 50_000}, {"half_precision": True}):
            talon.config = replace(settings, online=OnlineConfig(**changes))
            assert talon.fingerprint() != before
    finally:
        talon.config = settings
