"""The guard: refuses or takes back encoder steps that harm what the model knew (layer: online; ``docs/guard.md``).

Test-time adaptation has no labels, so it can walk away from them: a burst of one class, noise or another camera pull
the encoder until all images look alike. The guard asks a probe of labelled images after every step.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any, Literal

import torch
from torch import Tensor

from talon_ocd.config import GuardConfig
from talon_ocd.online.adapt import EncoderAdapter
from talon_ocd.online.probe import Probe, Reading, read

Kind = Literal["skipped", "refused", "rolled_back"]
WINDOW = 64
"""Answers, at least, over which bursts and the rate of new categories are looked at."""
MOST_EVENTS = 1000
"""Verdicts that wait for ``take_events``; the oldest are dropped, the totals stay."""


@dataclass(frozen=True)
class GuardVerdict:
    """Why an encoder step was not taken, or was taken back.

    Attributes:
        kind: ``skipped`` (the batch should not drive a step), ``refused`` (the step was undone) or ``rolled_back``
            (the head is the frozen one again, and steps pause).
        reason: for people.
        answered: images that the stream had answered.
        values: what was measured.
    """

    kind: Kind
    reason: str
    answered: int
    values: dict[str, float]


class Guard:
    """Judges the encoder steps of one stream.

    Attributes:
        taken: steps that passed.
        skipped: batches that were not allowed to drive a step, or came during a pause.
        refused: steps that were undone.
        rolled_back: times that the head went back to the frozen one.
        pause: adaptations that will still be left out.
    """

    def __init__(self, probe: Probe, config: GuardConfig | None = None) -> None:
        self.config = GuardConfig() if config is None else config
        self.probe = probe
        self.taken = self.skipped = self.refused = self.rolled_back = self.pause = 0
        self._in_a_row = 0
        self._highest = -1
        self._recent = torch.empty(0, dtype=torch.int64)
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._reference: Reading | None = None
        self._frozen: list[Tensor] = []

    def begin(self, adapter: EncoderAdapter, prototypes: Tensor) -> None:
        """Remember the frozen head of a stream that starts, and what the probe says of it."""
        self.probe = self.probe.to(adapter.parameters[0].device)
        self._known, self._highest = len(prototypes), len(prototypes) - 1
        self._frozen = _values(adapter)
        self._reference = self._read(adapter, prototypes)

    def step(
        self, adapter: EncoderAdapter, hidden: Tensor, ids: Tensor, prototypes: Tensor, graph: Tensor | None, now: int
    ) -> None:
        """Let the adapter take its step on a batch, unless it should not; undo it if the probe complains.

        Args:
            adapter: the stream's head with its updates.
            hidden: trunk outputs of the batch ``(B, *hidden_shape)``.
            ids: its answers ``(B,)``.
            prototypes: all prototypes ``(K, D)``, the known ones first.
            graph: the batch's features with their graph, if there is one.
            now: images that the stream has answered.
        """
        why = self._unfit(ids.cpu())
        if self.pause:
            self.pause -= 1
            self.skipped += 1
            return
        if why is not None:
            self.skipped += 1
            self._say("skipped", *why, now)
            return
        before, steps = _values(adapter), adapter.steps
        earlier = self._read(adapter, prototypes)
        adapter.step(hidden, ids, prototypes, graph)
        later = self._read(adapter, prototypes)
        complaint = self._complaint(earlier, later)
        if complaint is None:
            self.taken += 1
            self._in_a_row = 0
            return
        _restore(adapter, before, steps)
        self.refused += 1
        self._in_a_row += 1
        self._say("refused", complaint, asdict(later), now)
        if self._in_a_row >= self.config.patience:
            self._roll_back(adapter, now)

    def take_events(self) -> list[dict[str, Any]]:
        """Return the verdicts since the last call as plain data: kind, reason, answered, values."""
        events = list(self._events)
        self._events.clear()
        return events

    def state_dict(self) -> dict[str, Tensor]:
        """Return counters, pause, window and reference; the frozen head itself is the model's."""
        assert self._reference is not None
        counters = (self.taken, self.skipped, self.refused, self.rolled_back, self.pause, self._in_a_row, self._highest)
        waiting = json.dumps(list(self._events)).encode()
        return {
            "counters": torch.tensor(counters),
            "recent": self._recent.clone(),
            "reference": torch.tensor(list(asdict(self._reference).values()), dtype=torch.float64),
            "events": torch.frombuffer(bytearray(waiting), dtype=torch.uint8),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where the guard that gave ``state`` was; an empty one (a stream without a guard) changes nothing."""
        if not state:
            return
        counters = state["counters"].tolist()
        self.taken, self.skipped, self.refused, self.rolled_back, self.pause, self._in_a_row, self._highest = counters
        self._recent = state["recent"].clone()
        self._reference = Reading(*state["reference"].tolist())
        self._events = deque(json.loads(bytes(state["events"].tolist())), maxlen=MOST_EVENTS)

    def _read(self, adapter: EncoderAdapter, prototypes: Tensor) -> Reading:
        known = prototypes[: self._known].to(self.probe.hidden.device)
        return read(adapter.encode(self.probe.hidden), self.probe.labels, known, adapter.config.temperature)

    def _unfit(self, ids: Tensor) -> tuple[str, dict[str, float]] | None:
        """Say why a batch answered with ``ids`` ``(B,)`` should not drive a step, if so."""
        self._recent = torch.cat([self._recent, ids])[-max(WINDOW, len(ids)) :]
        fresh = self._recent[self._recent > self._highest]
        self._highest = max(self._highest, int(ids.max()))
        if len(self._recent) < WINDOW // 2:
            return None
        largest = float(torch.bincount(self._recent).max()) / len(self._recent)
        new = len(fresh.unique()) / len(self._recent)
        if largest > self.config.most_of_one:
            return f"{largest:.0%} of the last {len(self._recent)} answers are one category", {"one_category": largest}
        if new > self.config.most_new:
            return f"{new:.0%} of the last {len(self._recent)} answers founded a category", {"new_categories": new}
        return None

    def _complaint(self, earlier: Reading, later: Reading) -> str | None:
        """Say what a step did to the probe that it should not have done, if so."""
        start = self._reference
        assert start is not None
        if not later.finite:
            return "the head gives no finite features any more"
        if later.accuracy < start.accuracy - self._tolerance(start) and later.accuracy <= earlier.accuracy:
            return f"known accuracy on the probe fell from {start.accuracy:.3f} to {later.accuracy:.3f}"
        return None

    def _tolerance(self, start: Reading) -> float:
        """What may be lost: the configured share, and a standard error of the probe's accuracy."""
        number = len(self.probe)
        chance = (start.accuracy * number + 1) / (number + 2)
        return self.config.tolerance + sqrt(chance * (1 - chance) / number)

    def _roll_back(self, adapter: EncoderAdapter, now: int) -> None:
        self.pause = min(self.config.pause * 2**self.rolled_back, self.config.longest_pause)
        self.rolled_back += 1
        refusals, self._in_a_row = self._in_a_row, 0
        _restore(adapter, self._frozen, adapter.steps)
        reason = f"{refusals} steps in a row were refused: back to the frozen head, {self.pause} adaptations left out"
        self._say("rolled_back", reason, {"pause": float(self.pause)}, now)

    def _say(self, kind: Kind, reason: str, values: dict[str, float], now: int) -> None:
        self._events.append(asdict(GuardVerdict(kind, reason, now, values)))


def _values(adapter: EncoderAdapter) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in adapter.parameters]


def _restore(adapter: EncoderAdapter, values: list[Tensor], steps: int) -> None:
    with torch.no_grad():
        for parameter, value in zip(adapter.parameters, values, strict=True):
            parameter.copy_(value)
    adapter.steps = steps
