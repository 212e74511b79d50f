"""``talon stream``: look at a stream folder, go back in it, answer its images anew."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from talon_ocd.catalog import Catalog
from talon_ocd.catalog.carry import carry
from talon_ocd.catalog.sites import Sites
from talon_ocd.cli import choices
from talon_ocd.cli.display import progress_for
from talon_ocd.durable import Journal, Pictures, Snapshots, settings_at
from talon_ocd.errors import ConfigError
from talon_ocd.images import ImageItem, Skipped
from talon_ocd.online import Bounds
from talon_ocd.talon import Talon

app = typer.Typer(
    help="A stream that lasts: what it knows, going back, answering its images anew.", no_args_is_help=True
)

StreamArgument = Annotated[Path, typer.Argument(metavar="STREAM", help="Folder of the stream.")]
ModelOption = Annotated[Path, typer.Option("--model", "-m", help="Folder that `talon fit` wrote.")]
MB = 1_000_000


@app.command()
def info(stream: StreamArgument) -> None:
    """Say what a stream is made of; works while it runs."""
    journal = Journal(stream)
    totals, rule = Catalog(journal).totals(), journal.meta("rule", {})
    snapshots = Snapshots(journal).all()
    size = sum(file.stat().st_size for file in stream.rglob("*") if file.is_file())
    skipped = journal.query("SELECT count(*) AS number FROM skipped")[0]["number"]
    lines = {
        "answered": journal.answered,
        "skipped": skipped,
        "categories": f"{totals['known']} known, {totals['discovered']} discovered, {totals['retired']} retired",
        "decides by": f"{rule.get('name')} ({rule.get('unit')}, threshold {rule.get('threshold', 0.0):g})",
        "settings": ", ".join(f"{name}={value}" for name, value in journal.meta("settings", {}).items()),
        "sites": ", ".join(f"{site.site} ({site.answers})" for site in Sites(journal).all) or "one",
        "model": journal.meta("model") or "in memory",
        "snapshots": f"{len(snapshots)}, the newest after {snapshots[0].answered} answers" if snapshots else "none yet",
        "on disk": f"{size / MB:.1f} MB",
    }
    for name, value in lines.items():
        choices.out.print(f"{name:<11} {value}", soft_wrap=True, markup=False, highlight=False)
    journal.close()


@app.command()
def snapshots(stream: StreamArgument) -> None:
    """List the states that `rollback` can go back to."""
    journal = Journal(stream)
    table = Table("snapshot", "answered", "taken", box=None)
    for snapshot in Snapshots(journal).all():
        taken = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(snapshot.at))
        table.add_row(Path(snapshot.file).stem, str(snapshot.answered), taken)
    choices.out.print(table)
    journal.close()


@app.command()
def rollback(
    stream: StreamArgument,
    to: Annotated[str, typer.Option("--to", help="Snapshot, as `talon stream snapshots` lists it.")],
    model: Annotated[
        Path | None, typer.Option("--model", "-m", help="The stream's model, if it is no longer where it was.")
    ] = None,
) -> None:
    """Forget what was learned since a snapshot: answers, ids and names stay."""
    journal = Journal(stream)
    where = model or journal.meta("model")
    journal.close()
    if not where:
        raise ConfigError(f"{stream}: nobody knows where the stream's model is; give --model FOLDER.")
    with Talon.from_pretrained(Path(where)).stream(stream, purpose="talon stream rollback") as opened:
        retired = opened.roll_back(to)
    choices.out.print(f"back to {to}; {len(retired)} categories that came later are retired", highlight=False)


@app.command()
def replay(
    stream: StreamArgument,
    model: ModelOption,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the new stream.")],
    adapt: Annotated[
        str | None, typer.Option("--adapt", help="What keeps learning: prototypes,encoder, one of them, or none.")
    ] = None,
    threshold: Annotated[
        str | None, typer.Option("--threshold", help="auto (what fit found) or a cosine (TALON's rule).")
    ] = None,
    finer: Annotated[
        float | None, typer.Option("--finer", help="Nats of evidence: 3 gives more categories, -3 fewer.")
    ] = None,
    quiet: choices.QuietOption = False,
) -> None:
    """Answer all images of a stream anew, by another model or with other options.

    Options that are left out, and bounds, are the old stream's. Names, merges, hiding and refusals are carried over;
    images that people moved, split off, confirmed or rejected are not.
    """
    old = Journal(stream)
    if output.resolve() == stream.resolve():
        raise ConfigError(f"{output}: the new stream needs a folder of its own.")
    gone: list[Skipped] = []
    pictures = Pictures(old)
    talon = Talon.from_pretrained(model)
    options = _options(stream, output, threshold, adapt, finer)
    with talon.stream(output, purpose="talon stream replay", **options) as new:
        with progress_for(choices.err, quiet).task("Answering anew", old.answered) as task:
            for _ in new.run(_images(old, pictures, gone), gone.append):
                task.advance(1)
        carried = carry(Catalog(old), Catalog(new.journal, new.apply))
    twice = old.answered - new.answered - len(gone)
    choices.out.print(
        f"{new.answered} images answered anew, {len(gone)} are gone or can't be read"
        f"{f', {twice} had come twice' if twice > 0 else ''}; {len(carried.events)} facts of people carried over, "
        f"{len(carried.left)} not",
        highlight=False,
        soft_wrap=True,
    )
    for left in carried.left:
        choices.err.print(
            f"not carried over: {left.name} ({left.reason})", markup=False, highlight=False, soft_wrap=True
        )
    if carried.told:
        choices.out.print(carried.told, highlight=False, soft_wrap=True)
    pictures.close()
    old.close()


def _options(
    stream: Path, output: Path, threshold: str | None, adapt: str | None, finer: float | None
) -> dict[str, Any]:
    """Return the options of a stream that answers anew: what is left out is as the old one was begun.

    A folder that was begun already has its own. A threshold and nats of evidence exclude each other.
    """
    given: dict[str, Any] = {"threshold": threshold, "adapt": adapt, "finer": finer}
    begun = settings_at(stream)
    if settings_at(output) or not begun:
        return given
    if threshold is None and finer is None:
        given["threshold"] = begun["threshold"] if begun["rule"] == "cosine" else None
        given["finer"] = begun["finer"]
    if adapt is None:
        given["adapt"] = ",".join(begun["adapt"]) or "none"
    return {**given, "bounds": Bounds(**begun["bounds"])}


def _images(old: Journal, pictures: Pictures, gone: list[Skipped]) -> Iterator[ImageItem]:
    """Yield the images of a stream in their order: kept uploads, or files that have not changed since."""
    for index in range(old.answered):
        item = pictures.item(index)
        if item is None:
            source = old.query("SELECT source FROM decisions WHERE idx = ?", (index,))[0]["source"]
            gone.append(Skipped(source, "is gone, or has changed since."))
        else:
            yield item
