"""Names and merges go on meaning what they mean when images are grouped anew, also in a replay."""

from __future__ import annotations

import shutil
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from talon_ocd import Catalog, Talon
from talon_ocd.durable import DurableStream
from talon_ocd.online import EvidenceRule
from tests import tiny


@lru_cache
def fitted() -> Talon:
    """A model whose streams open many categories, and group anew after 8, 16, 32, ... answers."""
    talon = tiny.tiny_talon(epochs=0, offset=9.0, adapt_every=4, every=2)
    talon.fit(tiny.labelled())
    return talon


def homes(stream: DurableStream) -> list[int]:
    rule = stream.discovery.rule
    assert isinstance(rule, EvidenceRule)
    return [int(home) for home in rule.recent.thoughts()[2]]


@pytest.mark.parametrize("kind", ["named", "merged"])
def test_images_of_categories_that_people_named_or_merged_stay_and_replays_agree(tmp_path: Path, kind: str) -> None:
    images = tiny.incoming(64)
    with fitted().stream(tmp_path / "whole") as stream:
        stream.observe_many(images[:31])
        discovered = [home for home in homes(stream) if home >= stream.memory.known]
        most = np.bincount(discovered).argsort()[::-1].tolist()
        assert len(set(discovered)) > 3
        catalog = Catalog(stream.journal, stream.apply)
        event = catalog.rename(most[0], "lynx") if kind == "named" else catalog.merge(most[:2])
        held = set(most[: 1 if kind == "named" else 2])
        stream.observe_many(images[31:32])  # the 32nd answer groups anew
        (written,) = stream.journal.events(kinds=("held",))
        assert written.answered == 32 and set(written.data["categories"]) == held and written.seq > event.seq
        rule = stream.discovery.rule
        assert isinstance(rule, EvidenceRule) and set(rule.held.tolist()) == held
        stream.observe_many(images[32:50])
        catalog.rename(most[2], "wolf")  # too late for what was grouped anew before
        wanted = homes(stream)
        shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    with fitted().stream(tmp_path / "killed") as again:
        assert homes(again) == wanted
        more = [decision.category for decision in again.observe_many(images[50:])]
        assert len(more) == 14 and [event.answered for event in again.journal.events(kinds=("held",))] == [32, 64]
