"""The streams that are to be joined, opened (layer: catalog).

A site is only read: what is opened is a copy of its journal as it is at one moment, with its snapshots.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from torch import Tensor

from talon_ocd.catalog.categories import Catalog
from talon_ocd.catalog.joined_state import Learned
from talon_ocd.catalog.sites import Site
from talon_ocd.durable import DurableStream, Journal, Snapshots
from talon_ocd.durable.appending import Renumbering
from talon_ocd.durable.snapshots import FOLDER as SNAPSHOTS
from talon_ocd.errors import StorageError, StreamError
from talon_ocd.images import display
from talon_ocd.saved import reason

OpenStream = Callable[[Path], DurableStream]


class OpenSite:
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


def demand_places(folders: Sequence[Path], output: Path) -> None:
    """Refuse streams that can't be joined, and a place where something is already."""
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


def site_names(folders: Sequence[Path], given: Sequence[str]) -> list[str]:
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


def open_sites(
    folders: Sequence[Path], names: Sequence[str], work: Path, open_stream: OpenStream, stack: ExitStack
) -> list[OpenSite]:
    """Open a copy of every site as it is at this moment; prototypes learn there what still waited."""
    sites: list[OpenSite] = []
    shift = first = events = 0
    for number, (folder, name) in enumerate(zip(folders, names, strict=True)):
        copy = work / f"site-{number}"
        _copy(folder, copy)
        stream = stack.enter_context(open_stream(copy))
        stream.discovery.hold(stream.relied_on())
        stream.discovery.adapt()  # nothing may wait: two sites together could have more than fits
        journal, known = stream.journal, stream.memory.known
        until = max(stream.memory.next_id, Catalog(journal).next_id())
        site = Site(name, display(folder.resolve()), first, stream.answered, known, until, shift)
        sites.append(OpenSite(site, stream, Renumbering(known, shift, first, events)))
        shift, first = shift + until - known, first + stream.answered
        events += journal.query("SELECT coalesce(max(seq), 0) AS last FROM events")[0]["last"] + 1
    return sites


def _copy(folder: Path, target: Path) -> None:
    """Copy the journal, then the snapshots that it lists."""
    try:
        (target / SNAPSHOTS).mkdir(parents=True)
        with closing(Journal(folder)) as journal:
            journal.copy_to(target)
        with closing(Journal(target)) as copy:
            listed = Snapshots(copy).all()
        for snapshot in listed:
            with suppress(FileNotFoundError):  # a site at work drops old ones; what is left is replayed from
                shutil.copyfile(folder / SNAPSHOTS / snapshot.file, target / SNAPSHOTS / snapshot.file)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"{folder}: can't be copied to {target} ({reason(error)}); look at permissions and space."
        ) from error
