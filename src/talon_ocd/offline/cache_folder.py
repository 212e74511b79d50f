"""A folder of trunk-cache files with a size limit (layer: offline); the least recently used go first."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import weakref
from pathlib import Path

from talon_ocd.errors import StorageError
from talon_ocd.offline.row_store import FileSegment

SPARE_BYTES = 200_000_000
"""Bytes of the disk that the cache leaves to others."""


class CacheFolder:
    """Row files under ``path`` (``None``: a temporary folder that goes away with this object)."""

    def __init__(self, path: Path | None, limit: int) -> None:
        self.limit = limit
        self._locks: dict[str, int] = {}
        try:
            self.path = Path(tempfile.mkdtemp(prefix="talon-trunk-")) if path is None else path
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"trunk cache folder {path} can't be made ({error}); give another one.") from error
        self._finalizer = weakref.finalize(self, _release, self._locks, None if path else self.path)

    def open(self, name: str, shape: tuple[int, ...]) -> FileSegment:
        """Open a file for this process alone; raises ``StorageError`` if another one has it."""
        self._locks[name] = _lock(self.path / f"{name}.lock")
        segment = FileSegment(self.path / name, shape)
        os.utime(self.path / f"{name}.index")  # the clock of "least recently used"
        return segment

    def make_room(self, needed: int) -> bool:
        """Return whether ``needed`` more bytes fit, deleting old files of other fingerprints if need be."""
        others = sorted(
            (path for path in self.path.glob("*.index") if path.stem not in self._locks),
            key=lambda path: path.stat().st_mtime,
        )
        while not self._fits(needed):
            if not others:
                return False
            self._delete(others.pop(0).stem)
        return True

    def used(self) -> int:
        """Return the bytes of all files in the folder."""
        return sum(path.stat().st_size for path in self.path.iterdir() if path.is_file())

    def close(self) -> None:
        """Let other processes have the files; delete a temporary folder."""
        self._finalizer()

    def _fits(self, needed: int) -> bool:
        free = shutil.disk_usage(self.path).free
        return self.used() + needed <= self.limit and needed + SPARE_BYTES <= free

    def _delete(self, name: str) -> None:
        """Delete a file unless another process has it open."""
        try:
            lock = _lock(self.path / f"{name}.lock")
        except StorageError:
            return
        try:
            for suffix in (".index", ".rows"):
                (self.path / f"{name}{suffix}").unlink(missing_ok=True)
        finally:
            os.close(lock)


def _lock(path: Path) -> int:
    """Return a descriptor that holds an exclusive lock until it is closed or the process dies."""
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if sys.platform == "win32":  # pragma: no cover - not our machines
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        reason = "another process uses it" if isinstance(error, BlockingIOError) else str(error)
        raise StorageError(f"trunk cache {path.with_suffix('')} can't be opened: {reason}.") from error
    return descriptor


def _release(locks: dict[str, int], temporary: Path | None) -> None:
    for descriptor in locks.values():
        os.close(descriptor)
    locks.clear()
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)
