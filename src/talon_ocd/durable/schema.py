"""The tables of a stream folder (layer: durable)."""

from __future__ import annotations

FORMAT_VERSION = 1
"""``PRAGMA user_version`` of a journal."""

TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- One row an answer, for ever. category: what was answered. home: where people say it belongs by now (-1: nowhere).
-- batch: the first answer that was written together with this one. steps: encoder updates before the answer.
-- stored: name in images/ of a picture that came without a file of its own.
CREATE TABLE decisions (
    idx INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    source TEXT NOT NULL,
    key TEXT NOT NULL,
    category INTEGER NOT NULL,
    home INTEGER NOT NULL,
    verdict TEXT NOT NULL,
    similarity REAL NOT NULL,
    runner_up INTEGER NOT NULL,
    runner_up_similarity REAL NOT NULL,
    batch INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    stored TEXT
);
CREATE INDEX decisions_by_key ON decisions (key);
CREATE INDEX decisions_by_home ON decisions (home, idx);
CREATE INDEX decisions_by_stored ON decisions (stored) WHERE stored IS NOT NULL;

-- Unit features, float16: for people's corrections, what-ifs and maps; the oldest may be dropped.
CREATE TABLE features (idx INTEGER PRIMARY KEY, feature BLOB NOT NULL);

-- What a restart needs to come to the very state: float32 features, or trunk outputs while the encoder adapts.
-- Dropped two snapshots later.
CREATE TABLE replay (idx INTEGER PRIMARY KEY, content BLOB NOT NULL);

CREATE TABLE skipped (source TEXT PRIMARY KEY, at REAL NOT NULL, reason TEXT NOT NULL) WITHOUT ROWID;

-- Totals of each category, kept with every answer: nobody counts a million rows.
-- answers: images answered with it. members: images at home in it.
CREATE TABLE categories (
    id INTEGER PRIMARY KEY,
    known INTEGER NOT NULL,
    answers INTEGER NOT NULL DEFAULT 0,
    members INTEGER NOT NULL DEFAULT 0,
    first_idx INTEGER,
    first_at REAL,
    last_idx INTEGER,
    last_at REAL
);

CREATE INDEX categories_by_first ON categories (first_idx);

-- The ledger: only ever appended to. answered: how many answers had been given before.
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    answered INTEGER NOT NULL,
    kind TEXT NOT NULL,
    category INTEGER,
    data TEXT NOT NULL,
    actor TEXT NOT NULL,
    undoes INTEGER
);
CREATE INDEX events_by_category ON events (category, seq);

-- Requests that may be sent twice, one row an image: what was sent, and which answer it got.
CREATE TABLE requests (
    key TEXT PRIMARY KEY, at REAL NOT NULL, digest TEXT NOT NULL, idx INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX requests_by_idx ON requests (idx);

CREATE TABLE snapshots (
    file TEXT PRIMARY KEY, at REAL NOT NULL, answered INTEGER NOT NULL, event INTEGER NOT NULL, sha256 TEXT NOT NULL
) WITHOUT ROWID;
"""
