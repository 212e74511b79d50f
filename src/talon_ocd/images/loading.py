"""Canvases in order, decoded by a few threads ahead of who needs them (layer: images).

A bad image is an answer, not an end: it comes out as its `ImageError`, in its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from talon_ocd.errors import ConfigError, ImageError
from talon_ocd.images.decode import LIMITS, Limits
from talon_ocd.images.items import ImageItem, Skipped
from talon_ocd.images.transforms import Preprocessing

Loaded: TypeAlias = "tuple[ImageItem, Tensor | ImageError]"

_AHEAD = 8
"""Images a worker that may wait for the consumer."""


@dataclass(frozen=True)
class Batch:
    """Images that go through the backbone together; each canvas is ``(3, H, W)`` uint8."""

    items: list[ImageItem]
    canvases: list[Tensor]

    def __len__(self) -> int:
        return len(self.items)


def load_canvases(
    items: Iterable[ImageItem], preprocessing: Preprocessing, limits: Limits = LIMITS, workers: int = 2
) -> Iterator[Loaded]:
    """Yield every item with its canvas, or with the reason why it has none, in order.

    A sequence is decoded ahead by ``workers`` threads (0: none). A lazy iterable, such as standard input, is
    taken one by one: each image comes out before the next one is asked for; so are vectors, which need no decoding.
    """
    if workers < 0:
        raise ConfigError(f"workers={workers} must be 0 (no threads) or more.")
    if workers == 0 or not isinstance(items, Sequence) or not preprocessing.shows_pictures:
        return ((item, _load(item, preprocessing, limits)) for item in items)
    return _ahead(items, preprocessing, limits, workers)


def batches(
    items: Iterable[ImageItem],
    preprocessing: Preprocessing,
    batch_size: int | Callable[[], int],
    on_skip: Callable[[Skipped], None],
    limits: Limits = LIMITS,
    workers: int = 2,
) -> Iterator[Batch]:
    """Yield full batches of good images (the last one may be smaller); bad ones go to ``on_skip``.

    A ``batch_size`` that can be called is asked anew for every batch.
    """
    if not callable(batch_size) and batch_size < 1:
        raise ConfigError(f"batch_size={batch_size} must be 1 or more.")
    batch = Batch([], [])
    loaded = load_canvases(items, preprocessing, limits, workers)
    try:
        for item, canvas in loaded:
            if isinstance(canvas, ImageError):
                on_skip(Skipped(canvas.source, canvas.reason))
                continue
            batch.items.append(item)
            batch.canvases.append(canvas)
            if len(batch) >= (batch_size() if callable(batch_size) else batch_size):
                yield batch
                batch = Batch([], [])
        if len(batch):
            yield batch
    finally:
        close = getattr(loaded, "close", None)
        if close is not None:
            close()


def _ahead(items: Sequence[ImageItem], preprocessing: Preprocessing, limits: Limits, workers: int) -> Iterator[Loaded]:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="talon-images")
    waiting: deque[tuple[ImageItem, Future[Tensor | ImageError]]] = deque()
    try:
        for item in items:
            waiting.append((item, pool.submit(_load, item, preprocessing, limits)))
            if len(waiting) >= workers * _AHEAD:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _load(item: ImageItem, preprocessing: Preprocessing, limits: Limits) -> Tensor | ImageError:
    try:
        return preprocessing.loaded(item, limits)
    except ImageError as error:
        return error
    except MemoryError:
        return ImageError(item.source, "needs more memory than there is; make the image smaller.")
    except Exception as error:  # a stream never dies of one image
        found = f"could not be loaded ({type(error).__name__}: {error})"
        return ImageError(item.source, f"{found}; export it again.")
