"""Decisions, categories, images and events as JSON (layer: service). Reads only; any thread may ask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

from talon_ocd import catalog as catalogs
from talon_ocd.catalog import Catalog, summary
from talon_ocd.durable import Event, Journal
from talon_ocd.durable.journal import as_event
from talon_ocd.errors import CatalogError
from talon_ocd.service import schemas
from talon_ocd.service.jobs import Outcome

EXEMPLARS = 4
SHOWN_IMAGES = 100
"""Images that the view of an event names."""


class Views:
    """Turns what the stream and the catalog know into what clients see."""

    def __init__(self, catalog: Catalog, journal: Journal) -> None:
        self._catalog, self._journal = catalog, journal

    def decision(self, outcome: Outcome) -> schemas.Decision:
        """Return an answer with names and exemplars as they are now."""
        decision, catalog = outcome.decision, self._catalog
        known = decision.verdict != "new" or outcome.learned  # one that was only looked at has founded nothing
        resolved = catalog.resolve(decision.category) if known else decision.category
        rival = decision.runner_up
        index = decision.index if outcome.learned else None
        return schemas.Decision(
            index=index,
            source=decision.source,
            category=decision.category,
            resolved=resolved,
            name=catalog.name(resolved) if known else decision.name,
            verdict=decision.verdict,
            similarity=decision.similarity,
            threshold=decision.threshold,
            unit=decision.unit,
            margin=decision.similarity - decision.threshold,
            runner_up=rival,
            runner_up_name=catalog.name(rival) if rival >= 0 else "",
            runner_up_similarity=decision.runner_up_similarity,
            learned=outcome.learned,
            exemplars=self._exemplars(resolved, outcome, index) if known else [],
            runner_up_exemplars=self._exemplars(catalog.resolve(rival), outcome, index) if rival >= 0 else [],
            image=image_url(index),
            thumbnail=thumbnail_url(index),
            steps=outcome.steps,
        )

    def stored(self, index: int) -> schemas.Decision | None:
        """Return an answer that was given before, with what its image is nearest to."""
        decision = self._journal.decision(index)
        if decision is None:
            return None
        return self.decision(Outcome(decision, True, self._journal.steps(index), self._journal.feature(index)))

    def category(self, category: catalogs.Category) -> schemas.Category:
        """Return a category."""
        return schemas.Category.model_validate(category.to_dict())

    def members(self, members: Sequence[catalogs.Member]) -> list[schemas.Member]:
        """Return images with their homes and links."""
        indices = [member.index for member in members]
        rows = self._journal.query_in("SELECT idx, home FROM decisions WHERE idx IN (*)", indices)
        homes = {int(row["idx"]): self._end(int(row["home"])) for row in rows}
        return [
            schemas.Member(
                **member.to_dict(),
                home=homes[member.index],
                name=self.name(homes[member.index]),
                image=image_url(member.index),
                thumbnail=thumbnail_url(member.index),
            )
            for member in members
        ]

    def recent(self, limit: int, before: int | None) -> tuple[list[schemas.Member], int | None]:
        """Return the newest answers, and where to go on."""
        rows = self._journal.query(
            "SELECT idx FROM decisions WHERE idx < ? ORDER BY idx DESC LIMIT ?",
            (schemas.MOST if before is None else before, limit + 1),
        )
        indices = [int(row["idx"]) for row in rows]
        following = indices[limit - 1] if len(indices) > limit else None
        return self.members(self._catalog.images(indices[:limit])), following

    def event(self, event: Event) -> schemas.Event:
        """Return an event with its summary."""
        return self.events([event])[0]

    def events(self, events: Iterable[Event]) -> list[schemas.Event]:
        """Return events with their summaries."""
        return [self._event(event) for event in events]

    def find_event(self, seq: int) -> Event | None:
        """Return an event by its number."""
        rows = self._journal.query("SELECT * FROM events WHERE seq = ?", (seq,))
        return as_event(rows[0]) if rows else None

    def name(self, category: int | None) -> str:
        """Return what a category is called now; empty if it is none."""
        if category is None or category < 0:
            return ""
        try:
            return self._catalog.name(category)
        except CatalogError:
            return f"category {category}"

    def _event(self, event: Event) -> schemas.Event:
        moves = event.data.get("moves", ())
        return schemas.Event(
            seq=event.seq,
            at=event.at,
            answered=event.answered,
            kind=event.kind,
            category=event.category,
            data=_short(event.data),
            actor=event.actor,
            undoes=event.undoes,
            summary=self._summary(event),
            undone=self._catalog.undone(event.seq),
            images=len(moves),
        )

    def _summary(self, event: Event) -> str:
        """Return an event in words; an undo says what it takes back."""
        undone = self.find_event(event.undoes) if event.undoes is not None else None
        return summary(event, self.name) if undone is None else f"undone: {self._summary(undone)}"

    def _exemplars(self, category: int, outcome: Outcome, index: int | None) -> list[int]:
        """Return images of a category but for the one itself: those nearest to it if its feature is given."""
        nearest = (
            [] if outcome.feature is None else self._catalog.nearest_images(category, outcome.feature, EXEMPLARS + 1)
        )
        others = [image for image in nearest if image != index]
        others = others or [image for image in self._catalog.exemplars(category, EXEMPLARS + 1) if image != index]
        return others[:EXEMPLARS]

    def _end(self, home: int) -> int:
        return self._catalog.resolve(home) if home >= 0 else -1


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value


def image_url(index: int | None) -> str | None:
    """Return where an image is."""
    return None if index is None else f"/v1/images/{index}"


def thumbnail_url(index: int | None) -> str | None:
    """Return where the small version of an image is."""
    return None if index is None else f"/v1/images/{index}/thumbnail"


def _short(data: dict[str, Any]) -> dict[str, Any]:
    """Leave out the moves of an event, which may be thousands; some of their images stay. JSON has no NaN."""
    if "moves" not in data:
        return {key: _finite(value) for key, value in data.items()}
    images = [move[0] for move in data["moves"][:SHOWN_IMAGES]]
    return {**{key: value for key, value in data.items() if key != "moves"}, "images": images}
