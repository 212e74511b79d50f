"""Images that are given by their embeddings: a Parquet file as a source (layer: images).

``talon embed`` writes such files (``talon_ocd.embeddings``); those of others are read as well. A row is an image whose
vector is known: it goes the way of all images, and reaches a backbone that takes vectors as they are. Rows are read
when they are needed, a row group at a time. pyarrow is an extra: only who opens such a file needs it.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from talon_ocd.errors import ConfigError, DataError, ImageError, nearest
from talon_ocd.images.decode import LIMITS, Limits, decode
from talon_ocd.images.items import ImageItem, ImageSource, Skipped, display, file_key
from talon_ocd.images.transforms import Preprocessing

SUFFIXES = (".parquet",)
SOURCE, LABEL, KEY, FEATURE = "source", "label", "key", "feature"
"""Columns of the files that we write."""
NAMED = (SOURCE, "path", "file", "file_name", "name")
"""Columns that may tell what an image is called."""
METADATA = b"talon_ocd"
"""Where the facts are in the file's own metadata."""
HELD_BYTES = 500_000_000
"""Row groups that stay in memory after they were read."""

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class VectorFacts:
    """What is known about the vectors of a file.

    Attributes:
        size: numbers a vector.
        encoder: fingerprint of the encoder that made them; empty if nobody knows.
        name: what that encoder is called.
        preprocessing: what pictures went through before it.
    """

    size: int
    encoder: str = ""
    name: str = ""
    preprocessing: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class VectorSource(ImageSource):
    """Images given by their vectors, and what is known about these."""

    facts: VectorFacts = VectorFacts(0)


@dataclass(frozen=True)
class VectorPreprocessing(Preprocessing):
    """Takes vectors of ``size`` numbers as they are; there is nothing to resize, to crop or to show."""

    size: int = 0
    shows_pictures: ClassVar[bool] = False

    def loaded(self, item: ImageItem, limits: Limits = LIMITS) -> Tensor:
        """Return the vector ``(size,)`` of an image; raises `ImageError`."""
        if not isinstance(item.payload, VectorRow):
            raise ImageError(item.source, "is a picture, and this model was fitted on embeddings; run `talon embed`.")
        try:
            vector = item.payload.vector()
        except DataError as error:
            raise ImageError(item.source, f"has a vector that is lost: {error}") from error
        if vector is None or len(vector) != self.size:
            raise ImageError(item.source, f"has no vector of {self.size} numbers with a direction; embed it again.")
        return vector

    def to_dict(self) -> dict[str, Any]:
        """Return nothing: the size belongs to the backbone's architecture."""
        return {}

    def pixels(self, canvases: Sequence[Tensor]) -> Tensor:
        """Stack vectors: what the trunk, which changes nothing, takes."""
        return torch.stack(list(canvases))


class VectorFile:
    """The vectors of a Parquet file; any thread may ask."""

    def __init__(self, path: Path, column: str | None) -> None:
        check_pyarrow(f"{display(path)} holds embeddings, and reading it")
        self.path = path
        self._parquet = _opened(path)
        schema = self._parquet.schema_arrow
        self.columns: list[str] = list(schema.names)
        self.column = _vector_column(path, schema, column)
        sizes = [self._parquet.metadata.row_group(group).num_rows for group in range(self._parquet.num_row_groups)]
        self._starts: list[int] = np.cumsum([0, *sizes]).tolist()
        self._held: dict[int, Rows] = {}
        self._lock = threading.Lock()
        self.facts = self._facts(schema)

    def __len__(self) -> int:
        return self._starts[-1]

    def vector(self, row: int) -> Tensor | None:
        """Return a row's vector ``(size,)``; ``None`` if it has none, or one of another size or without direction.

        Raises `DataError` if its row group is damaged.
        """
        group = bisect_right(self._starts, row) - 1
        with self._lock:
            rows = self._held.pop(group, None)
            if rows is None:
                rows = self._read(group)
                while self._held and sum(held.nbytes for held in self._held.values()) + rows.nbytes > HELD_BYTES:
                    self._held.pop(next(iter(self._held)))
            self._held[group] = rows  # at the end: the first one is the one that was not used for longest
        vector = rows[row - self._starts[group]]
        return None if np.isnan(vector[0]) else torch.from_numpy(vector.copy())

    def texts(self, columns: Sequence[str]) -> Iterator[tuple[str | None, ...]]:
        """Yield the values of some columns as text, row by row."""
        for group in range(self._parquet.num_row_groups):
            table = self._table(group, columns)
            values = [table.column(name).to_pylist() for name in columns]
            yield from zip(*([_text(value) for value in column] for column in values), strict=True)

    def _table(self, group: int, columns: Sequence[str]) -> Any:
        """Return some columns of a row group."""
        with _readable(self.path):
            return self._parquet.read_row_group(group, columns=list(columns))

    def _read(self, group: int) -> Rows:
        """Return the vectors of a row group; what can't be used is NaN."""
        import pyarrow as pa
        import pyarrow.compute as pc

        lists = self._table(group, [self.column]).column(0).combine_chunks()
        if isinstance(lists, pa.ChunkedArray):  # no row at all, or more than one array can hold
            lists = pa.concat_arrays(lists.chunks)
        size = self.facts.size
        right = np.asarray(pc.equal(pc.list_value_length(lists), size).fill_null(False))
        rows = np.full((len(lists), size), np.nan, np.float32)
        values = pc.list_flatten(lists.filter(pa.array(right))).to_numpy(zero_copy_only=False)
        rows[right] = values.reshape(-1, size)
        rows[~(np.isfinite(rows).all(axis=1) & rows.any(axis=1))] = np.nan
        return rows

    def _facts(self, schema: Any) -> VectorFacts:
        kind = schema.field(self.column).type
        size = getattr(kind, "list_size", -1)
        if size < 0:
            size = self._first_size()
        if size == 0:
            raise DataError(
                f"{display(self.path)}: the vectors of {self.column!r} have 0 numbers; choose another --column."
            )
        known = (schema.metadata or {}).get(METADATA)
        if known is None:
            return VectorFacts(size)
        try:
            encoder = json.loads(known)["encoder"]
            return VectorFacts(size, encoder["fingerprint"], encoder["name"], encoder["preprocessing"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{display(self.path)}: its metadata is damaged ({error!r}); embed again.") from error

    def _first_size(self) -> int:
        """Return the length of the first list; lists of other lengths are left out one by one."""
        for group in range(self._parquet.num_row_groups):
            for value in self._table(group, [self.column]).column(0).to_pylist():
                if value:
                    return len(value)
        raise DataError(f"{display(self.path)}: the column {self.column!r} has no vector; choose another --column.")


@dataclass(frozen=True)
class VectorRow:
    """Where the vector of one image is."""

    file: VectorFile
    row: int

    def vector(self) -> Tensor | None:
        """Return the vector ``(size,)``, if there is one."""
        return self.file.vector(self.row)

    def read(self, source: str, limits: Limits) -> Image.Image:
        """Return the picture that the vector was made of, if its file is still there; raises `ImageError`."""
        return decode(Path(source), source, limits)


def read_vectors(path: Path, column: str | None = None, *, need_labels: bool) -> VectorSource:
    """List the rows of a Parquet file; with ``need_labels``, a row without a label is left out."""
    file = VectorFile(path, column)
    named = next((name for name in NAMED if name in file.columns), None)
    wanted = [name for name in (named, LABEL, KEY) if name is not None and name in file.columns]
    items: list[ImageItem] = []
    skipped: list[Skipped] = []
    own_key = file_key(path)
    rows = file.texts(wanted) if wanted else iter([()] * len(file))
    for row, values in enumerate(rows):
        found = dict(zip(wanted, values, strict=True))
        source = display((found.get(named) if named else None) or f"{path.name}:{row}")
        label = found.get(LABEL)
        if need_labels and label is None:
            skipped.append(Skipped(source, f"has no label; fill the column {LABEL}."))
            continue
        key = found.get(KEY) or f"{own_key}#{row}"
        items.append(ImageItem(source, None if label is None else display(label), key, VectorRow(file, row)))
    return VectorSource(display(path), items, skipped, 0, file.facts)


def check_pyarrow(what: str) -> None:
    """Say what to install if ``what`` (a file, a command) needs pyarrow and there is none."""
    if find_spec("pyarrow") is None:
        raise ConfigError(f"{what} needs pyarrow; install it with: pip install 'talon-ocd[parquet]'")


def _opened(path: Path) -> Any:
    import pyarrow.parquet as pq

    with _readable(path):
        return pq.ParquetFile(path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what pyarrow says about a damaged file into our own error."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{display(path)} can't be read as a Parquet file ({error}); write or copy it again."
        ) from error


def _vector_column(path: Path, schema: Any, wanted: str | None) -> str:
    """Return the column that holds vectors: the one asked for, ours, or the only one that can be meant."""
    import pyarrow.types as kinds

    lists = [
        column.name
        for column in schema
        if (kinds.is_list(column.type) or kinds.is_large_list(column.type) or kinds.is_fixed_size_list(column.type))
        and kinds.is_floating(column.type.value_type)
    ]
    choice = wanted or (FEATURE if FEATURE in lists else None) or (lists[0] if len(lists) == 1 else None)
    if choice in lists:
        return str(choice)
    have = f"lists of numbers are in: {', '.join(lists) or 'none of its columns'}"
    if wanted is None:
        raise DataError(f"{display(path)}: which column holds the vectors? Give --column; {have}.")
    raise DataError(f"{display(path)}: the column {wanted!r} holds no vectors; {have}.{nearest(wanted, lists)}")


def _text(value: object) -> str | None:
    return None if value is None or value == "" else str(value)
