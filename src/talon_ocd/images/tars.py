"""Images in a tar archive, read in place and never extracted (layer: images).

Members of a plain ``.tar`` are read by their offset. A compressed archive can't be entered in the middle: its
images are copied once into one nameless temporary file, which disappears with the last item.
"""

from __future__ import annotations

import tarfile
import tempfile
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from talon_ocd.errors import DataError, ImageError, StorageError
from talon_ocd.images.decode import LIMITS, Limits, check_bytes
from talon_ocd.images.folders import is_hidden, is_image_name
from talon_ocd.images.items import ImageItem, ImageSource, Skipped, display, file_key, natural

SUFFIXES = (".tar", ".tar.gz", ".tgz")
TWICE = "is in the archive twice; the later one counts."
_BROKEN = (tarfile.TarError, EOFError, zlib.error, OSError)


class Spool:
    """A nameless temporary file that threads may read."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the items
        self._lock = threading.Lock()

    def append(self, data: bytes) -> int:
        """Store bytes; return their offset."""
        try:
            offset = self._file.seek(0, 2)
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            remedy = "unpack the archive, or set TMPDIR to a folder with room"
            where = tempfile.gettempdir()
            raise StorageError(f"{where} has no room for a compressed archive ({error}); {remedy}.") from error
        return offset

    def read(self, offset: int, size: int) -> bytes:
        """Return stored bytes."""
        with self._lock:
            self._file.seek(offset)
            return self._file.read(size)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


@dataclass(frozen=True)
class Member:
    """One image in an archive: where it is."""

    archive: Path | Spool
    offset: int
    size: int

    def read(self, source: str, limits: Limits) -> bytes:
        """Return the encoded image; raises `ImageError`."""
        check_bytes(self.size, source, limits)
        try:
            if isinstance(self.archive, Spool):
                data = self.archive.read(self.offset, self.size)
            else:
                with self.archive.open("rb") as file:
                    file.seek(self.offset)
                    data = file.read(self.size)
        except OSError as error:
            reason = f"can't be read ({error.strerror}); is the archive still there?"
            raise ImageError(source, reason) from error
        if len(data) < self.size:
            raise ImageError(source, "ends too early; the archive is truncated or changed: copy it again.")
        return data


def visible(archive: tarfile.TarFile) -> Iterator[tuple[PurePosixPath, tarfile.TarInfo]]:
    """Yield the members of an archive, but for folders and what is hidden, with their names made plain."""
    for member in archive:
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        if not member.isdir() and parts and not any(is_hidden(part) for part in parts if part != ".."):
            yield PurePosixPath(*parts), member


def refusal(name: PurePosixPath, member: tarfile.TarInfo) -> str | None:
    """Return why a member can't be read in place, ``None`` if it can."""
    if not member.isreg() or member.issparse():
        return "is a link or a special file of the archive; pack the image itself."
    if ".." in name.parts:
        return "has '..' in its path; pack the archive again."
    return None


def scan_tar(path: Path, *, labelled: bool, limits: Limits = LIMITS) -> ImageSource:
    """List the images of an archive by path; the label is the first folder, after a folder common to all.

    With ``labelled``, images outside class folders are skipped.
    """
    listing = _Listing(path, limits)
    listing.fill()
    names = sorted(listing.members, key=lambda name: natural(str(name)))
    depth = _common_depth(names, labelled)
    key = file_key(path)
    items = []
    for name in names:
        folders = name.parts[depth:-1]
        source = display(path / name)
        if labelled and not folders:
            listing.skip(name, "lies beside the class folders; move it into one of them.")
            continue
        label = display(folders[0]) if folders else None
        items.append(ImageItem(source, label, f"{key}|{display(name)}", listing.members[name]))
    return ImageSource(display(path), items, listing.skipped, listing.ignored)


def _common_depth(names: list[PurePosixPath], labelled: bool) -> int:
    """Return 1 when one top folder holds everything; a single class folder is no such folder."""
    tops = {name.parts[0] if len(name.parts) > 1 else "" for name in names}
    if len(tops) != 1 or "" in tops:
        return 0
    return int(not labelled or any(len(name.parts) > 2 for name in names))


@dataclass
class _Listing:
    """One pass over an archive."""

    path: Path
    limits: Limits
    members: dict[PurePosixPath, Member] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    ignored: int = 0

    def skip(self, name: PurePosixPath, reason: str) -> None:
        self.skipped.append(Skipped(display(self.path / name), reason))

    def fill(self) -> None:
        compressed = not self.path.name.lower().endswith(".tar")
        spool = Spool() if compressed else None
        try:
            # mypy knows the modes as literals only
            mode: Any = "r|gz" if compressed else "r:"
            with tarfile.open(self.path, mode) as archive:
                for name, member in self._regular(archive):
                    self._take(archive, name, member, spool)
                if not compressed and archive.offset > self.path.stat().st_size:
                    raise tarfile.ReadError("unexpected end of data")
        except StorageError:
            raise
        except _BROKEN as error:
            if not self.members:
                raise DataError(
                    f"{display(self.path)} can't be read as {'.tar.gz' if compressed else '.tar'} ({error}); "
                    "check its format and permissions, or pack it again."
                ) from error
            reason = f"ends too early, after {len(self.members)} images ({error}); copy the archive again."
            self.skipped.append(Skipped(display(self.path), reason))

    def _regular(self, archive: tarfile.TarFile) -> Iterator[tuple[PurePosixPath, tarfile.TarInfo]]:
        """Yield what is an image by its name and a plain file by its type."""
        for name, member in visible(archive):
            if not is_image_name(name.name):
                self.ignored += 1
            elif reason := refusal(name, member):
                self.skip(name, reason)
            else:
                yield name, member

    def _take(
        self, archive: tarfile.TarFile, name: PurePosixPath, member: tarfile.TarInfo, spool: Spool | None
    ) -> None:
        try:
            check_bytes(member.size, name.name, self.limits)
        except ImageError as error:
            self.skip(name, error.reason)
            return
        if name in self.members:
            self.skip(name, TWICE)
        if spool is None:
            self.members[name] = Member(self.path, member.offset_data, member.size)
            return
        file: IO[bytes] | None = archive.extractfile(member)
        data = file.read() if file is not None else b""
        self.members[name] = Member(spool, spool.append(data), len(data))
