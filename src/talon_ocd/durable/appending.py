"""Answers and events of one journal, appended to another under new numbers (layer: durable)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from talon_ocd.durable.journal import Event, Journal

ROWS = 4096
"""Answers that are copied at once."""
ALIKE = 0.9995
"""Cosine from which on two features are of one image: batches round differently, and features are kept in float16."""


@dataclass(frozen=True)
class Renumbering:
    """What the numbers of a stream become where it is appended.

    Attributes:
        known: C, the known classes: they are the same everywhere.
        shift: what is added to the ids of discovered categories.
        first: what is added to the indices of answers.
        events: what is added to the numbers of events.
    """

    known: int
    shift: int
    first: int
    events: int

    def category(self, category: int) -> int:
        """Return the new id of a category; nobody (-1) stays nobody."""
        return category + self.shift if category >= self.known else category

    def data(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return what belongs to an event, with new numbers."""
        changed = dict(data)
        for name in ("image", "first", "answered"):
            if name in data:
                changed[name] = data[name] + self.first
        for name in ("categories", "pair"):
            if name in data:
                changed[name] = [self.category(category) for category in data[name]]
        if "into" in data:
            changed["into"] = self.category(data["into"])
        if "shift" in data:
            changed["shift"] = data["shift"] + self.shift
        if "moves" in data:
            changed["moves"] = [
                [image + self.first, self.category(away), self.category(to)] for image, away, to in data["moves"]
            ]
        return changed


@dataclass(frozen=True)
class SameKeys:
    """Images whose key was in the journal before.

    Attributes:
        same: how many are the very image, answered twice.
        renamed: index and key of those that are another image, or of which nobody knows; they got keys of their own.
    """

    same: int
    renamed: tuple[tuple[int, str], ...]


def append_answers(target: Journal, source: Journal, numbers: Renumbering, site: str) -> SameKeys:
    """Append all answers with features and totals; a key that means another image here becomes ``site:key``."""
    same, renamed = 0, dict[int, str]()
    for start in range(0, source.answered, ROWS):
        part = (start, start + ROWS)
        rows = source.query("SELECT * FROM decisions WHERE idx >= ? AND idx < ? ORDER BY idx", part)
        features = source.query("SELECT idx, feature FROM features WHERE idx >= ? AND idx < ?", part)
        twice, foreign = _known_keys(target, rows, {row["idx"]: row["feature"] for row in features}, numbers.first)
        same += twice
        renamed.update({index + numbers.first: key for index, key in foreign.items()})
        with target.transaction() as connection:
            connection.executemany(
                "INSERT INTO decisions VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
                [_decision(row, numbers, f"{site}:" if row["idx"] in foreign else "") for row in rows],
            )
            connection.executemany(
                "INSERT INTO features VALUES (?, ?)", [(row["idx"] + numbers.first, row["feature"]) for row in features]
            )
    with target.transaction() as connection:
        _append_totals(connection, source, numbers)
        _append_others(connection, source, numbers, site)
    return SameKeys(same, tuple(renamed.items()))


def append_events(target: Journal, source: Journal, numbers: Renumbering, site: str) -> None:
    """Append all events with their times and actors; those that tell of a join inside it tell whose it was."""
    with target.transaction() as connection:
        connection.executemany(
            "INSERT INTO events (seq, at, answered, kind, category, data, actor, undoes) VALUES (?,?,?,?,?,?,?,?)",
            [_event(event, numbers, site) for event in source.events()],
        )


def _known_keys(
    target: Journal, rows: Sequence[sqlite3.Row], features: Mapping[int, bytes], first: int
) -> tuple[int, dict[int, str]]:
    """Return how many rows are images that others answered too, and the keys of those that are other images."""
    found = {
        row["key"]: row["feature"]
        for row in target.query_in(
            "SELECT key, feature FROM decisions LEFT JOIN features USING (idx) "
            f"WHERE idx < {first:d} AND key IN (*) ORDER BY idx",
            [row["key"] for row in rows],
        )
    }
    known = [row for row in rows if row["key"] in found]
    foreign = {row["idx"]: row["key"] for row in known if not _alike(features.get(row["idx"]), found[row["key"]])}
    return len(known) - len(foreign), foreign


def _alike(one: bytes | None, two: bytes | None) -> bool:
    if one is None or two is None:  # dropped long ago: nobody knows
        return False
    first, second = (np.frombuffer(data, np.float16).astype(np.float32) for data in (one, two))
    lengths = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) >= ALIKE * max(lengths, 1e-12)


def _decision(row: sqlite3.Row, numbers: Renumbering, prefix: str) -> tuple[Any, ...]:
    return (
        row["idx"] + numbers.first, row["at"], row["source"], prefix + row["key"], numbers.category(row["category"]),
        numbers.category(row["home"]), row["verdict"], row["similarity"], numbers.category(row["runner_up"]),
        row["runner_up_similarity"], row["batch"] + numbers.first, row["steps"], row["stored"],
    )  # fmt: skip


def _event(event: Event, numbers: Renumbering, site: str) -> tuple[Any, ...]:
    data = numbers.data(event.data)
    if "site" in data:
        data["site"] = f"{site}/{data['site']}"
    return (
        event.seq + numbers.events, event.at, event.answered + numbers.first, event.kind,
        None if event.category is None else numbers.category(event.category), json.dumps(data, ensure_ascii=False),
        event.actor, None if event.undoes is None else event.undoes + numbers.events,
    )  # fmt: skip


def _append_totals(connection: sqlite3.Connection, source: Journal, numbers: Renumbering) -> None:
    rows = []
    for row in source.query("SELECT * FROM categories"):
        first, last = (None if row[name] is None else row[name] + numbers.first for name in ("first_idx", "last_idx"))
        category = numbers.category(row["id"])
        rows.append(
            (category, row["known"], row["answers"], row["members"], first, row["first_at"], last, row["last_at"])
        )
    connection.executemany(
        "INSERT INTO categories VALUES (?,?,?,?,?,?,?,?) ON CONFLICT (id) DO UPDATE SET "
        "answers = answers + excluded.answers, members = members + excluded.members, "
        "first_idx = coalesce(first_idx, excluded.first_idx), last_idx = coalesce(excluded.last_idx, last_idx), "
        "first_at = coalesce(min(first_at, excluded.first_at), first_at, excluded.first_at), "
        "last_at = coalesce(max(last_at, excluded.last_at), last_at, excluded.last_at)",
        rows,
    )


def _append_others(connection: sqlite3.Connection, source: Journal, numbers: Renumbering, site: str) -> None:
    """Append what was skipped, and requests that may be sent again; of equal keys of requests the first one stays."""
    taken = {row[0] for row in connection.execute("SELECT source FROM skipped")}
    connection.executemany(
        "INSERT OR REPLACE INTO skipped VALUES (?, ?, ?)",
        [
            (f"{site}:{row['source']}" if row["source"] in taken else row["source"], row["at"], row["reason"])
            for row in source.query("SELECT * FROM skipped")
        ],
    )
    connection.executemany(
        "INSERT OR IGNORE INTO requests VALUES (?, ?, ?, ?)",
        [
            (row["key"], row["at"], row["digest"], row["idx"] + numbers.first)
            for row in source.query("SELECT * FROM requests")
        ],
    )
