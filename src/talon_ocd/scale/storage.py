"""Images in object stores: ``s3://bucket/folder``, ``gs://...``, ``file:///...`` (layer: scale).

Listed and read through the file systems of pyarrow, which Ray Data reads with (``reading.py``). Tar shards are listed
from their headers and their members are read in place.
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from pyarrow import ArrowException
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType

from talon_ocd.errors import DataError, ImageError
from talon_ocd.images import ImageItem, ImageSource, Skipped, display
from talon_ocd.images.decode import Limits, check_bytes
from talon_ocd.images.folders import is_hidden, is_image_name
from talon_ocd.images.items import natural
from talon_ocd.images.tars import TWICE, refusal, visible

SHARD = ".tar"
AT_ONCE = 8
"""Shards whose headers are read at the same time."""
_FAILURES = (OSError, ArrowException)


@dataclass(frozen=True)
class Stored:
    """One image of an object store, or of a tar shard in it.

    Attributes:
        store: scheme and bucket, e.g. ``s3://birds``.
        path: of the object inside its file system.
        offset: where the image begins.
        size: its bytes.
        query: options that open the store, e.g. ``region=eu-west-1``; they are shown nowhere.
    """

    store: str
    path: str
    offset: int
    size: int
    query: str = field(default="", repr=False)

    @property
    def uri(self) -> str:
        """The address that opens the store."""
        return _with(f"{self.store}/", self.query)

    def read(self, source: str, limits: Limits) -> bytes:
        """Return the encoded image; raises `ImageError`."""
        check_bytes(self.size, source, limits)
        try:
            with _file_system(self.uri).open_input_file(self.path) as file:
                data = bytes(file.read_at(self.size, self.offset))
        except _FAILURES as error:
            raise ImageError(source, f"can't be read ({error}); is it still there?") from error
        if len(data) < self.size:
            raise ImageError(source, "ends too early; it was changed after it was listed.")
        return data


def refuse_secrets(uri: str) -> None:
    """Refuse an address with a password in it: addresses are written into journals, reports and logs."""
    split = urlsplit(uri)
    keys = split.scheme == "s3" and any(mark in split.netloc for mark in ":@")  # a secret with a / ends the host early
    if keys or "@" in split.netloc.partition(":")[2]:
        raise DataError(
            f"{split.scheme}://...@...: an address is written into reports, so it can't hold a password; put the keys "
            "into the environment (for S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), and give the bucket alone."
        )


def stored(uri: str) -> ImageSource:
    """List the images below an address, by path: objects, and members of ``.tar`` shards; labels as in folders.

    What follows a ``?`` opens the store (``?region=...&endpoint_override=...``) and is no part of any name.
    """
    refuse_secrets(uri)
    uri, _, query = uri.partition("?")
    split, uri = urlsplit(uri), uri.rstrip("/")
    try:
        files, root = FileSystem.from_uri(_with(uri, query))
        found = files.get_file_info([root.rstrip("/")])
        if found[0].type == FileType.File:  # one image or one shard: seen from the folder that it is in
            root, uri = root.rpartition("/")[0], uri.rpartition("/")[0]
        else:
            found = files.get_file_info(FileSelector(root.rstrip("/"), recursive=True))
    except (*_FAILURES, ValueError) as error:
        said = str(error).replace(_with(uri, query), uri)
        raise DataError(f"{uri} can't be listed ({said}); check the address and who may read it.") from None
    listing = _Listing(f"{split.scheme}://{split.netloc}", query, root.rstrip("/"), uri)
    listing.take([info for info in found if info.type == FileType.File])
    if not listing.items:
        left_out = [f"the first that was left out: {one.source} {one.reason}" for one in listing.skipped[:1]]
        raise DataError(f"{uri} has no images; {(left_out or ['give the address of a folder of them.'])[0]}")
    return ImageSource(uri, listing.items, listing.skipped, listing.ignored)


@dataclass
class _Shard:
    """Offset and size of the images of a shard, by name, and what was left out of it, with reasons."""

    images: dict[str, tuple[int, int]] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    ignored: int = 0

    def take(self, name: PurePosixPath, member: tarfile.TarInfo) -> None:
        if not is_image_name(name.name):
            self.ignored += 1
        elif reason := refusal(name, member):
            self.left_out.append((str(name), reason))
        else:
            self.left_out += [(str(name), TWICE)] if str(name) in self.images else []
            self.images[str(name)] = member.offset_data, member.size


class _Listing:
    """What was found below an address."""

    def __init__(self, store: str, query: str, root: str, uri: str) -> None:
        self._store, self._query, self._root, self._uri = store, query, root, uri
        self.items: list[ImageItem] = []
        self.skipped: list[Skipped] = []
        self.ignored = 0

    def take(self, objects: Sequence[FileInfo]) -> None:
        """Sort objects by path into images, shards and what is neither."""
        named = sorted(((self._below(info.path), info) for info in objects), key=lambda pair: natural(pair[0]))
        shards = [info for name, info in named if name.endswith(SHARD)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            members = dict(zip((info.path for info in shards), pool.map(self._members, shards), strict=True))
        for name, info in named:
            if any(is_hidden(part) for part in PurePosixPath(name).parts):
                continue
            if info.path in members:
                self._take_shard(name, info, members[info.path])
            elif is_image_name(name):
                self._add(name, _key(info), Stored(self._store, info.path, 0, info.size, self._query))
            else:
                self.ignored += 1

    def _members(self, info: FileInfo) -> _Shard:
        """List the images of a shard, by the rules of archives that are files here."""
        shard = _Shard()
        try:
            with (
                _file_system(_with(f"{self._store}/", self._query)).open_input_file(info.path) as file,
                tarfile.open(fileobj=file, mode="r:") as archive,
            ):
                for name, member in visible(archive):
                    shard.take(name, member)
        except (*_FAILURES, tarfile.TarError) as error:
            shard.left_out.append(("", f"can't be read as .tar ({error}); pack it again."))
        return shard

    def _take_shard(self, name: str, info: FileInfo, shard: _Shard) -> None:
        """Take the images of a shard by path, as those of a folder: an order that packing can't change."""
        for member, reason in shard.left_out:
            self.skipped.append(Skipped(display(f"{self._uri}/{name}/{member}".rstrip("/")), reason))
        self.ignored += shard.ignored
        for member, (offset, size) in sorted(shard.images.items(), key=lambda pair: natural(pair[0])):
            place = Stored(self._store, info.path, offset, size, self._query)
            self._add(f"{name}/{member}", f"{_key(info)}|{display(member)}", place, member)

    def _add(self, name: str, key: str, place: Stored, labelled_by: str | None = None) -> None:
        parts = PurePosixPath(name if labelled_by is None else labelled_by).parts
        label = display(parts[0]) if len(parts) > 1 else None
        self.items.append(ImageItem(display(f"{self._uri}/{name}"), label, f"{self._store}|{key}", place))

    def _below(self, path: str) -> str:
        return path.removeprefix(self._root).lstrip("/")


def _key(info: FileInfo) -> str:
    return f"{display(info.path)}|{info.size}|{info.mtime_ns}"


@lru_cache(maxsize=8)
def _file_system(uri: str) -> FileSystem:
    return FileSystem.from_uri(uri)[0]


def _with(uri: str, query: str) -> str:
    return f"{uri}?{query}" if query else uri
