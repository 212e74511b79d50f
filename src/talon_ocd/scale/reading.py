"""Images of object stores, or files if asked for, read ahead of the encoders by Ray Data (layer: scale).

A store answers late, and so does a disk that is far away: it must be asked early and for many images at once. Tasks of
Ray Data read the bytes of a chunk into Ray's object store, in order and bounded; only a reference to them comes here
and goes on to an encoder. Ray reads again what is lost with a process or a machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import ceil
from pathlib import Path
from typing import Any

import pyarrow
import ray
import ray.data

from talon_ocd.errors import StreamError
from talon_ocd.images import ImageItem
from talon_ocd.images.decode import LIMITS
from talon_ocd.images.tars import Member
from talon_ocd.scale.chunks import Chunk
from talon_ocd.scale.connecting import starts_by_the_way
from talon_ocd.scale.portable import BYTES
from talon_ocd.scale.storage import Stored

AT_ONCE = 16
"""Images of a chunk that are asked for at the same time."""
ENCODERS_A_READER = 2
"""Encoders that one task reads for: reading is waiting, mostly."""
LOCAL = "file:///"
"""Opens the file system of a machine."""
WHOLE = -1
"""In the place of a size: the whole file, however large it is when it is read."""
MOST_AHEAD = 256_000_000
"""Bytes that Ray Data may have read, or be reading, before an encoder has room for them."""

_Block = tuple[Any, int]
"""A reference to a table of bytes, and its rows."""


class ReadAhead:
    """Chunks whose bytes are read while others are decoded: see ``Chunks``.

    Args:
        items: the images, in order; one that is neither in a store nor in a file is left to the encoder.
        size: images of a chunk.
        encoders: how many will decode them.
    """

    def __init__(self, items: Sequence[ImageItem], size: int, encoders: int) -> None:
        self._items, self._taken = list(items), 0
        self._blocks = _blocks(self._items, size, encoders)
        self._waiter = ThreadPoolExecutor(1, thread_name_prefix="talon-reading")  # Ray Data lets who asks wait
        self._next = self._ask()

    @property
    def over(self) -> bool:
        """Whether all was taken."""
        return self._taken == len(self._items)

    @property
    def late(self) -> bool:
        """Whether there is more, but it was not read yet."""
        return not self.over and not self._next.done()

    def take(self) -> Chunk | None:
        """Return the next chunk, ``None`` if it was not read yet."""
        if self.over or not self._next.done():
            return None
        found = self._next.result()
        if found is None:
            raise StreamError(f"Ray Data read {self._taken} of {len(self._items)} images; its logs say more.")
        block, rows = found
        items = self._items[self._taken : self._taken + rows]
        self._taken += rows
        self._next = self._ask()
        return Chunk(items, block)

    def close(self) -> None:
        """Read no further.

        A store that does not answer is not waited for: the end of Ray ends who asked it. Only where asking would start
        another Ray, in a program that did not forbid it, it is.
        """
        if self.late and not starts_by_the_way():
            logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # it would complain of the Ray that is gone
            self._waiter.shutdown(wait=False, cancel_futures=True)
            return
        self._waiter.shutdown(cancel_futures=True)
        self._blocks.close()

    def _ask(self) -> Future[_Block | None]:
        return self._waiter.submit(next, self._blocks, None)


def _blocks(items: Sequence[ImageItem], size: int, encoders: int) -> Generator[_Block, None, None]:
    """Yield a table of bytes for every chunk, as a reference; Ray Data may cut a large one into several."""
    context = ray.data.DataContext.get_current().copy()
    options = context.execution_options
    options.preserve_order, context.enable_progress_bars = True, False
    options.resource_limits = options.resource_limits.copy(object_store_memory=MOST_AHEAD)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    with ray.data.DataContext.current(context):
        places = ray.data.from_items([_place(item) for item in items], override_num_blocks=ceil(len(items) / size))
        tables = places.map_batches(
            _reader(AT_ONCE, LIMITS.max_bytes),
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=0,  # encoders have reserved all of them, and this hardly computes
            concurrency=ceil(encoders / ENCODERS_A_READER),
        )
    for bundle in tables.iter_internal_ref_bundles():
        for block in bundle.blocks:
            yield block.ref, block.metadata.num_rows


def _place(item: ImageItem) -> dict[str, Any]:
    """Return where the bytes of an image are; nothing is read of one that could not be used for its size."""
    uri, path, offset, size = _where(item)
    odd = any("\ud800" <= letter <= "\udfff" for letter in path)  # a name of arbitrary bytes; tables hold text
    if odd or not (size == WHOLE or 0 < size <= LIMITS.max_bytes):
        return {"uri": "", "path": "", "offset": 0, "size": 0}
    return {"uri": uri, "path": path, "offset": offset, "size": size}


def _where(item: ImageItem) -> tuple[str, str, int, int]:
    """Return file system, path, offset and size; of what lies in memory, or in a file without a name, a size of 0."""
    place = item.payload
    if isinstance(place, Stored):
        return place.uri, place.path, place.offset, place.size
    if isinstance(place, Member) and isinstance(place.archive, Path):
        return LOCAL, place.archive.absolute().as_posix(), place.offset, place.size
    if isinstance(place, Path):
        return LOCAL, place.absolute().as_posix(), 0, WHOLE
    return "", "", 0, 0


def _reader(at_once: int, most: int) -> Callable[[pyarrow.Table], pyarrow.Table]:
    """Return what reads a chunk; of a whole file ``most`` bytes.

    It is a function inside a function, so that Ray sends its code: processes that only read need not import us, and
    torch with us.
    """
    column = BYTES

    def read(places: pyarrow.Table) -> pyarrow.Table:
        from concurrent.futures import ThreadPoolExecutor
        from functools import lru_cache

        import pyarrow
        from pyarrow.fs import FileSystem

        opened = lru_cache(lambda uri: FileSystem.from_uri(uri)[0])

        def one(place: dict[str, Any]) -> bytes | None:
            if not place["uri"]:
                return None
            try:
                files, size = opened(place["uri"]), place["size"]
                if size < 0:  # of what is no file, such as a pipe, the size is None
                    size = files.get_file_info(place["path"]).size or 0
                if not 0 < size <= most:
                    return None
                with files.open_input_file(place["path"]) as file:
                    data = file.read_at(size, place["offset"])
            except (OSError, ValueError, pyarrow.ArrowException):  # the encoder tries itself, and says what is wrong
                return None
            return data if len(data) == size else None

        with ThreadPoolExecutor(at_once) as pool:
            return pyarrow.table({column: pyarrow.array(pool.map(one, places.to_pylist()), pyarrow.large_binary())})

    return read
