"""What a stream folder lets go of (layer: durable): answers and events stay for ever, pictures and features do not."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from talon_ocd.durable.journal import Journal
from talon_ocd.durable.pictures import Pictures

DROPPED_AT_ONCE = 256
"""Rows that are dropped before somebody else may write."""


@dataclass(frozen=True)
class Keep:
    """How many of the newest images keep what belongs to them; the first image of every category keeps all of it.

    Attributes:
        features: float16 features, for corrections, what-ifs and maps.
        thumbnails: small pictures.
        originals: uploads; files of other people are never touched.
        requests: keys of requests that may be sent again.
    """

    features: int = 100_000
    thumbnails: int = 200_000
    originals: int = 100_000
    requests: int = 100_000


def tidy(journal: Journal, pictures: Pictures, replay_from: int, keep: Keep) -> None:
    """Drop what is too old; cost grows with what is dropped, not with what there is.

    Features count from ``replay_from``: a replay must find those that people's corrections found.
    """
    done, answered = journal.meta("tidied", {}), journal.answered
    newest = {"features": replay_from}
    until = {name: max(newest.get(name, answered) - number, 0) for name, number in asdict(keep).items()}
    spans = {name: (done.get(name, 0), max(end, done.get(name, 0))) for name, end in until.items()}
    first, last = spans["thumbnails"]
    founders = journal.query("SELECT first_idx FROM categories WHERE first_idx >= ? AND first_idx < ?", (first, last))
    pictures.drop_thumbnails(first, last, [row["first_idx"] for row in founders])
    first, last = spans["originals"]
    for start in range(first, last, DROPPED_AT_ONCE):
        with pictures.storing:
            pictures.drop_originals(_unused(journal, start, min(start + DROPPED_AT_ONCE, last), last))
    for end in _steps(journal, replay_from):
        with journal.transaction() as connection:
            connection.execute("DELETE FROM replay WHERE idx < ?", (end,))
    with journal.transaction() as connection:
        connection.execute(
            "DELETE FROM features WHERE idx >= ? AND idx < ? AND idx NOT IN "
            "(SELECT first_idx FROM categories WHERE first_idx >= ? AND first_idx < ?)",
            spans["features"] * 2,
        )
        connection.execute("DELETE FROM requests WHERE idx < ?", (spans["requests"][1],))
        journal.set_meta(tidied={name: end for name, (_, end) in spans.items()})


def _steps(journal: Journal, replay_from: int) -> list[int]:
    """Return up to where the replay is dropped, a little at a time: answers wait for a commit to end."""
    oldest = journal.query("SELECT min(idx) AS oldest FROM replay")[0]["oldest"]
    first = replay_from if oldest is None else int(oldest)
    return [*range(first + DROPPED_AT_ONCE, replay_from, DROPPED_AT_ONCE), replay_from]


def _unused(journal: Journal, first: int, last: int, newest: int) -> list[str]:
    """Return the uploads of answers that none from ``newest`` on and no first image of a category needs."""
    rows = journal.query(
        "SELECT DISTINCT stored FROM decisions AS old WHERE idx >= ? AND idx < ? AND stored IS NOT NULL AND NOT EXISTS "
        "(SELECT 1 FROM decisions AS other WHERE other.stored = old.stored AND (other.idx >= ? OR EXISTS "
        "(SELECT 1 FROM categories WHERE first_idx = other.idx)))",
        (first, last, newest),
    )
    return [row["stored"] for row in rows]
