"""Embed an archive on Ray Data (layer: scale): many encoders, results in order, no more of them waiting than fit.

Actors of ``map_batches`` decode and encode chunks of images; this process takes what they give in the order of the
images and writes it (``talon_ocd.embeddings.archive``). A chunk of an actor that dies is done by another one; one that
kills them all ends the run.

Chunks are in Ray's object store before the first is encoded. They are places to read from, but for compressed archives:
their images are sent with their bytes, and so that no more of them are there than fit, they go in turns.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import ray
import ray.data
import torch
from ray.exceptions import RayActorError, RayError, RayTaskError

from talon_ocd.backbones import Backbone
from talon_ocd.embeddings import Embedder, Embedding
from talon_ocd.embeddings.archive import Chunks
from talon_ocd.errors import StreamError
from talon_ocd.images import ImageItem, Skipped
from talon_ocd.scale.connection import connected
from talon_ocd.scale.portable import bytes_to_send, portable
from talon_ocd.scale.settings import MOST_RETRIES, RaySettings

MOST_SENT = 1_000_000_000
"""Bytes of images that lie in Ray's object store for one turn; the next one starts its actors anew."""
CHUNK, FEATURES, ABOUT = "chunk", "features", "about"
"""Columns that go to the actors and come from them."""


class RayEmbedder:
    """An engine of ``write_archive``: runs an encoder on the processes of a Ray."""

    def __init__(self, backbone: Backbone, settings: RaySettings) -> None:
        self._backbone, self._settings = backbone, settings

    def all(self, chunks: Chunks) -> Iterator[Embedding]:
        """Yield the embedding of every chunk, in order."""
        if not chunks:
            return
        with connected(self._settings) as encoders:
            logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what is wrong is told by our error, in a line
            context = ray.data.DataContext.get_current()
            before = context.execution_options.preserve_order, context.enable_progress_bars
            context.execution_options.preserve_order, context.enable_progress_bars = True, False
            try:
                with _kindly():
                    for turn in turns(chunks, MOST_SENT):
                        for row in self._rows(turn, encoders).iter_rows():
                            yield self._embedding(row)
            finally:
                context.execution_options.preserve_order, context.enable_progress_bars = before

    def _rows(self, chunks: Chunks, encoders: int) -> ray.data.Dataset:
        settings = self._settings
        numbers = ray.data.from_items(
            [{CHUNK: number} for number in range(len(chunks))], override_num_blocks=len(chunks)
        )
        return numbers.map_batches(
            _Worker,
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(encoders, len(chunks))),
            num_cpus=settings.cpus_per_encoder,
            num_gpus=settings.gpus_per_encoder,
            max_task_retries=MOST_RETRIES,  # Ray Data would try for ever
            fn_constructor_kwargs={
                "backbone": [ray.put(self._backbone)],
                "chunks": [ray.put([portable(item) for item in chunk]) for chunk in chunks],
                "threads": settings.threads,
                "device": "cuda" if settings.gpus_per_encoder else "cpu",
            },
        )

    def _embedding(self, row: dict[str, Any]) -> Embedding:
        about = json.loads(row[ABOUT])
        features = np.frombuffer(row[FEATURES], np.float32).reshape(-1, self._backbone.feature_size)
        return Embedding(about["kept"], features, [Skipped(**skip) for skip in about["skipped"]])


def turns(chunks: Chunks, most: int) -> Iterator[Chunks]:
    """Cut chunks into turns that send ``most`` bytes each, or a little more: one chunk is never cut."""
    turn: list[Sequence[ImageItem]] = []
    sent = 0
    for chunk in chunks:
        turn.append(chunk)
        sent += sum(map(bytes_to_send, chunk))
        if sent >= most:
            yield turn
            turn, sent = [], 0
    if turn:
        yield turn


@contextmanager
def _kindly() -> Iterator[None]:
    """Turn what Ray says of an error into what our errors say."""
    try:
        yield
    except RayError as error:
        cause = error.cause if isinstance(error, RayTaskError) else error
        said = " ".join(f"{type(cause).__name__}: {cause}".split())  # Ray's words have many lines
        if isinstance(cause, RayActorError):
            said = f"an encoder died {MOST_RETRIES} times over the same images ({said}); is there enough memory?"
        else:
            said = f"a process that encodes failed ({said}); the logs of Ray say more."
        raise StreamError(f"{said} What was embedded is kept: the same command goes on from there.") from error


class _Worker:
    """One encoder; Ray Data makes as many as are wanted and gives each a chunk at a time."""

    def __init__(self, backbone: Sequence[Any], chunks: Sequence[Any], threads: int, device: str) -> None:
        torch.set_num_threads(threads)
        encoder: Backbone = ray.get(backbone[0])
        self._embed, self._chunks = Embedder(encoder.to(device)), chunks

    def __call__(self, batch: dict[str, Sequence[int]]) -> dict[str, list[bytes | str]]:
        found = [self._embed(ray.get(self._chunks[number])) for number in batch[CHUNK]]
        skipped = [[asdict(skip) for skip in one.skipped] for one in found]
        about = [json.dumps({"kept": one.kept, "skipped": skips}) for one, skips in zip(found, skipped, strict=True)]
        return {FEATURES: [one.features.tobytes() for one in found], ABOUT: list(about)}
