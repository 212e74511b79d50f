"""Where images are at home, written down with the event that says so (layer: catalog).

``decisions.home`` and ``categories.members`` are projections of the ledger: they change in its transaction.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence

from talon_ocd.durable.journal import Journal
from talon_ocd.errors import CatalogError

Move = tuple[int, int, int]
"""Index of an image, the category that it leaves, the category that it joins; -1 is no category."""


def column_of(journal: Journal, column: str, images: Sequence[int]) -> dict[int, int]:
    """Return ``home`` or ``category`` of images; refuses those that are not there."""
    rows = journal.query_in(f"SELECT idx, {column} AS value FROM decisions WHERE idx IN (*)", images)
    found: dict[int, int] = {row["idx"]: row["value"] for row in rows}
    for image in images:
        if image not in found:
            raise CatalogError(f"there is no image {image}; {journal.answered} were answered, counted from 0.")
    return found


def has_feature(journal: Journal, images: Sequence[int]) -> bool:
    """Say whether the feature of one of the images is still there."""
    return any(journal.query_in("SELECT 1 FROM features WHERE idx IN (*) LIMIT 1", images))


def write_homes(connection: sqlite3.Connection, moves: Iterable[Move]) -> None:
    """Bring images to their homes, and the totals of the categories with them."""
    changed = [(image, old, new) for image, old, new in moves if old != new]
    connection.executemany("UPDATE decisions SET home = ? WHERE idx = ?", [(new, image) for image, _, new in changed])
    change = Counter(new for _, _, new in changed)
    change.subtract(old for _, old, _ in changed)
    connection.executemany(
        "INSERT INTO categories (id, known, members) VALUES (?, 0, ?) "
        "ON CONFLICT (id) DO UPDATE SET members = members + excluded.members",
        [(category, number) for category, number in sorted(change.items()) if number and category >= 0],
    )


def write_category(connection: sqlite3.Connection, category: int, images: Sequence[int]) -> None:
    """Write a category down that people made, with the times of its first and last image."""
    connection.execute(
        "INSERT INTO categories (id, known, first_idx, first_at, last_idx, last_at) "
        "SELECT ?, 0, first.idx, first.at, last.idx, last.at FROM decisions AS first, decisions AS last "
        "WHERE first.idx = ? AND last.idx = ?",
        (category, min(images), max(images)),
    )


def as_data(moves: Iterable[Move]) -> list[list[int]]:
    """Return moves as the plain data of an event."""
    return [list(move) for move in moves]


def new_category(connection: sqlite3.Connection, known: int) -> int:
    """Return the id that follows all others."""
    newest = connection.execute("SELECT max(id) FROM categories").fetchone()[0]
    return max(known - 1, -1 if newest is None else int(newest)) + 1
