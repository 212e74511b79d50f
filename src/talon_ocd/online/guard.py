"""The guard: refuses or takes back encoder steps that harm what the model knew (layer: online; ``docs/guard.md``).

Test-time adaptation has no labels, so it can walk away from them: a burst of one class, noise or another camera pull
the encoder until known classes are lost. The guard asks a probe of labelled images after every step, and compares with
the frozen head at the very same memory: what the memory alone lost is not the step's fault.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite, log, sqrt
from typing import Any, Literal

import torch
from torch import Tensor

from talon_ocd.config import GuardConfig
from talon_ocd.online.adapt import EncoderAdapter
from talon_ocd.online.feature_stream import FeatureStream
from talon_ocd.online.probe import Probe, Reading, alikeness, read

Kind = Literal["skipped", "refused", "rolled_back"]
WINDOW = 64
"""Answers, at least, over which bursts and the rate of new categories are looked at."""
SMALLEST_SPREAD = 0.01
"""Least standard deviation of the probe's cosines: a probe of twins has none, and nothing moves by nothing."""
ENTROPY_SHARE = 0.1
"""Share of log C, the entropy of knowing nothing, by which the probe's entropy may differ from the frozen head's."""
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
        taken: adaptations of the encoder that passed.
        skipped: those left out because of their batch, or in a pause.
        refused: those that were undone.
        rolled_back: times that the head went back to the frozen one.
        pause: adaptations that will still be left out.
    """

    def __init__(self, probe: Probe, config: GuardConfig | None = None) -> None:
        self.probe = probe
        self.config = GuardConfig() if config is None else config
        self.taken = self.skipped = self.refused = self.rolled_back = self.pause = 0
        self._in_a_row = 0
        self._highest = -1
        self._recent = torch.empty(2, 0, dtype=torch.int64)  # ids, and whether the answer founded its category
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)

    def begin(self, adapter: EncoderAdapter, discovery: FeatureStream) -> None:
        """Remember the frozen head of a stream that starts, and what the probe says of it."""
        self._hidden = self.probe.hidden.to(adapter.parameters[0].device, torch.float32)
        self._frozen = self._current = (_values(adapter), self._features(adapter))
        self._highest = discovery.memory.next_id - 1
        self._nearest = self._read(self._frozen[1], discovery).nearest

    def step(
        self, adapter: EncoderAdapter, hidden: Tensor, slots: Tensor, graph: Tensor | None, discovery: FeatureStream
    ) -> None:
        """Let the adapter take its step on a batch, unless it should not; undo it if the probe complains.

        Args:
            adapter: the stream's head with its updates.
            hidden: trunk outputs of the batch ``(B, *hidden_shape)``.
            slots: its answers ``(B,)``, positions in the memory.
            graph: the batch's features with their graph, if there is one.
            discovery: memory and rule as they are.
        """
        self._remember(discovery.memory.ids[slots.cpu()])
        if self.pause:
            self.pause -= 1
            self.skipped += 1
            return
        graph = adapter.encode(hidden, with_graph=True) if graph is None else graph
        frozen = self._read(self._frozen[1], discovery)
        why = self._unfit(graph.detach(), frozen)
        if why is not None:
            self.skipped += 1
            self._say("skipped", *why, discovery.answered)
            return
        before, steps = self._known(adapter), adapter.steps
        adapter.step(hidden, slots, discovery.memory.prototypes.to(hidden.device), graph)
        if adapter.steps == steps:
            self._refuse(adapter, "the gradient is not finite", {}, discovery.answered)
            return
        after = (_values(adapter), self._features(adapter))
        if not torch.isfinite(after[1]).all():
            _restore(adapter, before[0], steps)
            self._refuse(adapter, "the head gives features that are not finite", {}, discovery.answered)
            return
        reading = self._read(after[1], discovery)
        complaint = self._complaint(frozen, self._read(before[1], discovery), reading)
        if complaint is None:
            self.taken += 1
            self._in_a_row, self._current = 0, after
            return
        _restore(adapter, before[0], steps)
        self._refuse(adapter, complaint, reading.values(), discovery.answered)

    def take_events(self) -> list[dict[str, Any]]:
        """Return the verdicts since the last call as plain data: kind, reason, answered, values."""
        events = list(self._events)
        self._events.clear()
        return events

    def state_dict(self) -> dict[str, Tensor]:
        """Return counters, pause, window and reference; the frozen head itself is the model's."""
        counters = (self.taken, self.skipped, self.refused, self.rolled_back, self.pause, self._in_a_row, self._highest)
        waiting = json.dumps(list(self._events)).encode()
        return {
            "counters": torch.tensor(counters),
            "recent": self._recent.clone(),
            "nearest": torch.tensor(self._nearest, dtype=torch.float64),
            "events": torch.frombuffer(bytearray(waiting), dtype=torch.uint8),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where the guard that gave ``state`` was; an empty one (a stream without a guard) changes nothing."""
        if not state:
            return
        counters = state["counters"].tolist()
        self.taken, self.skipped, self.refused, self.rolled_back, self.pause, self._in_a_row, self._highest = counters
        self._recent = state["recent"].clone()
        self._nearest = float(state["nearest"])
        self._events = deque(json.loads(bytes(state["events"].tolist())), maxlen=MOST_EVENTS)

    def _features(self, adapter: EncoderAdapter) -> Tensor:
        return adapter.encode(self._hidden).cpu()

    def _known(self, adapter: EncoderAdapter) -> tuple[list[Tensor], Tensor]:
        """Return the head's values and the probe's features, computed anew only if somebody else moved the head."""
        values = _values(adapter)
        if not all(torch.equal(old, new) for old, new in zip(self._current[0], values, strict=True)):
            self._current = (values, self._features(adapter))
        return self._current

    def _read(self, features: Tensor, discovery: FeatureStream) -> Reading:
        return read(features, self.probe.labels, discovery)

    def _remember(self, ids: Tensor) -> None:
        """Add the answers ``(B,)`` to the window; who has a higher id than all before founded a category."""
        founded = torch.zeros_like(ids)
        for position, category in enumerate(ids.tolist()):
            if category > self._highest:
                founded[position], self._highest = 1, category
        self._recent = torch.cat([self._recent, torch.stack([ids, founded])], dim=1)[:, -max(WINDOW, len(ids)) :]

    def _unfit(self, features: Tensor, frozen: Reading) -> tuple[str, dict[str, float]] | None:
        """Say why a batch with unit features ``(B, D)`` should not drive a step, if so."""
        ids, founded = self._recent
        number, most = len(ids), self.config.most_of_one
        if number < WINDOW // 2:
            return None
        largest = float(ids.unique(return_counts=True)[1].max()) / number
        if largest > most:
            return f"{largest:.0%} of the last {number} answers are one category", {"one_category": largest}
        new = float(founded.sum()) / number
        if new > self.config.most_new:
            return f"{new:.0%} of the last {number} answers founded a category", {"new_categories": new}
        # a share s of one class gives s^2 of the way from images of any class to images of one
        alike = (alikeness(features) - frozen.alike) / max(frozen.fit**2 - frozen.alike, SMALLEST_SPREAD)
        if len(features) >= WINDOW // 2 and alike > most**2:
            return "the images of the batch are as alike as if nearly all were of one class", {"alike": alike}
        return None

    def _complaint(self, frozen: Reading, before: Reading, after: Reading) -> str | None:
        """Say what a step did to the probe that it should not have done; only what it made worse is its fault."""
        change = frozen.right.logical_xor(after.right).sum()
        tolerated = self.config.tolerance + sqrt(float(change)) / len(self.probe)  # and the error of a paired count
        if after.accuracy < min(frozen.accuracy - tolerated, before.accuracy):
            return f"known accuracy on the probe fell from {frozen.accuracy:.3f} to {after.accuracy:.3f}"
        error = sqrt(self._nearest * (1 - self._nearest) / len(self.probe))
        if after.nearest < min(self._nearest - self.config.tolerance - error, before.nearest):
            return f"probe images nearest to their own class fell from {self._nearest:.3f} to {after.nearest:.3f}"
        spread = max(float(frozen.fits.double().std(correction=0)), SMALLEST_SPREAD)
        if after.fit < min(frozen.fit - self.config.drift * spread, before.fit):
            return f"the probe's cosine with its own classes fell from {frozen.fit:.3f} to {after.fit:.3f}"
        return self._collapse(frozen, before, after)

    def _collapse(self, frozen: Reading, before: Reading, after: Reading) -> str | None:
        classes = int(self.probe.labels.max()) + 1
        moved, earlier = abs(after.entropy - frozen.entropy), abs(before.entropy - frozen.entropy)
        if moved > max(ENTROPY_SHARE * log(max(classes, 2)), earlier) or not isfinite(moved):
            return f"entropy on the probe went from {frozen.entropy:.2f} to {after.entropy:.2f} nats"
        if after.alike > max((1 + frozen.alike) / 2, before.alike):
            return f"probe images look alike: their mean cosine rose from {frozen.alike:.2f} to {after.alike:.2f}"
        return None

    def _refuse(self, adapter: EncoderAdapter, reason: str, values: dict[str, float], now: int) -> None:
        self.refused += 1
        self._in_a_row += 1
        self._say("refused", reason, values, now)
        if self._in_a_row < self.config.patience:
            return
        self.pause = min(self.config.pause * 2 ** min(self.rolled_back, 30), self.config.longest_pause)
        self.rolled_back += 1
        refusals, self._in_a_row = self._in_a_row, 0
        _restore(adapter, self._frozen[0], adapter.steps)
        text = f"{refusals} steps in a row were refused: back to the frozen head, {self.pause} adaptations are left out"
        self._say("rolled_back", text, {"pause": float(self.pause)}, now)

    def _say(self, kind: Kind, reason: str, values: dict[str, float], now: int) -> None:
        self._events.append(asdict(GuardVerdict(kind, reason, now, values)))


def _values(adapter: EncoderAdapter) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in adapter.parameters]


def _restore(adapter: EncoderAdapter, values: list[Tensor], steps: int) -> None:
    with torch.no_grad():
        for parameter, value in zip(adapter.parameters, values, strict=True):
            parameter.copy_(value)
    adapter.steps = steps
