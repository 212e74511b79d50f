"""The catalog: what people say about categories, over what the stream answered (layer: catalog).

Each edit appends one event to the ledger and changes no answer; ``undo`` takes any of them back, in any order.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from talon_ocd.catalog.changes import Move, as_data, column_of, has_feature, new_category, write_category, write_homes
from talon_ocd.catalog.corrections import NOWHERE
from talon_ocd.catalog.ledger import CORRECTIONS
from talon_ocd.catalog.names import NameTakenError, clean_name
from talon_ocd.catalog.reading import CatalogReader
from talon_ocd.durable.journal import Draft, Event, Journal
from talon_ocd.errors import CatalogError

Note = Mapping[str, Any]
"""More that an event shall remember, such as where a fact was carried from; plain data."""


class Catalog(CatalogReader):
    """Names, merges, splits and corrections of a stream folder.

    With a ``learner`` (``DurableStream.apply``) corrections change what the stream answers next, at once; without one
    they do so when the stream is opened the next time. On a journal that is not writable it can only be read.
    """

    def __init__(self, journal: Journal, learner: Callable[[Event], None] | None = None) -> None:
        super().__init__(journal)
        self._learner = learner
        self._editing = threading.RLock()

    # Categories

    def rename(
        self, category: int, name: str, actor: str = "person", merge: bool = False, note: Note | None = None
    ) -> Event:
        """Name a category. A name that another has is refused, or with ``merge`` makes the two one under it."""
        cleaned = clean_name(name)
        with self._editing:
            with self._reading:
                end = self.resolve(category)
                others = [other for other in self._facts.called(cleaned) if other != end]
                own = self._facts.ledger.given_name(end)
                data = {"name": cleaned, "before": self._facts.name(end)}
                if others and not merge:
                    raise NameTakenError(cleaned, others[0])
                if others:
                    self._refuse_classes([end, others[0]])
            if others:
                return self.merge([end], others[0], actor, note)
            if own is not None and own.data["name"] == cleaned:
                return own
            return self._write(Draft("named", end, data, actor), note=note)

    def merge(
        self, categories: Iterable[int], into: int | None = None, actor: str = "person", note: Note | None = None
    ) -> Event:
        """Make categories one; ``into`` says which one stays, else ``preferred`` does.

        It is an alias: both go on learning their own images, so that undo gives back exactly what was. Two known
        classes are merged only if ``into`` says so: the model was taught to tell them apart.
        """
        with self._editing:
            with self._reading:
                ends = list(dict.fromkeys(self.resolve(category) for category in categories))
                target = self.preferred(ends) if into is None else self.resolve(into)
                others = [end for end in ends if end != target]
                if not others:
                    raise CatalogError(f"there is nothing to merge into category {target}: {self._why_one(target)}.")
                if into is None:
                    self._refuse_classes([target, *others])
                before = [self._facts.name(other) for other in others]
            data = {"categories": others, "into": target, "before": before}
            return self._write(Draft("merged", target, data, actor), note=note)

    def hide(self, category: int, hidden: bool = True, actor: str = "person", note: Note | None = None) -> Event:
        """Hide a category from lists and suggestions, or show it again; the stream goes on answering with it."""
        with self._editing:
            with self._reading:
                end = self.resolve(category)
                if self._facts.ledger.hidden(end) == hidden:
                    raise CatalogError(f"category {end} is {'hidden already' if hidden else 'not hidden'}.")
            return self._write(Draft("hidden", end, {"hidden": hidden}, actor), note=note)

    def refuse(self, first: int, second: int, actor: str = "person", note: Note | None = None) -> Event:
        """Remember that two categories are not the same: they are suggested no more."""
        with self._editing:
            pair = sorted((self.resolve(first), self.resolve(second)))
            if pair[0] == pair[1]:
                raise CatalogError(f"categories {first} and {second} are one; undo their merge first.")
            return self._write(Draft("refused", None, {"pair": pair}, actor), note=note)

    # Images

    def split(
        self, category: int, images: Iterable[int], name: str | None = None, actor: str = "person",
        note: Note | None = None,
    ) -> Event:  # fmt: skip
        """Make a new category of some images of one; its id is ``data["into"]`` of the event."""
        named = {} if name is None else {"name": clean_name(name)}
        with self._editing:
            homes = self._homes(images)
            with self._reading:
                end = self.resolve(category)
                self._demand_part(end, homes)
                for taken in self._facts.called(named["name"]) if named else ():
                    raise NameTakenError(named["name"], taken)
            self._demand_writable()
            with self.journal.transaction() as connection:  # nobody can take the id meanwhile
                new = new_category(connection, len(self._facts.known_names))
                write_category(connection, new, list(homes))
                moves = [(image, home, new) for image, home in homes.items()]
                event = self._append(Draft("split", end, {"into": new, **named}, actor), moves, note=note)
            return self._tell(event)

    def move(self, images: Iterable[int], to: int, actor: str = "person", note: Note | None = None) -> Event:
        """Bring images to another category: the stream learns that they are of it, and not of the one before.

        A category that was retired begins anew with them.
        """
        with self._editing:
            homes = self._homes(images)
            with self._reading:
                end = self.resolve(to)
                together = set(self._facts.together(end))
            moves = [(image, home, end) for image, home in homes.items() if home not in together]
            if not moves:
                raise CatalogError(f"the images are in category {end} already; confirm them to say that it is right.")
            return self._write(Draft("moved", end, {}, actor), moves, note=note)

    def confirm(self, images: Iterable[int], actor: str = "person", note: Note | None = None) -> Event:
        """Say that images are where they belong: each counts once more there."""
        with self._editing:
            homes = self._homes(images)
            for image, home in homes.items():
                if home == NOWHERE:
                    raise CatalogError(f"image {image} was rejected; move it to where it belongs, or undo that.")
            moves = [(image, home, home) for image, home in homes.items()]
            return self._write(Draft("confirmed", self._most(homes), {}, actor), moves, note=note)

    def reject(self, images: Iterable[int], actor: str = "person", note: Note | None = None) -> Event:
        """Say that images belong to no category; those that were rejected before are left out."""
        with self._editing:
            homes = self._homes(images)
            moves = [(image, home, NOWHERE) for image, home in homes.items() if home != NOWHERE]
            if not moves:
                raise CatalogError("the images were rejected already.")
            return self._write(Draft("rejected", self._most(homes), {}, actor), moves, note=note)

    # Undo

    def undo(self, seq: int | None = None, actor: str = "person") -> Event:
        """Take an event back, or the last one that people made; undoing an undo brings the first event back."""
        with self._editing:
            with self._reading:
                self._facts.refresh()
                ledger = self._facts.ledger
                past = (event.seq for event in ledger.newest() if event.undoes is None and ledger.counts(event.seq))
                chosen = next(past, None) if seq is None else seq
                if chosen is None:
                    raise CatalogError("there is nothing to undo: people did nothing yet, or all of it is undone.")
                self._demand_undoable(chosen)
                base = ledger.base(chosen)
                extra, moves = self._way_back(base, ledger.counts_after_undoing(chosen))
            return self._write(Draft("undone", base.category, {"kind": base.kind}, actor, chosen), moves, extra)

    # Within

    def _write(
        self, draft: Draft, moves: Sequence[Move] = (), extra: Sequence[Move] = (), note: Note | None = None
    ) -> Event:
        return self._tell(self._append(draft, moves, extra, note))

    def _append(
        self, draft: Draft, moves: Sequence[Move], extra: Sequence[Move] = (), note: Note | None = None
    ) -> Event:
        """Append an event together with the homes that it changes; ``extra`` moves are for the learner alone."""
        self._demand_writable()
        if (moves or extra) and self._learner is None and self.journal.learned_by_stream:
            raise CatalogError("the open stream would not hear of this; use Catalog(stream.journal, stream.apply).")
        data = {**draft.data, **(note or {})}
        if moves or extra:
            data["moves"] = as_data((*extra, *moves))
        with self.journal.transaction() as connection:
            write_homes(connection, moves)
            whole = Draft(draft.kind, draft.category, data, draft.actor, draft.undoes)
            return self.journal.append(whole, self.journal.answered)

    def _tell(self, event: Event) -> Event:
        """Let catalog and learner know of an event that is on the disk."""
        with self._reading:
            self._facts.refresh()
        if self._learner is not None and event.data.get("moves"):
            self._learner(event)
        return event

    def _homes(self, images: Iterable[int]) -> dict[int, int]:
        wanted = list(dict.fromkeys(images))
        if not wanted:
            raise CatalogError("no images were given; give the index of at least one.")
        return column_of(self.journal, "home", wanted)

    def _most(self, homes: Mapping[int, int]) -> int | None:
        """Return the category that most of the images are at home in."""
        found = Counter(self.resolve(home) for home in homes.values() if home != NOWHERE)
        return found.most_common(1)[0][0] if found else None

    def _way_back(self, base: Event, counts: bool) -> tuple[list[Move], list[Move]]:
        """Return what the learner must do, and how homes change, if a correction counts no longer, or counts again."""
        if base.kind not in CORRECTIONS or counts == self._facts.ledger.counts(base.seq):
            return [], []
        (event,) = self._events([base.seq])
        images = [move[0] for move in event.data["moves"]]
        before, homes = column_of(self.journal, "home", images), column_of(self.journal, "category", images)
        ledger = self._facts.ledger
        active = lambda seq: counts if seq == base.seq else ledger.counts(seq)  # noqa: E731
        homes.update(ledger.corrections.homes(images, active))
        moves = [(image, before[image], homes[image]) for image in images if before[image] != homes[image]]
        extra: list[Move] = []
        if base.kind == "confirmed":  # it counted once more; taking that back lets it leave once
            extra = [(image, home, home if counts else NOWHERE) for image, home, _ in event.data["moves"]]
        return extra, moves

    def _demand_writable(self) -> None:
        if not self.journal.writable:
            raise CatalogError(f"{self.journal.folder}: this catalog was opened for reading only.")

    def _demand_part(self, end: int, homes: Mapping[int, int]) -> None:
        """Refuse to split images off a category that are not in it, or that are all of a discovered one."""
        together = set(self._facts.together(end))
        stranger = next((image for image, home in homes.items() if home not in together), None)
        if stranger is not None:
            raise CatalogError(f"image {stranger} is not in category {end}; move it there first, or leave it out.")
        self._facts.refresh()
        if len(homes) == self._facts.count(end) and not self._facts.known(end):
            raise CatalogError(f"these are all images of category {end}; name it instead of splitting it.")
        if not has_feature(self.journal, list(homes)):
            raise CatalogError(
                "the features of these images are gone, so that the stream can't learn a category from them; "
                "add a newer image."
            )

    def _demand_undoable(self, seq: int) -> None:
        ledger = self._facts.ledger
        if ledger.event(seq) is None:
            rows = self.journal.query("SELECT kind FROM events WHERE seq = ?", (seq,))
            if not rows:
                raise CatalogError(f"there is no event {seq}; the newest one is {ledger.last}.")
            raise CatalogError(
                f"event {seq} ({rows[0]['kind']}) was made by the stream; only what people did can be undone."
            )
        undoer = ledger.undoer(seq)
        if undoer is not None:
            raise CatalogError(f"event {seq} was undone already, by event {undoer}; undo that one to bring it back.")

    def _refuse_classes(self, ends: Sequence[int]) -> None:
        classes = [end for end in ends if self._facts.known(end)]
        if len(classes) > 1:
            names = " and ".join(repr(self._facts.name(end)) for end in classes)
            raise CatalogError(
                f"{names} are known classes, which the model was taught to tell apart; say which of them stays "
                "(into) if they shall be one."
            )

    def _why_one(self, category: int) -> str:
        merges = [seq for one in self._facts.together(category) for seq in self._facts.ledger.aliases.merging(one)]
        return (
            f"these are one already (undo event {max(merges)} to part them)" if merges else "it is the only one given"
        )
