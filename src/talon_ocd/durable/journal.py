"""The journal of a stream: every answer before it is given, every event, as rows of one sqlite file (layer: durable).

How that file is opened, written and read is the business of ``JournalFile``.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from talon_ocd.durable.journal_file import JournalFile
from talon_ocd.online import Decision
from talon_ocd.online.decision import category_name


@dataclass(frozen=True)
class Event:
    """Something that happened to categories: a line of the ledger.

    Attributes:
        seq: its number, from 1.
        at: when, in seconds since 1970.
        answered: answers that had been given before.
        kind: ``created``, ``retired``, ``revived``, ``named``, ``merged`` ...
        category: the category it is about, if it is about one.
        data: whatever belongs to it, as plain data.
        actor: who: ``stream`` or a person's name.
        undoes: the event that this one takes back.
    """

    seq: int
    at: float
    answered: int
    kind: str
    category: int | None
    data: dict[str, Any]
    actor: str
    undoes: int | None = None


@dataclass(frozen=True)
class Draft:
    """An event to be: what ``Event`` has, without number and time."""

    kind: str
    category: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    actor: str = "stream"
    undoes: int | None = None


@dataclass(frozen=True)
class Request:
    """A request for one image that may be sent twice: its key, and a digest of what was sent."""

    key: str
    digest: str


@dataclass(frozen=True)
class Entry:
    """An answer with all that is written down about it.

    Attributes:
        decision: the answer.
        key: of the image, see ``ImageItem``.
        feature: unit vector ``(D,)``.
        replay: what a restart needs: the feature, or the trunk output ``hidden_shape`` while the encoder adapts.
        stored: name of the picture in the folder's ``images/``, if it has no file of its own.
        request: the request that brought it, if it may be sent twice.
    """

    decision: Decision
    key: str
    feature: Tensor
    replay: Tensor
    stored: str | None = None
    request: Request | None = None


class Journal(JournalFile):
    """Answers and events of a stream folder.

    Attributes:
        folder: where it is.
        learned_by_stream: whether an open stream must hear of corrections.
    """

    def __init__(self, folder: Path, write: bool = False, purpose: str = "a program") -> None:
        super().__init__(folder, write, purpose)
        self.learned_by_stream = False

    # Writing

    def set_meta(self, **values: Any) -> None:
        """Write facts about the stream, as JSON."""
        with self.transaction() as connection:
            rows = [(key, json.dumps(value, ensure_ascii=False)) for key, value in values.items()]
            connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)

    def write(self, entries: Sequence[Entry], steps: int = 0) -> list[Event]:
        """Write answers down, in one commit; returns the events of the categories that they founded."""
        now, batch = time.time(), entries[0].decision.index
        with self.transaction() as connection:
            connection.executemany(
                "INSERT INTO decisions VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
                [_row(entry, now, batch, steps) for entry in entries],
            )
            for table, blobs in (
                ("features", _rows_as_bytes([entry.feature for entry in entries], torch.float16)),
                ("replay", _rows_as_bytes([entry.replay for entry in entries], torch.float32)),
            ):
                numbered = zip((entry.decision.index for entry in entries), blobs, strict=True)
                connection.executemany(f"INSERT INTO {table} VALUES (?, ?)", numbered)
            connection.executemany(
                "INSERT INTO categories VALUES (?, ?, 1, 1, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                "answers = answers + 1, members = members + 1, first_idx = coalesce(first_idx, excluded.first_idx), "
                "first_at = coalesce(first_at, excluded.first_at), last_idx = excluded.last_idx, "
                "last_at = excluded.last_at",
                [(e.decision.category, 0, *(e.decision.index, now) * 2) for e in entries],
            )
            connection.executemany(
                "INSERT INTO requests VALUES (?, ?, ?, ?)",
                [(e.request.key, now, e.request.digest, e.decision.index) for e in entries if e.request is not None],
            )
            connection.executemany("DELETE FROM skipped WHERE source = ?", [(e.decision.source,) for e in entries])
            founders = [entry.decision for entry in entries if entry.decision.verdict == "new"]
            return [
                self.append(Draft("created", founder.category, {"image": founder.index}), founder.index)
                for founder in founders
            ]

    def append(self, draft: Draft, answered: int) -> Event:
        """Append an event to the ledger."""
        event = (time.time(), answered, draft.kind, draft.category, dict(draft.data), draft.actor, draft.undoes)
        with self.transaction() as connection:
            columns = (*event[:4], json.dumps(event[4], ensure_ascii=False), *event[5:])
            cursor = connection.execute(
                "INSERT INTO events (at, answered, kind, category, data, actor, undoes) VALUES (?,?,?,?,?,?,?)", columns
            )
            return Event(int(cursor.lastrowid or 0), *event)

    def skip(self, source: str, reason: str) -> None:
        """Write down that an image could not be used."""
        with self.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO skipped VALUES (?, ?, ?)", (source, time.time(), reason))

    # Reading

    def meta(self, key: str, default: Any = None) -> Any:
        """Return a fact about the stream."""
        rows = self.query("SELECT value FROM meta WHERE key = ?", (key,))
        return json.loads(rows[0]["value"]) if rows else default

    @property
    def answered(self) -> int:
        """Answers written down."""
        rows = self.query("SELECT max(idx) AS last FROM decisions")
        return 0 if rows[0]["last"] is None else int(rows[0]["last"]) + 1

    def decision(self, index: int) -> Decision | None:
        """Return an answer as it was given; its name is the category's first one."""
        rows = self.query("SELECT * FROM decisions WHERE idx = ?", (index,))
        return self.as_decision(rows[0]) if rows else None

    def steps(self, index: int) -> int:
        """Return how many encoder updates there had been before an answer."""
        return int(self.query("SELECT steps FROM decisions WHERE idx = ?", (index,))[0]["steps"])

    def as_decision(self, row: sqlite3.Row) -> Decision:
        """Return the answer of a row of ``decisions``."""
        names, rule = self._facts()
        return Decision(
            row["idx"], row["source"], row["category"], category_name(row["category"], names), row["verdict"],
            row["similarity"], rule["threshold"], row["runner_up"], row["runner_up_similarity"], rule["unit"],
        )  # fmt: skip

    def feature(self, index: int) -> Tensor | None:
        """Return the unit feature ``(D,)`` of an answer, rounded to float16; ``None`` if it was dropped."""
        rows = self.query("SELECT feature FROM features WHERE idx = ?", (index,))
        return torch.from_numpy(_from_half(rows[0]["feature"])) if rows else None

    def features(self, indices: Sequence[int]) -> tuple[list[int], Tensor]:
        """Return the indices ``(N,)`` whose features are still there, and those ``(N, D)``."""
        rows = self.query_in("SELECT idx, feature FROM features WHERE idx IN (*)", indices)
        found: dict[int, bytes] = {row["idx"]: row["feature"] for row in rows}
        there = [index for index in indices if index in found]
        if not there:
            return [], torch.empty(0, 0)
        return there, torch.from_numpy(np.stack([_from_half(found[index]) for index in there]))

    def events(self, after: int = 0, kinds: Collection[str] | None = None) -> list[Event]:
        """Return the events that follow number ``after``, oldest first; all, or those of some kinds."""
        chosen = f" AND kind IN ({','.join('?' * len(kinds))})" if kinds else ""
        rows = self.query(f"SELECT * FROM events WHERE seq > ?{chosen} ORDER BY seq", (after, *(kinds or ())))
        return [as_event(row) for row in rows]

    def seen(self, keys: Sequence[str]) -> set[str]:
        """Return those of the keys that were answered."""
        return {row["key"] for row in self.query_in("SELECT key FROM decisions WHERE key IN (*)", keys)}

    def stored(self, names: Sequence[str]) -> set[str]:
        """Return those of the names of originals that an answer needs."""
        return {row["stored"] for row in self.query_in("SELECT stored FROM decisions WHERE stored IN (*)", names)}

    def request(self, key: str) -> tuple[str, Decision] | None:
        """Return digest and answer of a request that was answered before."""
        rows = self.query("SELECT * FROM requests JOIN decisions USING (idx) WHERE requests.key = ?", (key,))
        return (rows[0]["digest"], self.as_decision(rows[0])) if rows else None

    def _facts(self) -> tuple[list[str], dict[str, Any]]:
        """Names of the known classes, and threshold and unit of the rule: they never change."""
        if not hasattr(self, "_known_facts"):
            self._known_facts = self.meta("names", []), self.meta("rule", {"threshold": 0.0, "unit": "cosine"})
        return self._known_facts


def as_event(row: sqlite3.Row) -> Event:
    """Return the event of a row of ``events``."""
    return Event(
        row["seq"], row["at"], row["answered"], row["kind"], row["category"], json.loads(row["data"]), row["actor"],
        row["undoes"],
    )  # fmt: skip


def _row(entry: Entry, now: float, batch: int, steps: int) -> tuple[Any, ...]:
    d = entry.decision
    return (
        d.index, now, d.source, entry.key, d.category, d.category, d.verdict, d.similarity, d.runner_up,
        d.runner_up_similarity, batch, steps, entry.stored,
    )  # fmt: skip


def _rows_as_bytes(rows: Sequence[Tensor], kind: torch.dtype) -> list[bytes]:
    """Return each of some tensors of one shape as bytes; together they cost hardly more than one does."""
    return [row.tobytes() for row in torch.stack(list(rows)).detach().to("cpu", kind).numpy()]


def _from_half(data: bytes) -> np.ndarray:
    wide = np.frombuffer(data, np.float16).astype(np.float32)
    return wide / max(float(np.sqrt(wide @ wide)), 1e-12)
