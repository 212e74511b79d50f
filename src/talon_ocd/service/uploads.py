"""Images out of requests: raw bytes or forms (layer: service)."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect, Request

from talon_ocd.images import ImageItem, memory_item
from talon_ocd.service.problems import Problem

LONGEST_SOURCE = 200
"""Characters that are kept of what a client calls an image."""
NAMELESS = "upload"
LARGE = 500_000
"""Bytes that take longer to digest than a thread takes to begin."""
FORM = "multipart/form-data"
_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Kinds of characters that do something instead of being something."""


def clean_source(text: str | None) -> str:
    r"""Return what a client calls an image as harmless text; it is never used as a path.

    >>> clean_source("../../etc/pass\x00wd\n"), clean_source("  "), clean_source(None)
    ('../../etc/passwd', 'upload', 'upload')
    """
    kept = "".join(letter for letter in text or "" if unicodedata.category(letter) not in _INVISIBLE)
    return kept.strip()[:LONGEST_SOURCE] or NAMELESS


async def one_image(request: Request, source: str | None) -> ImageItem:
    """Return the image that is the body of a request, or the field ``image`` of its form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == FORM:
        files = await _files(request, "image", 1)
        return await _item(files[0][0], source or files[0][1])
    if kind and not kind.startswith("image/") and kind != "application/octet-stream":
        raise Problem(
            "unsupported-media-type",
            f"an image can't be sent as {kind[:100]!r}: send its bytes with 'Content-Type: image/jpeg' (or the like), "
            "or a form (multipart/form-data) with the field 'image'.",
        )
    try:
        data = await request.body()
    except ClientDisconnect:
        raise Problem("bad-request", "the body ended before its announced length.") from None
    return await _item(data, source)


async def many_images(request: Request, most: int) -> Sequence[ImageItem]:
    """Return the images in the fields ``images`` of a form, in their order."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM:
        raise Problem(
            "unsupported-media-type", "send a form (multipart/form-data) with one field 'images' for each image."
        )
    return [await _item(data, name) for data, name in await _files(request, "images", most)]


async def _files(request: Request, field: str, most: int) -> list[tuple[bytes, str | None]]:
    try:
        async with request.form(max_files=most + 1, max_fields=10) as form:
            found = [(await part.read(), part.filename) for part in _parts(form.getlist(field))]
    except ClientDisconnect:
        raise Problem("bad-request", "the body ended before its announced length.") from None
    if not found:
        raise Problem("invalid-request", f"the form has no file in a field {field!r}.", errors=[])
    if len(found) > most:
        raise Problem("too-large", f"the form has more than {most} images; send fewer at once.", limit=most)
    return found


def _parts(values: Sequence[UploadFile | str]) -> list[UploadFile]:
    return [value for value in values if isinstance(value, UploadFile)]


async def _item(data: bytes, name: str | None) -> ImageItem:
    """Return an image with its digest; that of a large one is made in a thread, so that others need not wait."""
    source = clean_source(name)
    return memory_item(data, source) if len(data) < LARGE else await run_in_threadpool(memory_item, data, source)
