"""The owner: holds order, memory, adaptation and journal of a stream, in a process of its own (layer: scale).

All that it is asked can be asked twice. Answers are known by their index, so that an owner that was killed between the
journal and its reply reads the reply from the journal, and nothing is answered or learned a second time.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from talon_ocd.durable import DurableStream
from talon_ocd.errors import StreamError
from talon_ocd.online import Decision, DiscoveryStream, SecondThoughts
from talon_ocd.scale.batching import Batch
from talon_ocd.scale.encoder import Encoded, Head, Work
from talon_ocd.talon import Talon


@dataclass(frozen=True)
class Opened:
    """A stream as its owner found it.

    Attributes:
        answered: answers that were given before.
        room: answers left before the next adaptation.
        every: answers between two adaptations.
        adapt: what keeps learning.
        facts: how it decides and what learns, for summaries.
        names: the known classes.
        categories: discovered before.
        warnings: what people should read.
        life: of the owner, another one after every restart.
    """

    answered: int
    room: int
    every: int
    adapt: tuple[str, ...]
    facts: dict[str, Any]
    names: tuple[str, ...]
    categories: int
    warnings: tuple[str, ...]
    life: str


@dataclass(frozen=True)
class Answers:
    """The answers of a batch.

    Attributes:
        decisions: one an image.
        categories: discovered so far.
        behind: versions by which the head that made the features was behind.
        encoded_anew: whether it was too far behind, so that the owner ran the head itself.
        head: the head, if the batch changed it and encoders run it.
        work: what the owner did.
    """

    decisions: list[Decision]
    categories: int
    behind: int
    encoded_anew: bool
    head: Head | None
    work: Work


class Owner:
    """Answers encoded batches in their order; the stream is opened when it is needed first.

    Args:
        model: folder that ``talon fit`` wrote.
        folder: of a stream that lasts; ``None`` keeps it in memory.
        options: what ``Talon.stream`` takes.
        threads: threads of torch.
        staleness: versions that a head may be behind; ``None`` if no feature can be.
    """

    def __init__(
        self, model: str, folder: str | None, options: Mapping[str, Any], threads: int, staleness: int | None
    ) -> None:
        self._model, self._folder, self._options, self._threads = model, folder, dict(options), threads
        self._staleness = staleness
        self._warnings: tuple[str, ...] = ()
        self._version, self._life = 0, uuid4().hex

    def opened(self) -> Opened:
        """Open the stream, if that was not done, and tell what it is."""
        stream = self._stream
        return Opened(
            answered=stream.answered,
            room=stream.discovery.room,
            every=stream.config.adapt_every,
            adapt=stream.config.adapt,
            facts=stream.facts(),
            names=tuple(stream.name(known) for known in range(stream.memory.known)),
            categories=stream.categories,
            warnings=self._warnings,
            life=self._life,
        )

    def process(self) -> int:
        """Return the process that this is."""
        return os.getpid()

    def seen(self, keys: Sequence[str]) -> set[str]:
        """Return those of the keys that were answered."""
        stream = self._stream
        return stream.journal.seen(keys) if isinstance(stream, DurableStream) else set()

    def observe(self, batch: Batch, encoded: Encoded, *small: Sequence[npt.NDArray[np.uint8]]) -> Answers | None:
        """Answer a batch and learn from it; ``small`` are the pictures ``(3, h, w)`` of its chunks, if any are kept.

        Returns ``None`` if it is not its turn: when Ray asks an owner again that was killed, a batch may overtake
        another one.
        """
        began, stream = time.perf_counter(), self._stream
        if batch.first > stream.answered:
            return None
        behind, anew, head = 0, False, None
        if batch.first < stream.answered:
            decisions = self._told_before(batch)
        else:
            self.skip(batch)
            if isinstance(stream, DurableStream):
                pictures = [
                    at for cut, part in zip(batch.cuts, small, strict=True) for at in part[cut.start : cut.stop]
                ]
                stream.pictures.add(stream.answered, [torch.from_numpy(np.array(picture)) for picture in pictures])
            behind = self._version - encoded.version if encoded.features is not None else 0
            anew = self._staleness is not None and behind > self._staleness
            before = stream.adapter.state_dict() if self._staleness is not None else {}
            decisions = self._decide(batch, encoded, anew)
            head = self._changed_head(before)
        work = Work("decide", self._life, len(decisions), time.perf_counter() - began)
        return Answers(decisions, stream.categories, behind, anew, head, work)

    def skip(self, batch: Batch) -> None:
        """Write down what could not be used."""
        if isinstance(self._stream, DurableStream):
            for skipped in batch.skipped:
                self._stream.journal.skip(skipped.source, skipped.reason)

    def second_thoughts(self) -> SecondThoughts | None:
        """Return what would be answered differently by now."""
        return self._stream.second_thoughts()

    def close(self) -> tuple[str, ...]:
        """Take a snapshot and let others have the folder; returns what people should read."""
        stream = self.__dict__.get("_stream")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            if isinstance(stream, DurableStream):
                stream.close()
        return tuple(str(warning.message) for warning in told)

    def _decide(self, batch: Batch, encoded: Encoded, anew: bool) -> list[Decision]:
        stream, hidden = self._stream, _tensor(encoded.hidden)
        features = None if anew else _tensor(encoded.features)
        if features is not None:
            return stream.observe_encoded(features, batch.items, hidden)
        if hidden is None:
            raise StreamError(f"batch {batch.first} came without trunk outputs, which its head needs.")
        return stream.observe_hidden(hidden, batch.items)

    def _changed_head(self, before: Mapping[str, Tensor]) -> Head | None:
        """Return the head if it is another one than before."""
        after = self._stream.adapter.state_dict()
        moved = [
            name for name in before if name.startswith("parameters.") and not torch.equal(before[name], after[name])
        ]
        if not moved:
            return None
        self._version += 1
        return Head(self._version, {name: value.cpu().numpy() for name, value in after.items()})

    def _told_before(self, batch: Batch) -> list[Decision]:
        """Read the answers of a batch whose reply got lost."""
        stream = self._stream
        found = (
            [stream.journal.decision(batch.first + at) for at in range(len(batch.items))]
            if (isinstance(stream, DurableStream))
            else []
        )
        told = [decision for decision in found if decision is not None]
        if [decision.source for decision in told] != [item.source for item in batch.items]:
            raise StreamError(f"the journal has other answers than those of batch {batch.first}; run it again.")
        return told

    @cached_property
    def _stream(self) -> DiscoveryStream:
        torch.set_num_threads(self._threads)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            talon = Talon.from_pretrained(self._model)
            if self._folder is None:
                stream: DiscoveryStream = talon.stream(**self._options)
            else:
                stream = talon.stream(self._folder, purpose="talon discover on Ray", **self._options)
        self._warnings = tuple(str(warning.message) for warning in told)
        return stream


def _tensor(values: npt.NDArray[np.float32] | None) -> Tensor | None:
    """Return a copy: what Ray hands out can't be written to."""
    return None if values is None else torch.from_numpy(np.array(values))
