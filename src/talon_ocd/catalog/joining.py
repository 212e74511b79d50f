"""Streams that learned apart become one (layer: catalog; ``docs/sites.md``).

The result is an ordinary stream folder: the journals one after the other, one state, and the matches as merges in the
ledger that anybody can undo. The sites are only read. The folder appears when all is done, or not at all.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from talon_ocd.catalog.categories import Catalog
from talon_ocd.catalog.joined_state import joined_state
from talon_ocd.catalog.ledger import SUGGESTED
from talon_ocd.catalog.matching import Match, Matcher
from talon_ocd.catalog.names import NameTakenError
from talon_ocd.catalog.open_sites import OpenSite, OpenStream, demand_places, open_sites, site_names
from talon_ocd.catalog.reading import CatalogReader
from talon_ocd.catalog.sites import JOINED, Site
from talon_ocd.durable import Draft, DurableStream, Event, Journal, Pictures, Snapshots
from talon_ocd.durable.appending import SameKeys, append_answers, append_events
from talon_ocd.durable.lock import in_use
from talon_ocd.saved import make_folder, write_files

ACTOR = "talon merge"
"""Who makes events that nobody was asked about."""
SUMMARY = "merge.json"
Answer = Literal["yes", "no", "later"]
Ask = Callable[[Match, Catalog, Pictures], Answer]


@dataclass(frozen=True)
class Settled:
    """A match, what became of it, and the event that says so."""

    match: Match
    answer: Answer
    asked: bool
    event: int


@dataclass(frozen=True)
class Joined:
    """What a join has done.

    Attributes:
        sites: the streams, in their order.
        settled: all pairs that were the same or unsure, site by site, sure ones first.
        renamed: known classes that sites call by different names: the first site's name stays.
        keys: of each site after the first, images whose key was there before.
        busy: sites that another process was writing to.
    """

    sites: tuple[Site, ...]
    settled: tuple[Settled, ...]
    renamed: tuple[Event, ...]
    keys: Mapping[str, SameKeys]
    busy: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "sites": [site.to_dict() for site in self.sites],
            "pairs": [{**asdict(one.match), "answer": one.answer, "asked": one.asked, "event": one.event}
                      for one in self.settled],
            "class_names": [{"category": event.category, **event.data} for event in self.renamed],
            "same_keys": {name: asdict(keys) for name, keys in self.keys.items()},
            "in_use": list(self.busy),
        }  # fmt: skip


def join(
    folders: Sequence[Path],
    output: Path,
    open_stream: OpenStream,
    ask: Ask | None = None,
    by: str = "person",
    names: Sequence[str] = (),
) -> Joined:
    """Join stream folders of one model into a new one.

    Args:
        folders: two or more; the ids and indices of the first one stay as they are.
        output: the new folder; it must not be there yet, or be empty.
        open_stream: opens a folder with the model, as ``Talon.stream`` does.
        ask: asked about pairs that are not sure; without it they are left as suggestions.
        by: who answers.
        names: what the sites are called; their folders' names if left out.
    """
    demand_places(folders, output)
    called = site_names(folders, names)
    make_folder(output.parent)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent)))
        busy = tuple(name for name, folder in zip(called, folders, strict=True) if in_use(folder))
        sites = open_sites(folders, called, work, open_stream, stack)
        result = work / "joined"
        keys = _write_journal(result, sites, folders)
        _write_state(result, sites, _fresh_state(work / "fresh", sites[0].stream.journal, open_stream))
        with open_stream(result) as stream:
            catalog = Catalog(stream.journal, stream.apply)
            renamed = _keep_class_names(catalog, sites)
            settled = _match_all(stream, catalog, sites, ask, by)
            joined = Joined(tuple(site.site for site in sites), tuple(settled), tuple(renamed), keys, busy)
        text = json.dumps(joined.to_dict(), ensure_ascii=False, indent=1)
        write_files(result, {SUMMARY: text.encode()})
        if output.exists():
            output.rmdir()
        shutil.move(result, output)
    return joined


def _fresh_state(folder: Path, like: Journal, open_stream: OpenStream) -> dict[str, Tensor]:
    """Return the state of a stream with the same settings that has answered nothing."""
    folder.mkdir()
    journal = Journal(folder, write=True, purpose=ACTOR)
    journal.set_meta(**{name: like.meta(name) for name in ("fingerprint", "model", "names", "settings", "rule")})
    journal.close()
    with open_stream(folder) as stream:
        return {name: value.clone() for name, value in stream.state_dict().items()}


def _write_journal(folder: Path, sites: Sequence[OpenSite], originals: Sequence[Path]) -> dict[str, SameKeys]:
    """Write answers, events and pictures: those of the first site as they are, then site by site."""
    folder.mkdir()
    sites[0].stream.journal.copy_to(folder)
    journal = Journal(folder, write=True, purpose=ACTOR)
    pictures, keys = Pictures(journal), dict[str, SameKeys]()
    try:
        with journal.transaction() as connection:
            connection.execute("DELETE FROM snapshots")  # of the first site alone
            connection.execute("DELETE FROM replay")
        for number, (one, original) in enumerate(zip(sites, originals, strict=True)):
            name, source = one.site.site, one.stream.journal
            if number:
                keys[name] = append_answers(journal, source, one.numbers, name)
                append_events(journal, source, one.numbers, name)
            journal.append(Draft(JOINED, None, one.site.to_dict(), ACTOR), one.site.first + one.site.answers)
            stored = source.query("SELECT DISTINCT stored FROM decisions WHERE stored IS NOT NULL")
            pictures.adopt(original, one.site.first, one.site.answers, [row["stored"] for row in stored])
    finally:
        pictures.close()
        journal.close()
    return keys


def _write_state(folder: Path, sites: Sequence[OpenSite], fresh: Mapping[str, Tensor]) -> None:
    """Write the joined state as the first snapshot: all later ones follow from it."""
    weight = sites[0].stream.config.kappa_known
    state = joined_state(fresh, [site.learned() for site in sites], weight)
    journal = Journal(folder, write=True, purpose=ACTOR)
    try:
        newest = journal.query("SELECT max(seq) AS last FROM events")[0]["last"]
        Snapshots(journal).take(state, journal.answered, newest)
    finally:
        journal.close()


def _keep_class_names(catalog: Catalog, sites: Sequence[OpenSite]) -> list[Event]:
    """Let known classes that sites call by different names have the first site's, which undo takes back."""
    written = []
    readers = {one.site.site: CatalogReader(one.stream.journal) for one in sites}
    for category, own in enumerate(catalog.known_names):
        views = {site: reader.get(category, exemplars=0) for site, reader in readers.items()}
        given = {site: view.name for site, view in views.items() if view.named}
        if len(set(given.values())) > 1:
            try:
                name = next(iter(given.values()))
                written.append(catalog.rename(category, name, ACTOR, note={"at_sites": given, "class": own}))
            except NameTakenError:
                continue  # the last name stays, and both are in the history
    return written


def _match_all(
    stream: DurableStream, catalog: Catalog, sites: Sequence[OpenSite], ask: Ask | None, by: str
) -> list[Settled]:
    """Match each site with all before it."""
    ids = stream.discovery.heard_of()
    whose = {category: one.site.site for one in sites for category in ids if one.site.has_category(category)}
    matcher = Matcher(catalog, stream.discovery, {one.site.site: one for one in sites}, whose)
    settled: list[Settled] = []
    for number, one in enumerate(sites[1:], 1):
        earlier = [category for before in sites[:number] for category in ids if before.site.has_category(category)]
        later = [category for category in ids if one.site.has_category(category)]
        for match in _one_match_each(matcher.matches(earlier, later)):
            if catalog.resolve(match.first) != catalog.resolve(match.second):  # else answers before have settled it
                settled.append(_settle(catalog, stream.pictures, match, ask, by))
    return settled


def _one_match_each(matches: Iterable[Match]) -> list[Match]:
    """Return matches, questions last; a category that has a sure one already is asked about.

    A second one would make two categories of one site one, which the site has told apart.
    """
    sure, unsure, taken = list[Match](), list[Match](), set[int]()
    for match in matches:
        if match.verdict == "same" and not {match.first, match.second} & taken:
            sure.append(match)
            taken |= {match.first, match.second}
        else:
            why = match.why or "one of them has a match already"
            unsure.append(replace(match, verdict="unsure", why=why))
    return [*sure, *unsure]


def _settle(catalog: Catalog, pictures: Pictures, match: Match, ask: Ask | None, by: str) -> Settled:
    asked = match.verdict == "unsure" and ask is not None
    answer: Answer = "yes" if match.verdict == "same" else "later" if ask is None else ask(match, catalog, pictures)
    actor = by if asked else ACTOR
    evidence = {name: value for name, value in asdict(match).items() if name not in ("first", "second")}
    note = {"match": evidence}
    if answer == "yes":
        event = catalog.merge([match.second], into=match.first, actor=actor, note=note)
    elif answer == "no":
        event = catalog.refuse(match.first, match.second, actor, note)
    else:
        pair = {"pair": [match.first, match.second], **note}
        event = catalog.journal.append(Draft(SUGGESTED, None, pair, actor), catalog.journal.answered)
    return Settled(match, answer, asked, event.seq)
