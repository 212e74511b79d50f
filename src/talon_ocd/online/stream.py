"""Discovery on images: one stream object owns memory, adapted head and buffer (layer: online).

The trunk runs once for every image. The head runs once as well: when a whole batch arrives, the forward pass that
decides is the one that the encoder update differentiates, because adaptation uses the very weights that decided.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from talon_ocd.backbones import Backbone
from talon_ocd.config import OnlineConfig
from talon_ocd.images import ImageItem, Skipped, batches, file_item, memory_item
from talon_ocd.memory import PrototypeMemory
from talon_ocd.online.adapt import AdaptationLoss, EncoderAdapter
from talon_ocd.online.bounds import Bounds
from talon_ocd.online.decision import Decision
from talon_ocd.online.feature_stream import FeatureStream, section
from talon_ocd.online.guard import Guard
from talon_ocd.online.rules import Assignment, EvidenceRule
from talon_ocd.online.second_thoughts import SecondThoughts
from talon_ocd.progress import StageClock

Picture = str | Path | bytes | Image.Image | npt.NDArray[np.uint8] | Tensor | ImageItem
T = TypeVar("T")
OnSkip = Callable[[Skipped], None]
TRUNK_BATCH = 64
"""Images that go through the trunk together."""
MOST_AHEAD = 256
"""Images that ``run`` holds before it answers, however long the adaptation interval is."""


class DiscoveryStream:
    """A stream of images: every one gets an answer at once, and the stream learns every ``adapt_every`` answers.

    Attributes:
        discovery: memory, rule and prototype update (a stream of features).
        adapter: the stream's own copy of the head and its updates; the model that made the stream stays as it is.
        guard: judges the encoder's steps before the head has them; ``None``: all are taken.
        clock: time spent by stage (``encode``, ``decide``, ``adapt``).
    """

    def __init__(
        self,
        backbone: Backbone,
        memory: PrototypeMemory,
        config: OnlineConfig,
        names: Sequence[str] = (),
        loss: AdaptationLoss | None = None,
        rule: EvidenceRule | None = None,
        guard: Guard | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.backbone = backbone
        self.config = config
        self.discovery = FeatureStream(memory, config, names, rule, bounds)
        scope = backbone.head_parameter_names(config.encoder_scope)
        self.adapter = EncoderAdapter(copy.deepcopy(backbone.head), scope, config, loss)
        self.guard = guard
        if guard is not None:
            guard.begin(self.adapter, self.discovery)
        self.clock = StageClock()
        self._hidden: list[Tensor] = []
        self._ids: list[Tensor] = []
        self._graph: Tensor | None = None
        self._given: Tensor | None = None

    @property
    def categories(self) -> int:
        """Categories discovered so far, of which people have heard."""
        return len(self.discovery.heard_of()) - self.memory.known

    def name(self, category: int) -> str:
        """Return the name of a category until somebody names it."""
        return self.discovery.name(category)

    def facts(self) -> dict[str, Any]:
        """Return how it decides and what learns, for summaries."""
        rule, adapt = self.discovery.rule, ",".join(self.config.adapt)
        return {"rule": rule.name, "unit": rule.unit, "threshold": rule.threshold, "adapt": adapt or "none"}

    def unseen(self, items: Sequence[ImageItem]) -> list[ImageItem]:
        """Return the images that ``run_items`` would answer: all, since a stream in memory remembers none."""
        return list(items)

    @property
    def memory(self) -> PrototypeMemory:
        """The categories with their prototypes and counts."""
        return self.discovery.memory

    @property
    def answered(self) -> int:
        """Answers given so far."""
        return self.discovery.answered

    def decide(self, picture: Picture) -> Decision:
        """Answer one picture (path, bytes, PIL, array, tensor) without learning anything from it."""
        item, canvas = self._load(picture)
        return self.decide_hidden(self.encode_loaded([canvas]), [item])[0]

    def observe(self, picture: Picture) -> Decision:
        """Answer one picture and learn from it; one that can't be used raises ``ImageError`` and changes nothing."""
        return self.observe_many([picture])[0]

    def observe_many(self, pictures: Iterable[Picture]) -> list[Decision]:
        """Answer pictures in order; the decisions are those of one ``observe`` after another.

        If one of them can't be used, ``ImageError`` says which and nothing is learned; ``run`` skips such pictures.
        """
        loaded = [self._load(picture) for picture in pictures]
        return self.observe_loaded([item for item, _ in loaded], [canvas for _, canvas in loaded])

    def run(self, items: Iterable[ImageItem], on_skip: OnSkip = lambda skipped: None) -> Iterator[Decision]:
        """Answer a source of images; what can't be used goes to ``on_skip`` and the stream goes on."""
        return (decision for decision, _ in self.run_items(items, on_skip))

    def run_items(
        self,
        items: Iterable[ImageItem],
        on_skip: OnSkip = lambda skipped: None,
        batch_size: int | None = None,
    ) -> Iterator[tuple[Decision, ImageItem]]:
        """Answer a source of images and give every image back with its answer.

        Whole batches of ``batch_size`` (default: up to the next adaptation) are the fastest; 1 answers every image
        before the next one is read.
        """
        most = MOST_AHEAD if batch_size is None else batch_size
        for batch in batches(items, self.backbone.preprocessing, lambda: min(self.discovery.room, most), on_skip):
            yield from zip(self.observe_loaded(batch.items, batch.canvases), batch.items, strict=True)

    def observe_loaded(self, items: Sequence[ImageItem], canvases: Sequence[Tensor]) -> list[Decision]:
        """Answer images that somebody else has decoded: canvases are ``(3, H, W)`` uint8."""
        return self.observe_hidden(self.encode_loaded(canvases), items) if items else []

    def encode_loaded(self, canvases: Sequence[Tensor]) -> Tensor:
        """Return trunk outputs ``(N, *hidden_shape)``; the trunk never learns, so that any thread may do this."""
        return torch.cat([self._trunk(part) for part in _parts(canvases)])

    def decide_hidden(self, hidden: Tensor, items: Sequence[ImageItem | str]) -> list[Decision]:
        """Answer images given by their trunk outputs ``(N, *hidden_shape)``, each as if it came next."""
        return self.look_hidden(hidden, items)[0]

    def look_hidden(self, hidden: Tensor, items: Sequence[ImageItem | str]) -> tuple[list[Decision], Tensor]:
        """Do what ``decide_hidden`` does, and return the unit features ``(N, D)`` too."""
        features = self.adapter.encode(hidden).cpu()
        return self.discovery.decisions(self.discovery.look(features), _sources(items), self.answered), features

    def observe_hidden(self, hidden: Tensor, items: Sequence[ImageItem | str]) -> list[Decision]:
        """Answer images given by their trunk outputs ``(N, *hidden_shape)``, for those who cache them."""
        decisions: list[Decision] = []
        while len(decisions) < len(hidden):
            part = slice(len(decisions), len(decisions) + self.discovery.room)
            first, (features, assignment) = self.answered, self._place(hidden[part])
            answers = self.discovery.decisions(assignment, _sources(items[part]), first)
            self._written(answers, items[part], features, hidden[part])
            decisions += answers
            if self.discovery.room == 0:
                self._adapt_in_time()
        return decisions

    def observe_encoded(
        self, features: Tensor, items: Sequence[ImageItem | str], hidden: Tensor | None = None
    ) -> list[Decision]:
        """Answer images whose unit features ``(N, D)`` a copy of this stream's head made elsewhere.

        ``hidden`` are the trunk outputs ``(N, *hidden_shape)`` behind them: only an encoder that adapts needs those.
        """
        self._given = features
        try:
            return self.observe_hidden(features if hidden is None else hidden, items)
        finally:
            self._given = None

    def place(self, hidden: Tensor) -> Assignment:
        """Answer at most ``discovery.room`` images ``(B, *hidden_shape)``, and adapt if none is left to wait for."""
        _, assignment = self._place(hidden)
        if self.discovery.room == 0:
            with self.clock("adapt"):
                self.flush()
        return assignment

    def flush(self) -> None:
        """Adapt to the answers since the last adaptation, however few; the protocol does so at the end of a stream."""
        rests = self.discovery.thinks_alone  # both at once would hold answers up for longer than a step of the head
        if self.config.encoder_first:
            self._adapt_encoder(rests)
            self.discovery.adapt()
        else:
            self.discovery.adapt()
            self._adapt_encoder(rests)
        self._hidden.clear()
        self._ids.clear()
        self._graph = None

    def go_back(self, state: Mapping[str, Tensor]) -> list[int]:
        """Go on with what an earlier state had learned; see ``FeatureStream.go_back``."""
        gone = self.discovery.go_back(section(state, "discovery"))
        self.adapter.load_state_dict(section(state, "adapter"))
        if self.guard is not None:
            self.guard.load_state_dict(section(state, "guard"), self.adapter)
        self._hidden, self._ids, self._graph = [], [], None
        return gone

    def second_thoughts(self) -> SecondThoughts | None:
        """Return what would be answered differently by now: see ``FeatureStream.second_thoughts``."""
        return self.discovery.second_thoughts()

    def state_dict(self) -> dict[str, Tensor]:
        """Return all that the stream has learned and what it is waiting with, ready for safetensors."""
        waiting = {"hidden": torch.cat(self._hidden)} if self._hidden else {}
        if self._ids:
            waiting["ids"] = torch.cat(self._ids)
        parts = {"discovery": self.discovery.state_dict(), "adapter": self.adapter.state_dict(), "waiting": waiting}
        if self.guard is not None:
            parts["guard"] = self.guard.state_dict()
        return {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where the stream that gave ``state`` was."""
        self.discovery.load_state_dict(section(state, "discovery"))
        self.adapter.load_state_dict(section(state, "adapter"))
        if self.guard is not None:
            self.guard.load_state_dict(section(state, "guard"), self.adapter)
        waiting = section(state, "waiting")
        self._hidden = [waiting["hidden"].to(self.backbone.device)] if "hidden" in waiting else []
        self._ids = [waiting["ids"]] if "ids" in waiting else []
        self._graph = None

    def _encode(self, hidden: Tensor) -> Tensor:
        """Return unit features ``(B, D)``; keeps what the encoder update will need."""
        learns = "encoder" in self.config.adapt
        if self._given is not None:
            features, self._given = self._given[: len(hidden)], self._given[len(hidden) :]
            self._hidden += [hidden] if learns else []
            return features
        if not learns:
            return self.adapter.encode(hidden).cpu()
        whole_batch = not self._hidden and len(hidden) == self.config.adapt_every
        features = self.adapter.encode(hidden, with_graph=whole_batch)
        self._hidden.append(hidden)
        self._graph = features if whole_batch else None
        return features.detach().cpu()

    def _adapt_encoder(self, rests: bool) -> None:
        """Let the encoder learn from what waits; one that rests takes no step, and its guard only remembers."""
        if "encoder" not in self.config.adapt or not self._hidden:
            return
        slots = torch.cat(self._ids)
        if self.guard is not None:
            self.guard.remember(self.memory.ids[slots])
        if rests:
            return
        hidden = torch.cat(self._hidden) if len(self._hidden) > 1 else self._hidden[0]
        slots = slots.to(hidden.device)
        if self.guard is None:
            self.adapter.step(hidden, slots, self.memory.prototypes.to(hidden.device), self._graph)
        else:
            self.guard.step(self.adapter, hidden, slots, self._graph, self.discovery)

    def _place(self, hidden: Tensor) -> tuple[Tensor, Assignment]:
        """Answer images ``(B, *hidden_shape)``; returns their unit features ``(B, D)``, too."""
        with self.clock("encode"):
            features = self._encode(hidden)
        with self.clock("decide"):
            assignment = self.discovery.place(features)
        self._ids.append(torch.from_numpy(assignment.ids))
        return features, assignment

    def _adapt_in_time(self) -> list[int]:
        """Adapt when it is time, and retire what is out of bounds; returns the ids of what is gone."""
        with self.clock("adapt"):
            self.flush()
            return self.discovery.retire()

    def _written(
        self, answers: Sequence[Decision], items: Sequence[ImageItem | str], features: Tensor, hidden: Tensor
    ) -> None:
        """Write answers down before anybody hears of them: a stream in memory has nowhere to."""

    def _load(self, picture: Picture) -> tuple[ImageItem, Tensor]:
        item = _as_item(picture)
        return item, self.backbone.preprocessing.loaded(item)

    def _trunk(self, canvases: Sequence[Tensor]) -> Tensor:
        with torch.no_grad():
            hidden: Tensor = self.backbone.trunk(self.backbone.preprocessing.pixels(canvases).to(self.backbone.device))
        return hidden


def _parts(whole: Sequence[T]) -> Iterator[Sequence[T]]:
    return (whole[start : start + TRUNK_BATCH] for start in range(0, len(whole), TRUNK_BATCH))


def _as_item(picture: Picture) -> ImageItem:
    if isinstance(picture, ImageItem):
        return picture
    if isinstance(picture, str | Path):
        return file_item(picture)
    return memory_item(picture, f"<{type(picture).__name__}>")


def _sources(items: Sequence[ImageItem | str]) -> list[str]:
    return [item if isinstance(item, str) else item.source for item in items]
