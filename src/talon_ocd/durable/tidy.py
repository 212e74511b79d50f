"""What a stream folder lets go of (layer: durable): answers and events stay for ever, pictures and features do not."""

from __future__ import annotations

from dataclasses import dataclass

from talon_ocd.durable.journal import Journal
from talon_ocd.durable.pictures import Pictures


@dataclass(frozen=True)
class Keep:
    """How many of the newest images keep their feature (float16), their thumbnail and their uploaded original.

    The first image of every category keeps all three. An answer itself takes about 250 bytes.
    """

    features: int = 100_000
    thumbnails: int = 200_000
    originals: int = 100_000


def tidy(journal: Journal, pictures: Pictures, replay_from: int, keep: Keep) -> None:
    """Drop what is too old; cost grows with what is dropped, not with what there is."""
    answered, done = journal.answered, journal.meta("tidied", {})
    until = {name: max(answered - getattr(keep, name), 0) for name in ("features", "thumbnails", "originals")}
    with journal.transaction() as connection:
        connection.execute("DELETE FROM replay WHERE idx < ?", (replay_from,))
        connection.execute(
            "DELETE FROM features WHERE idx >= ? AND idx < ? AND idx NOT IN "
            "(SELECT first_idx FROM categories WHERE first_idx >= ? AND first_idx < ?)",
            (done.get("features", 0), until["features"]) * 2,
        )
        journal.set_meta(tidied=until)
    founders = journal.query("SELECT first_idx FROM categories WHERE first_idx < ?", (until["thumbnails"],))
    stored = journal.query(
        "SELECT DISTINCT stored FROM decisions WHERE idx >= ? AND idx < ? AND stored IS NOT NULL AND idx NOT IN "
        "(SELECT first_idx FROM categories WHERE first_idx IS NOT NULL)",
        (done.get("originals", 0), until["originals"]),
    )
    if until["thumbnails"] or stored:
        names = [row["stored"] for row in stored]
        pictures.drop(until["thumbnails"], [row["first_idx"] for row in founders], names)
