"""Write an archive of embeddings: a Parquet file with the unit feature of every image (layer: facade).

Chunks of images become small files beside the target, in order; when all are there they become row groups of one file,
which then appears under its name. So memory is bounded, an interrupted run goes on where it stopped, and who reads
never meets half a file. ``talon_ocd.images.vectors`` reads what is written here.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from talon_ocd.backbones import Backbone, takes_vectors
from talon_ocd.errors import DataError, StorageError
from talon_ocd.images import ImageItem, ImageSource, Skipped, VectorSource, batches, display
from talon_ocd.images.vectors import FEATURE, KEY, LABEL, METADATA, SOURCE, check_pyarrow
from talon_ocd.progress import SILENT, Progress
from talon_ocd.saved import make_folder, reason

FORMAT = 1
CHUNK = 1024
"""Images of one part, and of one row group."""
BATCH = 64
"""Images that go through the encoder together."""
SKIPPED = b"skipped"
"""Where a part keeps the images that it has no row for."""
MARK = "run.txt"
"""Says which run the parts beside it belong to."""
_OWN = re.compile(r"\d{8,}\.(parquet|writing)|whole\.writing")


@dataclass(frozen=True)
class Embedding:
    """What became of a chunk of images.

    Attributes:
        kept: positions of the images that could be used.
        features: their unit vectors ``(len(kept), D)``.
        skipped: the others, with reasons.
    """

    kept: list[int]
    features: NDArray[np.float32]
    skipped: list[Skipped]


Chunks = Sequence[Sequence[ImageItem]]
Run = Callable[[Chunks], Iterable[Embedding]]
"""Gives the embedding of every chunk, in order."""


@dataclass(frozen=True)
class Archive:
    """An archive that was written."""

    path: Path
    images: int
    skipped: tuple[Skipped, ...]
    resumed: int
    """Those of ``images`` that an interrupted run had done."""
    seconds: float


class Embedder:
    """Decodes images and runs the whole encoder on them, in this process."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    def __call__(self, items: Sequence[ImageItem]) -> Embedding:
        """Embed a chunk; what can't be used is left out."""
        backbone, skipped = self._backbone, list[Skipped]()
        good: list[ImageItem] = []
        parts: list[NDArray[np.float32]] = []
        with torch.no_grad():
            for batch in batches(items, backbone.preprocessing, BATCH, skipped.append):
                raw = backbone(backbone.preprocessing.pixels(batch.canvases).to(backbone.device))
                parts.append(F.normalize(raw.float(), dim=1).cpu().numpy())
                good += batch.items
        positions = iter(enumerate(items))
        kept = [next(at for at, item in positions if item is wanted) for wanted in good]
        features = np.concatenate(parts) if parts else np.empty((0, backbone.feature_size), np.float32)
        return Embedding(kept, features, skipped)

    def all(self, chunks: Chunks) -> Iterator[Embedding]:
        """Embed chunks, one after the other."""
        return map(self, chunks)


def write_archive(
    path: Path,
    source: ImageSource,
    backbone: Backbone,
    *,
    engine: Run | None = None,
    half: bool = False,
    progress: Progress = SILENT,
) -> Archive:
    """Write the embeddings of all images of a source to ``path``.

    Args:
        path: the Parquet file; an older one stays until the new one is whole.
        source: the images.
        backbone: the encoder.
        engine: who runs it; by default this process.
        half: store float16 instead of float32.
        progress: who wants to know how far it is.
    """
    started = time.perf_counter()
    check_pyarrow("an archive of embeddings")
    if isinstance(source, VectorSource):
        raise DataError(f"{source.name}: embeddings can't be embedded once more; give pictures.")
    if takes_vectors(backbone):
        raise DataError(f"{backbone.name}: this model was fitted on embeddings and has no encoder; give the encoder.")
    facts = describe(backbone, half)
    parts = _Parts(path, facts, backbone.feature_size, half)
    chunks = [source.items[start : start + CHUNK] for start in range(0, len(source.items), CHUNK)]
    done = parts.begin(source.items, progress)
    with progress.task("Embedding", len(source.items)) as task:
        task.advance(sum(map(len, chunks[:done])))
        for number, found in enumerate((engine or Embedder(backbone).all)(chunks[done:]), done):
            parts.write(number, chunks[number], found)
            task.advance(len(chunks[number]))
    skipped = (*source.skipped, *parts.skipped(len(chunks)))
    images = len(source.items) + len(source.skipped) - len(skipped)
    if not images:
        raise DataError(f"{source.name}: none of its {len(source.items)} images can be used; {_first(skipped)}")
    resumed = sum(map(len, chunks[:done])) - len(parts.skipped(done))
    parts.join(len(chunks))
    return Archive(path, images, skipped, resumed, time.perf_counter() - started)


def describe(backbone: Backbone, half: bool) -> dict[str, Any]:
    """Return what readers must know about the vectors, as plain data."""
    return {
        "format": FORMAT,
        "version": version("talon-ocd"),
        "numbers": "float16" if half else "float32",
        "encoder": {
            "name": backbone.name,
            "fingerprint": backbone.fingerprint(),
            "preprocessing": backbone.preprocessing.to_dict(),
            "size": backbone.feature_size,
        },
    }


class _Parts:
    """The files of chunks in ``NAME.parts`` beside the archive, until they are joined."""

    def __init__(self, path: Path, facts: dict[str, Any], size: int, half: bool) -> None:
        import pyarrow as pa

        self._path, self._facts = path, facts
        self._folder = path.with_name(f"{path.name}.parts")
        self._feature = pa.list_(pa.float16() if half else pa.float32(), size)
        text = pa.string()
        columns = [(SOURCE, text), (LABEL, text), (KEY, text), (FEATURE, self._feature)]
        self._schema = pa.schema(columns, {METADATA: json.dumps(facts)})

    def begin(self, items: Sequence[ImageItem], progress: Progress) -> int:
        """Return how many chunks an earlier, equal run has done; what another run left is deleted."""
        digest = hashlib.sha256(json.dumps([self._facts, CHUNK]).encode())
        for item in items:
            digest.update(f"{item.source}\n{item.label}\n{item.key}\n".encode("utf-8", "surrogatepass"))
        mark, run = digest.hexdigest(), self._folder / MARK
        with _told(self._path):
            make_folder(self._folder)
            if not run.is_file():
                self._demand_empty()
            elif run.read_text(encoding="utf-8", errors="replace") != mark:
                progress.note(
                    f"{display(self._folder)} belongs to a run with other images or another encoder; begun anew."
                )
                self._delete_own()
            run.write_text(mark, encoding="utf-8")
        done = 0
        while self._part(done).is_file():
            done += 1
        return done

    def write(self, number: int, items: Sequence[ImageItem], found: Embedding) -> None:
        """Write a chunk."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        kept = [items[at] for at in found.kept]
        numbers = pa.array(found.features.reshape(-1).astype(self._feature.value_type.to_pandas_dtype()))
        columns = [
            pa.array([item.source for item in kept], pa.string()),
            pa.array([item.label for item in kept], pa.string()),
            pa.array([item.key for item in kept], pa.string()),
            pa.FixedSizeListArray.from_arrays(numbers, type=self._feature),
        ]
        about = {**(self._schema.metadata or {}), SKIPPED: json.dumps([asdict(skip) for skip in found.skipped])}
        table = pa.Table.from_arrays(columns, schema=self._schema.with_metadata(about))
        partial = self._part(number).with_suffix(".writing")
        with _told(self._path):
            pq.write_table(table, partial)
            partial.replace(self._part(number))

    def skipped(self, count: int) -> list[Skipped]:
        """Return what all chunks have left out."""
        import pyarrow.parquet as pq

        found: list[Skipped] = []
        for number in range(count):
            about = pq.read_schema(self._part(number)).metadata[SKIPPED]
            found += [Skipped(**skip) for skip in json.loads(about)]
        return found

    def join(self, count: int) -> None:
        """Make one file of all chunks, let it appear, and delete them."""
        import pyarrow.parquet as pq

        whole = self._folder / "whole.writing"
        with _told(self._path):
            with pq.ParquetWriter(whole, self._schema) as writer:
                for number in range(count):
                    table = pq.read_table(self._part(number))
                    if len(table):
                        writer.write_table(table.replace_schema_metadata(self._schema.metadata))
            whole.replace(self._path)
            self._delete_own()
        with suppress(OSError):  # somebody put a file of their own there: it stays
            self._folder.rmdir()

    def _demand_empty(self) -> None:
        """Refuse a folder that was not made by a run, with what is in it."""
        if any(self._folder.iterdir()):
            raise StorageError(
                f"{display(self._folder)}: parts of the archive would be kept there, and it holds files of somebody "
                "else; move it away, or give another --output."
            )

    def _delete_own(self) -> None:
        """Delete what runs write, and nothing else; the mark last, by which the folder is known as ours."""
        for file in [file for file in self._folder.iterdir() if _OWN.fullmatch(file.name)]:
            file.unlink()
        (self._folder / MARK).unlink()

    def _part(self, number: int) -> Path:
        return self._folder / f"{number:08d}.parquet"


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn a failure to write into our own error."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"{display(path)}: can't be written ({reason(error)}); the same command goes on where it stopped."
        ) from error


def _first(skipped: Sequence[Skipped]) -> str:
    return f"the first: {skipped[0].source} {skipped[0].reason}" if skipped else "give a source of images."
