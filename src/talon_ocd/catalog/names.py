"""What a name may be (layer: catalog)."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from talon_ocd.errors import CatalogError
from talon_ocd.images.items import natural

NameKey = tuple[tuple[tuple[int, int, str], ...], ...]

LONGEST_NAME = 200
"""Characters of a name."""


class NameTakenError(CatalogError):
    """Another category has the name already; merging the two may be what is meant.

    Attributes:
        existing: id of the category with the name.
        existing_name: the name.
    """

    def __init__(self, name: str, existing: int) -> None:
        super().__init__(
            f"{name!r} is the name of category {existing} already; merge the two if they are one, or choose another."
        )
        self.existing, self.existing_name = existing, name


def clean_name(name: str) -> str:
    """Return a name without space around it; it is text and nothing else, also where it looks like HTML.

    >>> clean_name("  great tit ")
    'great tit'
    """
    cleaned = normal(name).strip()
    if not 1 <= len(cleaned) <= LONGEST_NAME:
        raise CatalogError(f"a name has 1 to {LONGEST_NAME} characters, this one has {len(cleaned)}.")
    bad = next((letter for letter in cleaned if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")), None)
    if bad is not None:
        raise CatalogError(f"the name {cleaned!r} has the control character {bad!r}; leave it out.")
    return cleaned


def normal(name: str) -> str:
    """Return a name with each accented letter as one character: keyboards and disks differ in how they write them."""
    return unicodedata.normalize("NFC", name)


@lru_cache(maxsize=2**16)
def sort_key(name: str) -> NameKey:
    """Return a key that sorts names like people do: without case, numbers by their value."""
    return natural(name.casefold())
