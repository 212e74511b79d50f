"""Thumbnails of all images, and the originals of those that came without a file (layer: durable).

They are for people. Losing one loses no answer, so that they live beside the journal and not in it.
"""

from __future__ import annotations

import io
import re
import sqlite3
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from PIL import Image
from torch import Tensor

from talon_ocd.durable.journal import Journal
from talon_ocd.durable.snapshots import write_through
from talon_ocd.errors import ImageError, StorageError
from talon_ocd.images import ImageItem, decode
from talon_ocd.images.again import find_again
from talon_ocd.images.decode import LIMITS
from talon_ocd.images.items import Readable
from talon_ocd.saved import reason

PICTURES, IMAGES = "pictures.sqlite", "images"
SIDE = 160
"""Longer side of a thumbnail, in pixels."""
QUALITY = 80
_SHOWN_AS_THEY_ARE = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif"}
HASHED = "sha256:"
"""How the keys of images in memory begin."""
_STORED = re.compile(r"[0-9a-f]{64}")
THUMBNAILS = "CREATE TABLE IF NOT EXISTS thumbnails (idx INTEGER PRIMARY KEY, jpeg BLOB NOT NULL)"


class Pictures:
    """Thumbnails in ``pictures.sqlite`` and uploads in ``images/`` of a stream folder; any thread may read.

    Attributes:
        storing: held from when an original is stored until the journal names it, and while others are dropped.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal, self._folder = journal, journal.folder
        self._lock = threading.Lock()
        self.storing = threading.Lock()
        path = self._folder / PICTURES
        self._connection = _opened_or_anew(path) if journal.writable else _opened_to_read(path)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def add(self, first: int, canvases: Sequence[Tensor]) -> None:
        """Keep thumbnails of canvases ``(3, H, W)`` that will be answers ``first``, ``first + 1``, ..."""
        rows = [(first + offset, thumbnail(canvas)) for offset, canvas in enumerate(canvases)]
        try:
            with self._lock, self._connection:
                self._connection.execute("BEGIN")
                self._connection.executemany("INSERT OR REPLACE INTO thumbnails VALUES (?, ?)", rows)
        except sqlite3.Error as error:
            raise StorageError(
                f"{self._folder}: thumbnails can't be written ({error}); free some space or look at the disk. What was "
                "answered before is safe."
            ) from error

    def store(self, item: ImageItem) -> str | None:
        """Keep the bytes of a picture that has no file of its own; returns their name, ``None`` if it has one."""
        if not isinstance(item.payload, bytes) or not item.key.startswith(HASHED):
            return None
        name = item.key.removeprefix(HASHED)
        path = self._path(name)
        if not path.exists():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_through(path, item.payload)
            except OSError as error:
                raise StorageError(f"{path}: an image can't be kept ({reason(error)}).") from error
        return name

    def thumbnail(self, index: int) -> bytes | None:
        """Return the thumbnail of an answer's image as JPEG."""
        with self._lock:
            row = self._connection.execute("SELECT jpeg FROM thumbnails WHERE idx = ?", (index,)).fetchone()
        return bytes(row[0]) if row else None

    def item(self, index: int) -> ImageItem | None:
        """Return the image of an answer, not loaded yet; ``None`` if it is gone or has changed since."""
        rows = self._journal.query("SELECT source, key, stored FROM decisions WHERE idx = ?", (index,))
        if not rows:
            return None
        source, key, stored = rows[0]["source"], rows[0]["key"], rows[0]["stored"]
        if stored:
            data = _bytes(self._path(stored))
            return None if data is None else ImageItem(source, None, key, data)
        return find_again(source, key)

    def original(self, index: int) -> tuple[bytes, str] | None:
        """Return the image of an answer with its media type, as any browser shows it."""
        item = self.item(index)
        if item is None:
            return None
        data = _content(item)
        return None if data is None else shown(data, item.source)

    def drop_originals(self, names: Sequence[str]) -> None:
        """Drop originals by their names; ``storing`` must be held since nobody needed them."""
        for name in names:
            with suppress(OSError):
                self._path(name).unlink()

    def drop_thumbnails(self, first: int, last: int, kept: Sequence[int]) -> None:
        """Drop thumbnails of answers from ``first`` to before ``last`` but for ``kept``."""
        kept = sorted(kept)
        ends = [first - 1, *kept], [*kept, last]
        gaps = [(before, after) for before, after in zip(*ends, strict=True) if after - before > 1]
        try:
            with self._lock, self._connection:
                self._connection.execute("BEGIN")
                self._connection.executemany("DELETE FROM thumbnails WHERE idx > ? AND idx < ?", gaps)
        except sqlite3.Error as error:
            raise StorageError(f"{self._folder}: thumbnails can't be written ({error}).") from error

    def adopt(self, folder: Path, first: int, answered: int, stored: Sequence[str]) -> None:
        """Take over the pictures of another folder's ``answered`` answers, which here are ``first``, ``first + 1``, ...

        ``stored`` are the names of its originals; they take no space where the disk allows links.
        """
        path = folder / PICTURES
        if path.is_file():
            other = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30.0)
            try:
                found = other.execute("SELECT idx + ?, jpeg FROM thumbnails WHERE idx < ?", (first, answered))
                with self._lock, self._connection:
                    self._connection.execute("BEGIN")
                    self._connection.executemany("INSERT OR REPLACE INTO thumbnails VALUES (?, ?)", found)
            except sqlite3.Error as error:
                raise StorageError(f"{path}: thumbnails can't be copied ({error}).") from error
            finally:
                other.close()
        for name in stored:
            _link(folder / IMAGES / name[:2] / name, self._path(name))

    def sweep(self) -> None:
        """Drop originals that no answer needs: of requests that nobody waited for, or of a process that died."""
        for folder in filter(Path.is_dir, (self._folder / IMAGES).glob("??")):
            names = [file.name for file in folder.iterdir()]
            needed = self._journal.stored([name for name in names if _STORED.fullmatch(name)])
            for name in set(names) - needed:
                with suppress(OSError):
                    (folder / name).unlink()

    def _path(self, name: str) -> Path:
        return stored_path(self._folder, name)


def stored_path(folder: Path, name: str) -> Path:
    """Return where a stream folder keeps the original of an upload, by its name there."""
    if not _STORED.fullmatch(name):
        raise StorageError(f"{folder}: {name!r} is no name of a stored image.")
    return folder / IMAGES / name[:2] / name


def _opened_or_anew(path: Path) -> sqlite3.Connection:
    """Open thumbnails to write; a file that is damaged is put aside, one that can't be had just now is not."""
    try:
        try:
            return _opened(path)
        except sqlite3.OperationalError:  # a full disk, say: the pictures in it are whole
            raise
        except sqlite3.DatabaseError as error:
            warnings.warn(f"{path} is damaged ({error}); it is put aside, and thumbnails begin anew.", stacklevel=3)
            with suppress(OSError):
                path.replace(path.with_suffix(".damaged"))
            return _opened(path)
    except sqlite3.Error as error:
        raise StorageError(f"{path}: thumbnails can't be written ({error}); look at permissions and space.") from error


def _opened(path: Path) -> sqlite3.Connection:
    return _with(path.resolve().as_uri(), "PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", THUMBNAILS)


def _opened_to_read(path: Path) -> sqlite3.Connection:
    """Open thumbnails of a folder that others write to, or nobody can; there are none if they can't be read."""
    look = "SELECT 1 FROM thumbnails LIMIT 1"
    for mode in ("mode=ro", "mode=ro&immutable=1"):  # of media that nobody can write to, sqlite must be told so
        with suppress(sqlite3.Error):
            return _with(f"{path.resolve().as_uri()}?{mode}", look)
    return _with("file::memory:", THUMBNAILS)


def _with(uri: str, *statements: str) -> sqlite3.Connection:
    """Connect to a file and begin with some statements."""
    connection = sqlite3.connect(uri, uri=True, timeout=30.0, isolation_level=None, check_same_thread=False)
    try:
        for statement in statements:
            connection.execute(statement)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def thumbnail(canvas: Tensor) -> bytes:
    """Return a canvas ``(3, H, W)`` as a small JPEG."""
    picture = Image.fromarray(canvas.permute(1, 2, 0).contiguous().numpy())
    picture.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR)
    written = io.BytesIO()
    picture.save(written, "JPEG", quality=QUALITY)
    return written.getvalue()


def shown(data: bytes, source: str) -> tuple[bytes, str] | None:
    """Return bytes that any browser shows, with their media type: what is uncommon becomes JPEG."""
    try:
        with Image.open(io.BytesIO(data)) as opened:
            media = _SHOWN_AS_THEY_ARE.get(opened.format or "")
        if media is not None:
            return data, media
        written = io.BytesIO()
        decode(data, source, LIMITS).save(written, "JPEG", quality=90)
        return written.getvalue(), "image/jpeg"
    except (ImageError, OSError, ValueError):
        return None


def _link(source: Path, target: Path) -> None:
    """Let a picture be at another place too, as a link or a copy; one that is gone stays gone."""
    if target.exists() or not source.is_file():
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.hardlink_to(source)
        except OSError:  # another disk, or one that knows no links
            write_through(target, source.read_bytes())
    except OSError as error:
        raise StorageError(f"{target}: an image can't be kept ({reason(error)}).") from error


def _content(item: ImageItem) -> bytes | None:
    """Return the encoded image of an item; ``None`` if it can't be read any more."""
    payload = item.payload
    if isinstance(payload, Path):
        return _bytes(payload)
    with suppress(ImageError):
        data = payload.read(item.source, LIMITS) if isinstance(payload, Readable) else payload
        return data if isinstance(data, bytes) else None
    return None


def _bytes(path: Path) -> bytes | None:
    with suppress(OSError):
        return path.read_bytes()
    return None
