"""The way of images through encoders and owner, bounded everywhere and in order (layer: scale)."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import count
from typing import Any

import ray
from ray.exceptions import RayError

from talon_ocd.errors import StreamError
from talon_ocd.images import ImageItem, Skipped
from talon_ocd.online import Decision
from talon_ocd.online.stream import MOST_AHEAD
from talon_ocd.scale.batching import Batch, Batching
from talon_ocd.scale.chunks import Chunk, Chunks, Listed
from talon_ocd.scale.owner import Answers, Opened
from talon_ocd.scale.portable import portable, without_pixels
from talon_ocd.scale.rates import Rates
from talon_ocd.scale.settings import Wanted

AT_AN_ENCODER = 3
"""Pieces of work (a chunk to decode, a batch to encode) that an encoder may have in front of it."""
AT_THE_OWNER = 4
"""Batches for each encoder, besides those that it works on, that may wait for the owner: a late one holds all up that
come after it, and these keep the owner busy meanwhile (``docs/scale.md``)."""
MOMENT = 0.02
"""Seconds between two looks whether images were read."""
SILENCE = 300.0
"""Seconds without anything from anybody after which people are told: Ray waits for a lost machine without end."""
LEAST_CHUNK = 16
"""Images that are decoded together, however small batches are."""


@dataclass
class _Decoding:
    """Images that an encoder decodes: what it said of them, their centres and their small pictures, as references."""

    number: int
    items: list[ImageItem]
    encoder: int
    said: Any
    centres: Any
    small: Any


@dataclass
class _Asked:
    """A batch that was handed to the owner: what it was told, and references to its answers and to encoder's work."""

    batch: Batch
    told: tuple[Any, ...]
    answers: Any
    work: Any
    encoder: int


class Flow:
    """Keeps encoders and owner busy, and the order of the images.

    Args:
        encoders: actors of ``Encoder``.
        owner: actor of ``Owner``.
        opened: the stream as the owner found it.
        wanted: what encoders give to the owner.
        rates: where work is counted.
        ahead: whether Ray Data reads files ahead of the encoders; those of object stores it always does.

    Attributes:
        answered: answers that were given.
        categories: discovered so far.
    """

    def __init__(
        self, encoders: Sequence[Any], owner: Any, opened: Opened, wanted: Wanted, rates: Rates, ahead: bool = False
    ) -> None:
        self._encoders, self._owner, self._wanted, self._rates = list(encoders), owner, wanted, rates
        self._ahead = ahead
        self.answered, self.categories = opened.answered, opened.categories
        self._size = min(max(opened.every, LEAST_CHUNK), MOST_AHEAD)
        self._batching = Batching(opened.answered, opened.room, opened.every)
        self._busy: list[list[Any]] = [[] for _ in encoders]
        self._decoding: deque[_Decoding] = deque()
        self._asked: deque[_Asked] = deque()
        self._chunks: dict[int, _Decoding] = {}
        self._numbers = count()
        self._head: Any = None
        self._ended = False
        self._heard = 0.0

    def run(
        self, items: Sequence[ImageItem], on_skip: Callable[[Skipped], None]
    ) -> Iterator[tuple[Decision, ImageItem]]:
        """Answer images in their order; nothing else may be asked until all are answered."""
        if self._ended:
            raise StreamError("this stream was left before all was answered, and its encoders ended; open it again.")
        self._heard = time.monotonic()
        try:
            with closing(self._chunks_of(items)) as waiting:
                while not waiting.over or self._decoding or self._asked:
                    while self._may_begin() and (chunk := waiting.take()):
                        self._decode(chunk)
                    if self._decoding and _is_ready(self._decoding[0].said):
                        self._ask_all(self._decoded(on_skip))
                        if waiting.over and not self._decoding:
                            self._ask_all([self._batching.rest()])
                    elif self._asked and _is_ready(self._asked[0].answers):
                        yield from self._answers()
                        self._heard = time.monotonic()  # only now: who takes the answers may take long
                    else:
                        self._wait(waiting.late)
        except BaseException:
            self._abandon()
            raise

    def _chunks_of(self, items: Sequence[ImageItem]) -> Chunks:
        """Cut images into chunks; those of object stores, and others if asked for, are read ahead by Ray Data."""
        if items and (self._ahead or find_spec("pyarrow") is not None):  # without it no image can be of a store
            from talon_ocd.scale.storage import Stored

            if self._ahead or any(isinstance(item.payload, Stored) for item in items):
                from talon_ocd.scale.reading import ReadAhead

                return ReadAhead(items, self._size, len(self._encoders))
        return Listed(items, self._size)

    def _may_begin(self) -> bool:
        """Is there an encoder with time, and room for what it makes?"""
        for number, refs in enumerate(self._busy):
            self._busy[number] = ray.wait(refs, num_returns=len(refs), timeout=0)[1] if refs else []
        under_way = len(self._decoding) + len(self._asked)
        most = (AT_AN_ENCODER + AT_THE_OWNER) * len(self._encoders)
        return min(map(len, self._busy)) < AT_AN_ENCODER and under_way < most

    def _decode(self, taken: Chunk) -> None:
        """Hand a chunk to the encoder that has the least to do."""
        number = next(self._numbers)
        chosen = min(range(len(self._encoders)), key=lambda at: len(self._busy[at]))
        decode = self._encoders[chosen].decode.options(num_returns=3)
        said, centres, small = decode.remote([portable(item) for item in taken.items], self._wanted, taken.block)
        self._busy[chosen].append(said)
        chunk = _Decoding(number, taken.items, chosen, said, centres, small)
        self._decoding.append(chunk)
        self._chunks[number] = chunk

    def _decoded(self, on_skip: Callable[[Skipped], None]) -> list[Batch]:
        """Take the oldest chunk, which was decoded; returns the batches that are full now."""
        self._heard, chunk = time.monotonic(), self._decoding.popleft()
        reasons, work = ray.get(chunk.said)
        self._rates.add(work, chunk.encoder)
        for item, reason in zip(chunk.items, reasons, strict=True):
            if reason is not None:
                on_skip(Skipped(item.source, reason))
        return self._batching.add(chunk.number, chunk.items, reasons)

    def _ask_all(self, batches: Sequence[Batch]) -> None:
        """Hand batches to an encoder, and what comes of them to the owner."""
        for batch in batches:
            if batch.items:
                self._ask(batch)
            elif batch.skipped:
                ray.get(self._owner.skip.remote(batch))
        under_way = {chunk.number for chunk in self._decoding}
        needed = [number for number in self._chunks if number in under_way or self._batching.needs(number)]
        self._chunks = {number: self._chunks[number] for number in needed}  # Ray forgets what nobody refers to

    def _ask(self, batch: Batch) -> None:
        chunks = [self._chunks[cut.chunk] for cut in batch.cuts]
        encoder = self._encoders[chunks[0].encoder].encode.options(num_returns=2)
        encoded, work = encoder.remote(batch.cuts, self._wanted, self._head, *(chunk.centres for chunk in chunks))
        self._busy[chunks[0].encoder].append(work)
        small = [chunk.small for chunk in chunks] if self._wanted.thumbnails else []
        told = (replace(batch, items=[without_pixels(item) for item in batch.items]), encoded, *small)
        self._asked.append(_Asked(batch, told, self._owner.observe.remote(*told), work, chunks[0].encoder))

    def _answers(self) -> Iterator[tuple[Decision, ImageItem]]:
        """Give the answers of the oldest batch."""
        asked = self._asked.popleft()
        answers: Answers | None = ray.get(asked.answers)
        if answers is None:  # it overtook one that is answered by now
            answers = ray.get(self._owner.observe.remote(*asked.told))
        if answers is None:
            raise StreamError(f"answer {asked.batch.first} is out of turn; is another program writing to the stream?")
        self._rates.add(ray.get(asked.work), asked.encoder)
        self._rates.answered(answers)
        if answers.head is not None:
            self._head = ray.put(answers.head)
        self.answered += len(answers.decisions)
        self.categories = answers.categories
        yield from zip(answers.decisions, asked.batch.items, strict=True)

    def _wait(self, reading: bool) -> None:
        """Rest until something has come to an end; while images are read, only for a moment."""
        refs = [ref for busy in self._busy for ref in busy]
        refs += [self._asked[0].answers] if self._asked else []
        if refs:
            ray.wait(refs, num_returns=1, timeout=MOMENT if reading else SILENCE)
        else:
            time.sleep(MOMENT)
        if time.monotonic() - self._heard > SILENCE:  # it may still come, so that nothing is given up
            self._heard = time.monotonic()
            missing = "encoders or owner; has a machine left this Ray (see `ray status`)?" if refs else "the store."
            warnings.warn(f"for {SILENCE:g} s nothing has come from {missing} The stream waits.", stacklevel=2)

    def _abandon(self) -> None:
        """End early: encoders are stopped, and the owner comes to the end of what has reached it."""
        self._ended = True
        for encoder in self._encoders:
            ray.kill(encoder)
        with suppress(RayError):
            for asked in self._asked:
                ray.get(asked.answers)


def _is_ready(ref: Any) -> bool:
    return bool(ray.wait([ref], timeout=0)[0])
