"""Pages of categories, each beginning where the one before ended (layer: catalog)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice

import numpy as np

from talon_ocd.catalog.cursors import read_cursor, write_cursor
from talon_ocd.catalog.facts import Facts
from talon_ocd.catalog.names import sort_key
from talon_ocd.catalog.totals import Ints

SORTS = ("recent", "count", "name", "created")


def page(facts: Facts, chosen: Ints, sort: str, limit: int, after: str | None) -> tuple[Sequence[int], str | None]:
    """Return the ids of a page of the chosen categories ``(N,)``, and where it ends if another follows."""
    if sort == "name":
        return _by_name(facts, chosen, limit, after)
    values = _values(facts, sort)
    if after is not None:
        value, identity = read_cursor(after, sort)
        of_them = values[chosen]
        chosen = chosen[(of_them < value) | ((of_them == value) & (chosen < identity))]
    order = np.lexsort((-chosen, -values[chosen]))[: limit + 1]
    ids = chosen[order].tolist()
    end = write_cursor(sort, int(values[ids[limit - 1]]), ids[limit - 1]) if len(ids) > limit else None
    return ids[:limit], end


def _values(facts: Facts, sort: str) -> Ints:
    """Return what every category is sorted by ``(size,)``, largest first; merged ones by their own images."""
    totals, own = facts.totals, np.arange(facts.totals.size)
    if sort == "created":
        return own
    column = totals.last if sort == "recent" else totals.members
    values, ends = column.copy(), facts.ends()
    merged = np.flatnonzero(ends != own)
    together = np.maximum if sort == "recent" else np.add
    together.at(values, ends[merged], column[merged])
    return values


def _by_name(facts: Facts, chosen: Ints, limit: int, after: str | None) -> tuple[Sequence[int], str | None]:
    rows, start = facts.by_name(), 0
    if after is not None:
        name, identity = read_cursor(after, "name")
        start = bisect_right(rows, (sort_key(name), identity, name))
    wanted = np.zeros(facts.totals.size, np.bool_)
    wanted[chosen] = True
    found = list(islice((row for row in islice(rows, start, None) if wanted[row[1]]), limit + 1))
    end = write_cursor("name", found[limit - 1][2], found[limit - 1][1]) if len(found) > limit else None
    return [category for _, category, _ in found[:limit]], end
