"""Rows of equal shape under 16-byte keys (layer: offline): in memory, in a file, or in both.

A store is a chain of segments; only the last one grows. ``MemorySegment`` is a preallocated block,
``FileSegment`` an append-only file that survives the process. Nothing is copied from one segment to another.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from talon_ocd.errors import StorageError

KEY_BYTES = 16
RECORD = np.dtype([("key", f"V{KEY_BYTES}"), ("row_sum", "<u4"), ("record_sum", "<u4")])
MISSING = -1


class Segment(Protocol):
    """A run of rows ``(count, *shape)``."""

    count: int

    def room(self) -> int | None:
        """Return how many rows still fit; ``None`` means no limit of its own."""

    def append(self, keys: Sequence[bytes], rows: Tensor) -> None:
        """Add rows; raises ``StorageError`` and adds nothing if they can't be written."""

    def data(self) -> Tensor:
        """Return the rows, without a copy."""

    def damaged(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each row whether it no longer holds what was once written."""


class MemorySegment:
    """A preallocated block; pages that were never written cost no memory on common systems."""

    def __init__(self, shape: tuple[int, ...], capacity: int) -> None:
        self.count = 0
        self._rows = torch.empty(capacity, *shape)

    def room(self) -> int:
        """Return how many rows still fit."""
        return len(self._rows) - self.count

    def append(self, keys: Sequence[bytes], rows: Tensor) -> None:
        """Add rows."""
        self._rows[self.count : self.count + len(rows)] = rows
        self.count += len(rows)

    def data(self) -> Tensor:
        """Return the whole block; rows from ``count`` on are undefined."""
        return self._rows

    def damaged(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Memory is trusted."""
        return np.zeros(len(rows), dtype=bool)


class FileSegment:
    """Rows in ``path.rows``; record i of ``path.index`` holds the key and the checksum of row i.

    Rows are written before their records, so that a kill leaves at most rows that nobody knows; those and
    half records are cut off at the next opening. A row is compared with its checksum before its first use.
    """

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._row_bytes = 4 * int(np.prod(shape, dtype=np.int64))
        self._rows_path, self._index_path = path.with_suffix(".rows"), path.with_suffix(".index")
        self._map: Tensor | None = None
        self.keys: dict[bytes, int] = {}
        try:
            self._open()
        except OSError as error:
            raise StorageError(f"trunk cache {path} can't be opened ({error}); check the folder.") from error

    def _open(self) -> None:
        self._rows_path.touch()
        self._index_path.touch()
        records = np.fromfile(self._index_path, RECORD)
        self.count = min(len(records), self._rows_path.stat().st_size // self._row_bytes)
        self._cut()
        self._sums = records["row_sum"][: self.count].copy()
        self._trusted = np.zeros(self.count, dtype=bool)
        for row, record in enumerate(records[: self.count]):
            if zlib.crc32(record.tobytes()[:-4]) == record["record_sum"]:
                self.keys[record["key"].tobytes()] = row

    def _cut(self) -> None:
        for path, size in ((self._rows_path, self._row_bytes), (self._index_path, RECORD.itemsize)):
            if path.stat().st_size != self.count * size:
                with path.open("r+b") as file:
                    file.truncate(self.count * size)

    def room(self) -> None:
        """A file has no limit of its own; the cache asks the disk."""

    def append(self, keys: Sequence[bytes], rows: Tensor) -> None:
        """Add rows, then their records."""
        array = np.ascontiguousarray(rows.detach().cpu().float().numpy())
        sums = np.array([zlib.crc32(row) for row in array], dtype=np.uint32)
        try:
            with self._rows_path.open("ab") as file:
                file.write(array.data)
            with self._index_path.open("ab") as file:
                file.write(_records(keys, sums).tobytes())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._cut()
            raise StorageError(f"trunk cache {self._rows_path} can't grow ({error.strerror or error}).") from error
        self.count += len(rows)

    def data(self) -> Tensor:
        """Return the rows as a memory map of the file."""
        if self._map is None or len(self._map) < self.count:
            # Shared and writable: torch warns about read-only arrays, a private map is charged as memory.
            shape = (self.count, *self._shape)
            self._map = torch.from_numpy(np.memmap(self._rows_path, np.float32, "r+", shape=shape))
        return self._map

    def damaged(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Compare rows that an earlier process wrote with their checksums, each until it was right once."""
        old = rows < len(self._sums)
        for row in rows[old][~self._trusted[rows[old]]]:
            self._trusted[row] = zlib.crc32(self.data()[row].numpy().data) == self._sums[row]
        wrong = np.zeros(len(rows), dtype=bool)
        wrong[old] = ~self._trusted[rows[old]]
        return wrong


class RowStore:
    """Rows ``(*shape)`` in float32 under unique keys; a row number stays valid as long as the store."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.row_bytes = 4 * int(np.prod(shape, dtype=np.int64))
        self._segments: list[Segment] = []
        self._starts: list[int] = []
        self._numbers: dict[bytes, int] = {}

    @property
    def memory_bytes(self) -> int:
        """Bytes of the rows that are held in memory."""
        return sum(s.count * self.row_bytes for s in self._segments if isinstance(s, MemorySegment))

    def grow_in(self, segment: Segment) -> None:
        """Append to ``segment`` from now on; rows that it already has become known."""
        start = self._starts[-1] + self._segments[-1].count if self._segments else 0
        self._segments.append(segment)
        self._starts.append(start)
        if isinstance(segment, FileSegment):
            for key, row in segment.keys.items():
                self._numbers.setdefault(key, start + row)

    def reserve(self, count: int) -> None:
        """Make room for ``count`` more rows in memory, unless the last segment is a file."""
        room = self._segments[-1].room() if self._segments else 0
        if room is not None and room < count:
            held = sum(segment.count for segment in self._segments)
            self.grow_in(MemorySegment(self.shape, max(count, held // 4)))

    def find(self, keys: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the row numbers of ``keys``; ``MISSING`` where there is none or a damaged one."""
        numbers = np.fromiter((self._numbers.get(key, MISSING) for key in keys), np.int64, len(keys))
        for start, segment in zip(self._starts, self._segments, strict=True):
            inside = np.flatnonzero((numbers >= start) & (numbers < start + segment.count))
            for at in inside[segment.damaged(numbers[inside] - start)]:
                self._numbers.pop(keys[at], None)
                numbers[at] = MISSING
        return numbers

    def append(self, keys: Sequence[bytes], rows: Tensor) -> None:
        """Add rows ``(B, *shape)`` under their keys; ``reserve`` comes first."""
        start = self._starts[-1] + self._segments[-1].count
        self._segments[-1].append(keys, rows)
        self._numbers.update((key, start + at) for at, key in enumerate(keys))

    def gather(self, numbers: Tensor, out: Tensor | None = None) -> Tensor:
        """Return rows ``(B, *shape)`` by number ``(B,)``, as a copy: a new one, or in ``out``."""
        rows = torch.empty(len(numbers), *self.shape) if out is None else out
        if len(self._segments) == 1:
            return torch.index_select(self._segments[0].data(), 0, numbers, out=rows)
        for start, segment in zip(self._starts, self._segments, strict=True):
            inside = ((numbers >= start) & (numbers < start + segment.count)).nonzero()[:, 0]
            if len(inside):
                rows[inside] = segment.data().index_select(0, numbers[inside] - start)
        return rows


def _records(keys: Sequence[bytes], sums: NDArray[np.uint32]) -> NDArray[np.void]:
    records = np.zeros(len(keys), RECORD)
    records["key"] = np.frombuffer(b"".join(keys), f"V{KEY_BYTES}")
    records["row_sum"] = sums
    records["record_sum"] = [zlib.crc32(record.tobytes()[:-4]) for record in records]
    return records
