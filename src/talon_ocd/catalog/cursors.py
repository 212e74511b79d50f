"""Where a page ended, as text that can be sent away and come back (layer: catalog)."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from talon_ocd.errors import CatalogError

LARGEST = 2**63 - 1
"""No number of a journal is larger."""


def write_cursor(sort: str, key: int | str, identity: int) -> str:
    """Return the end of a page: how it was sorted, and the sort key and id of its last row."""
    text = json.dumps([sort, key, identity], ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str, sort: str) -> tuple[Any, int]:
    """Return sort key (text for names, else a whole number) and id of the last row before a page.

    >>> read_cursor(write_cursor("count", 7, 3), "count")
    (7, 3)
    """
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        found, key, identity = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, UnicodeError, ValueError, TypeError, RecursionError):
        raise CatalogError(f"{cursor[:40]!r} is no page of this list; begin with the first one.") from None
    of_its_kind = isinstance(key, str) if sort == "name" else _is_number(key)
    if found != sort or not of_its_kind or not _is_number(identity):
        raise CatalogError(f"{cursor[:40]!r} is a page of another list; begin this one with its first page.")
    return key, identity


def _is_number(value: object) -> bool:
    return isinstance(value, int) and abs(value) <= LARGEST
