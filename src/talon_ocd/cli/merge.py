"""``talon merge``: streams that learned apart become one."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from talon_ocd.catalog import Catalog
from talon_ocd.catalog.joining import SUMMARY, Answer, Ask, Joined, Settled, join
from talon_ocd.catalog.matching import Match
from talon_ocd.catalog.open_sites import demand_model
from talon_ocd.catalog.sites import Site, Sites
from talon_ocd.cli import choices
from talon_ocd.cli.category_files import ByOption
from talon_ocd.durable import Journal, Pictures
from talon_ocd.errors import ConfigError
from talon_ocd.images import display
from talon_ocd.talon import Talon

SHOWN = 3
"""Pictures of each category that a question shows."""
MOST_LISTED = 20
"""Pairs that are listed; the file has all."""


class Unsure(str, Enum):
    """What happens to pairs that are not sure."""

    ask = "ask"
    later = "later"
    yes = "yes"
    no = "no"


def merge(
    streams: Annotated[list[Path], typer.Argument(metavar="STREAM...", help="Folders of two or more streams.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the new stream.")],
    model: Annotated[
        Path | None, typer.Option("--model", "-m", help="The streams' model, if it is no longer where it was.")
    ] = None,
    site: Annotated[
        list[str] | None,
        typer.Option("--site", help="Names of the sites, one for each stream; otherwise their folders' names."),
    ] = None,
    unsure: Annotated[
        Unsure | None,
        typer.Option(
            help="Pairs that are not sure: ask, leave them for later (`talon categories similar`), or say yes or no to "
            "all. Asks on a terminal, else later."
        ),
    ] = None,
    by: ByOption = "person",
) -> None:
    """Join streams of one model that learned apart; the given ones stay as they are."""
    talon = Talon.from_pretrained(_model(streams, model))
    chosen = unsure or (Unsure.ask if sys.stdin.isatty() and sys.stdout.isatty() else Unsure.later)
    demand_model(streams, talon.fingerprint())
    with _asking(chosen) as ask:
        joined = join(
            streams, output, lambda folder: talon.stream(folder, purpose="talon merge"), ask, by, tuple(site or ())
        )
    _tell(joined, output)


def _model(streams: list[Path], given: Path | None) -> Path:
    if given is not None:
        return given
    journal = Journal(streams[0])
    where = journal.meta("model")
    journal.close()
    if not where:
        raise ConfigError(f"{streams[0]}: nobody knows where the stream's model is; give --model FOLDER.")
    return Path(where)


@contextmanager
def _asking(unsure: Unsure) -> Iterator[Ask | None]:
    """Give what answers questions; pictures for them lie in a folder until all are answered."""
    if unsure is Unsure.later:
        yield None
    elif unsure is Unsure.ask:
        with tempfile.TemporaryDirectory(prefix="talon-merge-") as folder:
            yield lambda match, catalog, pictures: _ask(match, catalog, pictures, Path(folder))
    else:
        answer: Answer = "yes" if unsure is Unsure.yes else "no"
        yield lambda match, catalog, pictures: answer


def _ask(match: Match, catalog: Catalog, pictures: Pictures, folder: Path) -> Answer:
    sites = Sites(catalog.journal)
    _say(f"\nAre these the same? {match.why}; {_score(match)}")
    for category in (match.first, match.second):
        found = catalog.get(category, exemplars=SHOWN)
        origin = sites.origin(category)
        whose = "" if origin is None else f", {origin[1]} at {origin[0]}"
        _say(f"  {category} {found.name!r}, {found.count} images{whose}")
        for image in catalog.images(found.exemplars):
            _say(f"    {_picture(pictures, image.index, folder) or image.source}")
    while True:
        answer = typer.prompt("y (same), n (different), s (skip: later)", default="s").strip().lower()[:1]
        answers: dict[str, Answer] = {"y": "yes", "n": "no", "s": "later"}
        if answer in answers:
            return answers[answer]


def _picture(pictures: Pictures, index: int, folder: Path) -> str | None:
    """Write a thumbnail where people can look at it; returns where."""
    jpeg = pictures.thumbnail(index)
    if jpeg is None:
        return None
    path = folder / f"{index}.jpg"
    path.write_bytes(jpeg)
    return display(path)


def _tell(joined: Joined, output: Path) -> None:
    for site in joined.sites:
        _say(f"{site.site}: {site.answers} answers from {site.first} on; {_ids(site)}")
    for name in joined.busy:
        _say(f"{name} is in use: what it had answered a moment ago was taken, what it answers now is not here")
    for name, keys in joined.keys.items():
        if keys.same:
            _say(f"{name}: {keys.same} images were answered at an earlier site too; both answers are kept")
        if keys.renamed:
            _say(
                f"{name}: {len(keys.renamed)} images had the key of another image at an earlier site; theirs begins "
                f"with {name!r} now"
            )
    for event in joined.renamed:
        given = ", ".join(f"{name!r} at {site}" for site, name in event.data["at_sites"].items())
        _say(f"class {event.category} is called {given}; the first one stays (undo event {event.seq} to change it)")
    _tell_pairs("one by now", [one for one in joined.settled if one.answer == "yes"])
    _tell_pairs("different, by what you said", [one for one in joined.settled if one.answer == "no"])
    later = [one for one in joined.settled if one.answer == "later"]
    _tell_pairs("not sure", later)
    _say(f"{sum(site.answers for site in joined.sites)} answers in {display(output)}; all pairs are in {SUMMARY}")
    if later:
        _say(f"the same? talon categories similar -s {display(output)}")


def _ids(site: Site) -> str:
    """Say what became of a site's ids."""
    if site.until == site.known:
        return "nothing discovered"
    moved = f" are {site.known + site.shift} to {site.until - 1 + site.shift} here" if site.shift else ""
    return f"ids {site.known} to {site.until - 1}{moved}"


def _tell_pairs(what: str, settled: list[Settled]) -> None:
    if not settled:
        return
    _say(f"{what}: {len(settled)} pairs" if len(settled) != 1 else f"{what}: 1 pair")
    for one in settled[:MOST_LISTED]:
        why = f"; {one.match.why}" if one.match.why else ""
        _say(f"  {one.match.first} and {one.match.second} ({_score(one.match)}{why}; event {one.event})")
    if len(settled) > MOST_LISTED:
        _say(f"  ... and {len(settled) - MOST_LISTED} more")


def _score(match: Match) -> str:
    there, back = match.votes
    unit = "log-odds" if match.unit == "log-odds" else "cosine above the threshold"
    return f"{unit} {match.score:+.2f}, {there:.0%} and {back:.0%} of their images"


def _say(text: str) -> None:
    choices.out.print(text, markup=False, highlight=False, soft_wrap=True)
