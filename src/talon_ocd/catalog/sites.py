"""Where the answers and categories of a joined stream come from (layer: catalog).

A join writes one event for each stream that it took in. All numbers were shifted as a whole, so that an event says
everything with a few of them: old id and old index of anything can be told, and the new ones found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from talon_ocd.durable.journal import Journal
from talon_ocd.errors import CatalogError, nearest

JOINED = "joined"
"""Kind of the event that says which stream was taken in."""


@dataclass(frozen=True, slots=True)
class Site:
    """A stream that was taken into another one.

    Attributes:
        site: what it is called; one that came inside another site is called ``other/site``.
        folder: where it was.
        first: index here of its first answer.
        answers: how many answers it had given.
        known: C; known classes have the same ids everywhere.
        until: its ids of categories were ``known`` to ``until - 1``.
        shift: what was added to those.
    """

    site: str
    folder: str
    first: int
    answers: int
    known: int
    until: int
    shift: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as the event has it."""
        return asdict(self)

    def has_category(self, category: int) -> bool:
        """Say whether an id of the joined stream is of a category that this site discovered."""
        return self.known <= category - self.shift < self.until

    def has_image(self, index: int) -> bool:
        """Say whether an answer of the joined stream is this site's."""
        return self.first <= index < self.first + self.answers


class Sites:
    """The sites of a stream folder; none if it was never joined."""

    def __init__(self, journal: Journal) -> None:
        fields = Site.__dataclass_fields__
        events = journal.events(kinds=(JOINED,))
        self.all: Sequence[Site] = [Site(**{name: event.data[name] for name in fields}) for event in events]

    def category(self, text: str) -> int | None:
        """Return the id here of ``SITE:ID``; ``None`` if the text does not look like that.

        ``other/site`` may be written ``site`` as long as it is the only one.
        """
        name, colon, number = text.rpartition(":")
        if not colon or not number.isdecimal() or not self.all:
            return None
        found = [one for one in self.all if one.site == name] or [
            one for one in self.all if one.site.endswith(f"/{name}")
        ]
        if len(found) != 1:
            names = [one.site for one in self.all]
            why = "is no site" if not found else "may be more than one site"
            raise CatalogError(f"{name!r} {why} of this stream; there are {', '.join(names)}.{nearest(name, names)}")
        old, site = int(number), found[0]
        if old >= site.until:
            raise CatalogError(f"site {name!r} had no category {old}; its newest one was {site.until - 1}.")
        return old if old < site.known else old + site.shift

    def origin(self, category: int) -> tuple[str, int] | None:
        """Return site and old id of a discovered category; ``None`` if it was discovered here, or is a known class."""
        site = min((one for one in self.all if one.has_category(category)), key=lambda one: one.until, default=None)
        return None if site is None else (site.site, category - site.shift)

    def of_image(self, index: int) -> tuple[str, int] | None:
        """Return site and old index of an answer; ``None`` if it was given here."""
        site = min((one for one in self.all if one.has_image(index)), key=lambda one: one.answers, default=None)
        return None if site is None else (site.site, index - site.first)
