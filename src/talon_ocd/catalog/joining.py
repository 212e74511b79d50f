"""Streams that learned apart become one (layer: catalog; ``docs/sites.md``).

The result is an ordinary stream folder: the journals one after the other, one state, and the matches as merges in the
ledger that anybody can undo. The sites are only read. The folder appears when all is done, or not at all.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from talon_ocd.catalog.categories import Catalog
from talon_ocd.catalog.joined_state import Learned, joined_state
from talon_ocd.catalog.matching import Match, Matcher
from talon_ocd.catalog.names import NameTakenError
from talon_ocd.catalog.sites import JOINED, Site
from talon_ocd.durable import Draft, DurableStream, Event, Journal, Pictures, Snapshots
from talon_ocd.durable.appending import Renumbering, SameKeys, append_answers, append_events
from talon_ocd.durable.lock import in_use
from talon_ocd.errors import StreamError
from talon_ocd.images import display
from talon_ocd.saved import make_folder, write_files

ACTOR = "talon merge"
"""Who makes events that nobody was asked about."""
SUMMARY = "merge.json"
SUGGESTED = "suggested"
"""Kind of the event that leaves a pair for people to judge."""
Answer = Literal["yes", "no", "later"]
Ask = Callable[[Match, Catalog, Pictures], Answer]
OpenStream = Callable[[Path], DurableStream]


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
        settled: all pairs that were the same or unsure, surest first, site by site.
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


class _OpenSite:
    """A site's own copy, opened: it can be asked what it would have answered."""

    def __init__(self, site: Site, stream: DurableStream, numbers: Renumbering) -> None:
        self.site, self.stream, self.numbers = site, stream, numbers

    def answers(self, features: Tensor) -> Sequence[int]:
        """Return what the site would answer, in ids of the join; what would be new is nobody (-1)."""
        discovery = self.stream.discovery
        found = discovery.decisions(discovery.look(features), [""] * len(features), 0)
        return [-1 if one.verdict == "new" else self.numbers.category(one.category) for one in found]

    def learned(self) -> Learned:
        """Return what the site has learned."""
        return Learned(self.site.site, self.stream.state_dict(), self.numbers, self.site.answers)


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
    _demand_places(folders, output)
    called = _names(folders, names)
    make_folder(output.parent)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent)))
        busy = tuple(name for name, folder in zip(called, folders, strict=True) if in_use(folder))
        sites = _open_sites(folders, called, work, open_stream, stack)
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


def demand_model(folders: Sequence[Path], fingerprint: str) -> None:
    """Refuse streams that do not belong to the model with this fingerprint."""
    for folder in folders:
        journal = Journal(folder)
        written, model = journal.meta("fingerprint"), journal.meta("model")
        journal.close()
        if written != fingerprint:
            raise StreamError(
                f"{folder}: this stream belongs to another model ({model}); give that one with --model. Streams of "
                "different models can't be joined: answer the images of one anew first (`talon stream replay`)."
            )


def _demand_places(folders: Sequence[Path], output: Path) -> None:
    if len(folders) < 2:
        raise StreamError("a join needs two streams or more; give their folders.")
    resolved = [folder.resolve() for folder in folders]
    twice = next((folder for folder in resolved if resolved.count(folder) > 1), None)
    if twice is not None:
        raise StreamError(f"{twice}: the same stream was given twice; its images would count twice.")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise StreamError(f"{output}: there is something already; give the folder of a new stream.")
    journals = [Journal(folder) for folder in folders]
    try:
        _demand_one_model(journals)
    finally:
        for journal in journals:
            journal.close()


def _demand_one_model(journals: Sequence[Journal]) -> None:
    first = journals[0]
    for other in journals[1:]:
        if other.meta("fingerprint") != first.meta("fingerprint"):
            raise StreamError(
                f"{first.folder} and {other.folder} belong to different models ({first.meta('model')} and "
                f"{other.meta('model')}): their features can't be compared. Answer the images of one anew with the "
                "other's model (`talon stream replay`, which carries names over), then join."
            )
        for name in ("rule", "threshold", "finer", "adapt"):
            values = [journal.meta("settings", {}).get(name) for journal in (first, other)]
            if values[0] != values[1]:
                raise StreamError(
                    f"{first.folder} was begun with {name}={values[0]!r}, {other.folder} with {values[1]!r}: one "
                    "stream can't go on with both. Answer the images of one anew with the other's settings, then join."
                )


def _names(folders: Sequence[Path], given: Sequence[str]) -> list[str]:
    """Return distinct names of sites: those given, else the ends of their paths that tell them apart."""
    if given:
        if len(given) != len(folders) or len(set(given)) != len(given) or any(not name.strip() for name in given):
            raise StreamError(f"{len(folders)} streams need as many different names, got {', '.join(given)}.")
        return list(given)
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        ends = ["/".join(part[-length:]) for part in parts]
        if len(set(ends)) == len(ends):
            return [display(end) for end in ends]
    return [f"site-{number}" for number in range(1, len(folders) + 1)]


def _open_sites(
    folders: Sequence[Path], names: Sequence[str], work: Path, open_stream: OpenStream, stack: ExitStack
) -> list[_OpenSite]:
    """Open a copy of every site as it is at this moment: what was not learned yet is learned there."""
    sites: list[_OpenSite] = []
    shift = first = events = 0
    for number, (folder, name) in enumerate(zip(folders, names, strict=True)):
        copy = work / f"site-{number}"
        _copy(folder, copy)
        stream = stack.enter_context(open_stream(copy))
        if stream.discovery.room < stream.config.adapt_every:
            stream.flush()
        journal, known = stream.journal, stream.memory.known
        until = max(stream.memory.next_id, Catalog(journal).next_id())
        site = Site(name, display(folder.resolve()), first, stream.answered, known, until, shift)
        sites.append(_OpenSite(site, stream, Renumbering(known, shift, first, events)))
        shift, first = shift + until - known, first + stream.answered
        events += journal.query("SELECT coalesce(max(seq), 0) AS last FROM events")[0]["last"] + 1
    return sites


def _copy(folder: Path, target: Path) -> None:
    """Copy journal and snapshots, the journal first: a snapshot that it does not list does no harm."""
    journal = Journal(folder)
    try:
        (target / "snapshots").mkdir(parents=True)
        journal.copy_to(target)
        for file in (folder / "snapshots").glob("*.safetensors"):
            shutil.copyfile(file, target / "snapshots" / file.name)
    finally:
        journal.close()


def _fresh_state(folder: Path, like: Journal, open_stream: OpenStream) -> dict[str, Tensor]:
    """Return the state of a stream with the same settings that has answered nothing."""
    folder.mkdir()
    journal = Journal(folder, write=True, purpose=ACTOR)
    journal.set_meta(**{name: like.meta(name) for name in ("fingerprint", "model", "names", "settings", "rule")})
    journal.close()
    with open_stream(folder) as stream:
        return {name: value.clone() for name, value in stream.state_dict().items()}


def _write_journal(folder: Path, sites: Sequence[_OpenSite], originals: Sequence[Path]) -> dict[str, SameKeys]:
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


def _write_state(folder: Path, sites: Sequence[_OpenSite], fresh: Mapping[str, Tensor]) -> None:
    """Write the joined state as the first snapshot: all later ones follow from it."""
    weight = sites[0].stream.config.kappa_known
    state = joined_state(fresh, [site.learned() for site in sites], weight)
    journal = Journal(folder, write=True, purpose=ACTOR)
    try:
        Snapshots(journal).take(state, journal.answered, journal.events()[-1].seq)
    finally:
        journal.close()


def _keep_class_names(catalog: Catalog, sites: Sequence[_OpenSite]) -> list[Event]:
    """Let known classes that sites call by different names have the first site's, which undo takes back."""
    written = []
    for category, own in enumerate(catalog.known_names):
        views = [Catalog(one.stream.journal).get(category, exemplars=0) for one in sites]
        given = {one.site.site: view.name for one, view in zip(sites, views, strict=True) if view.named}
        if len(set(given.values())) > 1:
            try:
                name = next(iter(given.values()))
                written.append(catalog.rename(category, name, ACTOR, note={"at_sites": given, "class": own}))
            except NameTakenError:
                continue  # the last name stays, and both are in the history
    return written


def _match_all(
    stream: DurableStream, catalog: Catalog, sites: Sequence[_OpenSite], ask: Ask | None, by: str
) -> list[Settled]:
    """Match each site with all before it."""
    ids = stream.memory.ids.tolist()
    whose = {category: one.site.site for one in sites for category in ids if one.site.has_category(category)}
    matcher = Matcher(catalog, stream.discovery, {one.site.site: one for one in sites}, whose)
    settled = []
    for number, one in enumerate(sites[1:], 1):
        earlier = [category for before in sites[:number] for category in ids if before.site.has_category(category)]
        later = [category for category in ids if one.site.has_category(category)]
        for match in list(matcher.matches(earlier, later)):
            settled.append(_settle(catalog, stream.pictures, match, ask, by))
    return settled


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
