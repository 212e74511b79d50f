"""The guard: refuses encoder steps that harm what the model knew (layer: online; ``docs/guard.md``).

Test-time adaptation has no labels, so it can walk away from them: a burst of one class, noise or another camera pull
the encoder until known classes are lost. The guard takes every step on the side, at one adaptation, and asks a probe of
labelled images about it at the next ones, so that none holds answers up for longer than a step of the head, and no head
answers before it has passed. Readings are compared with the frozen head's at the very same memory: what the memory
alone lost is not the step's fault.
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
from talon_ocd.online.candidate import Candidate, set_values, values_of
from talon_ocd.online.feature_stream import FeatureStream, section
from talon_ocd.online.probe import Probe, Reading, alikeness, own_cosines, read

Kind = Literal["skipped", "refused", "rolled_back"]
WINDOW = 64
"""Answers, at least, over which bursts and the rate of new categories are looked at."""
SMALLEST_SPREAD = 0.01
"""Least standard deviation of the probe's cosines: a probe of twins has none, and nothing moves by nothing."""
ENTROPY_SHARE = 0.1
"""Share of log C, the entropy of knowing nothing, by which the probe's entropy may differ from the frozen head's."""
LOOKED_AT = 2
"""Probe images that are passed through a head at one adaptation, for each image of ``adapt_every``: a step passes those
forward and backward, which is no less than two passes forward."""
QUICKLY_READ = 1000
"""Categories up to which a verdict falls together with the last look; it is read off all of them, for three heads, and
has an adaptation of its own where they are more."""
MOST_EVENTS = 1000
"""Verdicts that wait for ``take_events``; the oldest are dropped, the totals stay."""


@dataclass(frozen=True)
class GuardVerdict:
    """Why an encoder step was not taken, or why the head went back.

    Attributes:
        kind: ``skipped`` (the batch should not drive a step), ``refused`` (the step was dropped) or ``rolled_back``
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
        taken: steps that passed; the head has answered with them since.
        skipped: adaptations without a step because of their batch, or in a pause.
        refused: steps that were dropped.
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
        self._candidate: Candidate | None = None
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)

    def begin(self, adapter: EncoderAdapter, discovery: FeatureStream) -> None:
        """Remember the frozen head of a stream that starts, and what the probe says of it."""
        self._hidden = self.probe.hidden.to(adapter.parameters[0].device, torch.float32)
        self._at_once = LOOKED_AT * adapter.config.adapt_every
        self._frozen_values = values_of(adapter)
        self._frozen = self._current = self._features(adapter)
        self._highest = discovery.memory.next_id - 1
        self._nearest = self._read(self._frozen, discovery).nearest

    def remember(self, ids: Tensor) -> None:
        """Add the answers ``(B,)`` to the window; who has a higher id than all before founded a category."""
        founded = torch.zeros_like(ids)
        for position, category in enumerate(ids.tolist()):
            if category > self._highest:
                founded[position], self._highest = 1, category
        self._recent = torch.cat([self._recent, torch.stack([ids, founded])], dim=1)[:, -max(WINDOW, len(ids)) :]

    def step(
        self, adapter: EncoderAdapter, hidden: Tensor, slots: Tensor, graph: Tensor | None, discovery: FeatureStream
    ) -> None:
        """Adapt once: take a step on the side, or ask the probe about the last one and go on with it if it passes.

        The batch's answers are remembered by then (``remember``).

        Args:
            adapter: the stream's head with its updates.
            hidden: trunk outputs of the batch ``(B, *hidden_shape)``.
            slots: its answers ``(B,)``, positions in the memory.
            graph: the batch's features with their graph, if there is one.
            discovery: memory and rule as they are.
        """
        if self.pause:
            self.pause -= 1
            self.skipped += 1
        elif self._candidate is None:
            self._take_aside(adapter, hidden, slots, graph, discovery)
        else:
            self._look(adapter, self._candidate, discovery)

    def take_events(self) -> list[dict[str, Any]]:
        """Return the verdicts since the last call as plain data: kind, reason, answered, values."""
        events = list(self._events)
        self._events.clear()
        return events

    def state_dict(self) -> dict[str, Tensor]:
        """Return counters, pause, window, reference and the step that waits; the frozen head itself is the model's."""
        counters = (self.taken, self.skipped, self.refused, self.rolled_back, self.pause, self._in_a_row, self._highest)
        events = json.dumps(list(self._events)).encode()
        waiting = {} if self._candidate is None else self._candidate.state_dict()
        return {
            "counters": torch.tensor(counters),
            "recent": self._recent.clone(),
            "nearest": torch.tensor(self._nearest, dtype=torch.float64),
            "events": torch.frombuffer(bytearray(events), dtype=torch.uint8),
            **{f"candidate.{name}": value for name, value in waiting.items()},
        }

    def load_state_dict(self, state: Mapping[str, Tensor], adapter: EncoderAdapter) -> None:
        """Go on where the guard that gave ``state`` was, with a head that is loaded by now.

        The state of a stream without a guard is empty: counters, window and reference stay.
        """
        self._current = self._features(adapter)
        waiting = section(state, "candidate")
        self._candidate = Candidate.from_state_dict(waiting, adapter) if waiting else None
        if not state:
            return
        counters = state["counters"].tolist()
        self.taken, self.skipped, self.refused, self.rolled_back, self.pause, self._in_a_row, self._highest = counters
        self._recent = state["recent"].clone()
        self._nearest = float(state["nearest"])
        self._events = deque(json.loads(bytes(state["events"].tolist())), maxlen=MOST_EVENTS)

    def _take_aside(
        self, adapter: EncoderAdapter, hidden: Tensor, slots: Tensor, graph: Tensor | None, discovery: FeatureStream
    ) -> None:
        """Take a step on the side, unless the batch should not drive one."""
        graph = adapter.encode(hidden, with_graph=True) if graph is None else graph
        why = self._unfit(graph.detach(), discovery)
        if why is not None:
            self.skipped += 1
            self._say("skipped", *why, discovery.answered)
            return
        before, steps = values_of(adapter), adapter.steps
        adapter.step(hidden, slots, discovery.memory.prototypes.to(hidden.device), graph)
        taken, adapter.steps = adapter.steps - steps, steps
        if not taken:
            self._refuse(adapter, "the gradient is not finite", {}, discovery.answered)
            return
        self._candidate = Candidate(values_of(adapter), taken, self._frozen[:0])
        set_values(adapter, before)

    def _look(self, adapter: EncoderAdapter, candidate: Candidate, discovery: FeatureStream) -> None:
        """Pass the next part of the probe through a candidate; after the last one it is adopted or refused."""
        part = self._hidden[len(candidate.features) :][: self._at_once]
        if len(part):
            with candidate.worn_by(adapter):
                candidate.features = torch.cat([candidate.features, adapter.encode(part).cpu()])
            if len(candidate.features) < len(self.probe) or discovery.memory.size > QUICKLY_READ:
                return
        self._candidate = None
        self._judge(adapter, candidate, discovery)

    def _judge(self, adapter: EncoderAdapter, candidate: Candidate, discovery: FeatureStream) -> None:
        """Let the adapter have a candidate, unless the probe complains."""
        if not torch.isfinite(candidate.features).all():
            self._refuse(adapter, "the head gives features that are not finite", {}, discovery.answered)
            return
        frozen, before, after = (
            self._read(features, discovery) for features in (self._frozen, self._current, candidate.features)
        )
        complaint = self._complaint(frozen, before, after)
        if complaint is not None:
            self._refuse(adapter, complaint, after.values(), discovery.answered)
            return
        self.taken += 1
        self._in_a_row, self._current = 0, candidate.features
        candidate.adopt(adapter)

    def _features(self, adapter: EncoderAdapter) -> Tensor:
        """Return the probe's features ``(P, D)``, computed in the parts in which candidates are looked at."""
        return torch.cat([adapter.encode(part).cpu() for part in self._hidden.split(self._at_once)])

    def _read(self, features: Tensor, discovery: FeatureStream) -> Reading:
        return read(features, self.probe.labels, discovery)

    def _unfit(self, features: Tensor, discovery: FeatureStream) -> tuple[str, dict[str, float]] | None:
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
        if len(features) < WINDOW // 2:
            return None
        # a share s of one class gives s^2 of the way from images of any class to images of one
        any_class = alikeness(self._frozen)
        of_one = float(own_cosines(self._frozen, self.probe.labels, discovery).double().mean()) ** 2
        alike = (alikeness(features) - any_class) / max(of_one - any_class, SMALLEST_SPREAD)
        if alike > most**2:
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
        set_values(adapter, self._frozen_values)
        self._current = self._frozen
        text = f"{refusals} steps in a row were refused: back to the frozen head, {self.pause} adaptations are left out"
        self._say("rolled_back", text, {"pause": float(self.pause)}, now)

    def _say(self, kind: Kind, reason: str, values: dict[str, float], now: int) -> None:
        self._events.append(asdict(GuardVerdict(kind, reason, now, values)))
