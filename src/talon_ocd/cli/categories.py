"""``talon categories``: look at what a stream has found, name it, merge it, take it back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from talon_ocd.catalog import Catalog, Category, NameTakenError, Suggestion, summary
from talon_ocd.catalog.sites import Sites
from talon_ocd.cli import category_files, choices
from talon_ocd.cli.category_files import ByOption, JsonOption, StreamOption, opened
from talon_ocd.durable import Event
from talon_ocd.errors import CatalogError, nearest

app = typer.Typer(help="Categories of a stream: look, name, merge, split, undo, export.", no_args_is_help=True)
app.command("export")(category_files.export_command)
app.command("import")(category_files.import_command)
app.command("carry")(category_files.carry_command)

CategoryArgument = Annotated[
    str, typer.Argument(metavar="CATEGORY", help="Id or name of a category; SITE:ID after a join.")
]
ImagesArgument = Annotated[list[int], typer.Argument(metavar="IMAGE...", help="Indices of images.")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Most rows.")]


@app.callback()
def options() -> None:
    """Categories of a stream: look, name, merge, split, undo, export."""


@app.command("list")
def list_command(
    stream: StreamOption,
    state: Annotated[
        str, typer.Option("--state", help="active, tentative, hidden, merged, retired, known, discovered or all.")
    ] = "active",
    query: Annotated[str, typer.Option("--query", "-q", help="Part of a name, present or past.")] = "",
    sort: Annotated[str, typer.Option("--sort", help="recent, count, name or created.")] = "recent",
    limit: LimitOption = 50,
    after: Annotated[str | None, typer.Option("--after", help="Where the page before ended.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List categories, page by page."""
    with opened(stream) as catalog:
        page = catalog.list(state, query, sort, limit, after)
    if as_json:
        _lines(category.to_dict() for category in page.items)
        return
    choices.out.print(_table(page.items))
    _say(f"{len(page.items)} of {page.total} categories")
    if page.next is not None:
        _say(f"more: --after {page.next}")


@app.command("show")
def show_command(
    category: CategoryArgument, stream: StreamOption, limit: LimitOption = 20, as_json: JsonOption = False
) -> None:
    """Show one category and its newest images."""
    with opened(stream) as catalog:
        found = catalog.get(_id(catalog, category))
        page = catalog.members(found.id, limit)
    if as_json:
        _lines([{**found.to_dict(), "images": [image.to_dict() for image in page.items]}])
        return
    choices.out.print(_table([found]))
    if found.into is not None:
        _say(f"merged into {found.into}")
    if found.aliases:
        _say(f"with {', '.join(map(str, found.aliases))}")
    table = Table("image", "source", "answered", "similarity", "next", box=SIMPLE, padding=(0, 1, 0, 0))
    for image in page.items:
        table.add_row(
            str(image.index), escape(image.source), image.verdict, f"{image.similarity:.3f}",
            escape(image.runner_up_name),
        )  # fmt: skip
    choices.out.print(table)
    _say(f"{len(page.items)} of {page.total} images, newest first")


@app.command("name")
def name_command(
    category: CategoryArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it shall be called.")],
    stream: StreamOption,
    merge: Annotated[bool, typer.Option("--merge", help="If another has the name already, make the two one.")] = False,
    by: ByOption = "person",
    as_json: JsonOption = False,
) -> None:
    """Name a category; the name survives new models (carry) and can be undone."""
    with opened(stream, edit=True) as catalog, _offering_a_merge():
        _tell(catalog, catalog.rename(_id(catalog, category), name, by, merge), as_json)


@app.command("merge")
def merge_command(
    categories: Annotated[list[str], typer.Argument(metavar="CATEGORY...", help="Ids or names of categories.")],
    stream: StreamOption,
    into: Annotated[
        str | None,
        typer.Option("--into", help="The one that stays; otherwise the named, the known, or the larger one."),
    ] = None,
    by: ByOption = "person",
    as_json: JsonOption = False,
) -> None:
    """Make categories one; both keep learning their own images, so that undo is exact."""
    with opened(stream, edit=True) as catalog:
        ids = [_id(catalog, category) for category in categories]
        _tell(catalog, catalog.merge(ids, None if into is None else _id(catalog, into), by), as_json)


@app.command("split")
def split_command(
    category: CategoryArgument,
    images: ImagesArgument,
    stream: StreamOption,
    name: Annotated[str | None, typer.Option("--name", help="What the new one shall be called.")] = None,
    by: ByOption = "person",
    as_json: JsonOption = False,
) -> None:
    """Make a new category of some images of one."""
    with opened(stream, edit=True) as catalog:
        _tell(catalog, catalog.split(_id(catalog, category), images, name, by), as_json)


@app.command("move")
def move_command(
    category: CategoryArgument,
    images: ImagesArgument,
    stream: StreamOption,
    by: ByOption = "person",
    as_json: JsonOption = False,
) -> None:
    """Bring images to the category that they belong to; the stream learns from it."""
    with opened(stream, edit=True) as catalog:
        _tell(catalog, catalog.move(images, _id(catalog, category), by), as_json)


@app.command("hide")
def hide_command(
    category: CategoryArgument,
    stream: StreamOption,
    show: Annotated[bool, typer.Option("--show", help="Show it again.")] = False,
    by: ByOption = "person",
    as_json: JsonOption = False,
) -> None:
    """Hide a category from lists and suggestions; nothing is lost."""
    with opened(stream, edit=True) as catalog:
        _tell(catalog, catalog.hide(_id(catalog, category), not show, by), as_json)


@app.command("undo")
def undo_command(
    stream: StreamOption,
    event: Annotated[
        int | None, typer.Argument(metavar="[EVENT]", help="Number of an event; otherwise the last one.")
    ] = None,
    by: ByOption = "person",
    as_json: JsonOption = False,
) -> None:
    """Take back what people did, in any order; undoing an undo brings it back."""
    with opened(stream, edit=True) as catalog:
        _tell(catalog, catalog.undo(event, by), as_json)


@app.command("history")
def history_command(
    stream: StreamOption,
    limit: LimitOption = 20,
    everything: Annotated[bool, typer.Option("--everything", help="What the stream did as well.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what people did, newest first."""
    with opened(stream) as catalog:
        rows = [
            (event, summary(event, catalog.name), catalog.undone(event.seq))
            for event in catalog.history(limit, everything=everything)
        ]
    if as_json:
        _lines({**asdict(event), "summary": words, "undone": undone} for event, words, undone in rows)
        return
    table = Table("event", "when", "who", "what", "undone", box=SIMPLE, padding=(0, 1, 0, 0))
    for event, words, undone in rows:
        table.add_row(str(event.seq), _when(event.at), escape(event.actor), escape(words), "yes" if undone else "")
    choices.out.print(table)


@app.command("similar")
def similar_command(
    stream: StreamOption,
    category: Annotated[
        str | None, typer.Argument(metavar="[CATEGORY]", help="Compare this one; otherwise all pairs.")
    ] = None,
    limit: LimitOption = 10,
    as_json: JsonOption = False,
) -> None:
    """Show categories that look like one, surest first."""
    with opened(stream) as catalog:
        found = catalog.suggestions(limit) if category is None else catalog.similar(_id(catalog, category), limit)
    if as_json:
        _lines(asdict(pair) for pair in found)
        return
    _tell_pairs(found)


def _tell_pairs(found: Sequence[Suggestion]) -> None:
    table = Table("first", "images", "second", "images", "cosine", box=SIMPLE, padding=(0, 1, 0, 0))
    for pair in found:
        first, second = (f"{one.id} {escape(one.name)}" for one in (pair.first, pair.second))
        table.add_row(first, str(pair.first.count), second, str(pair.second.count), f"{pair.score:.3f}")
    choices.out.print(table)
    _say("no two look like one" if not found else "one of them? talon categories merge FIRST SECOND")


def _id(catalog: Catalog, text: str) -> int:
    """Return the id of a category that was given by id, by name, or by site and its id there."""
    if text.isdecimal():
        return int(text)
    found = catalog.find(text.strip())
    found = Sites(catalog.journal).category(text.strip()) if found is None else found
    if found is None:
        names = [category.name for category in catalog.list("all", query=text[:3], limit=1000, exemplars=0).items]
        raise CatalogError(f"no category is called {text!r}.{nearest(text, names)}")
    return found


@contextmanager
def _offering_a_merge() -> Iterator[None]:
    try:
        yield
    except NameTakenError as error:
        raise CatalogError(
            f"{error.existing_name!r} is the name of category {error.existing} already; add --merge if the two are "
            "one, or choose another name."
        ) from error


def _tell(catalog: Catalog, event: Event, as_json: bool) -> None:
    if as_json:
        _lines([asdict(event)])
    else:
        _say(f"{summary(event, catalog.name)} (event {event.seq})")


def _table(categories: Iterable[Category]) -> Table:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("id", justify="right", no_wrap=True)
    table.add_column("name", overflow="fold")
    table.add_column("images", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("last seen", no_wrap=True)
    for category in categories:
        table.add_row(
            str(category.id), escape(category.name), str(category.count), category.state, category.kind,
            "" if category.last_seen is None else _when(category.last_seen),
        )  # fmt: skip
    return table


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def _lines(rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        typer.echo(json.dumps(row, ensure_ascii=False))


def _say(text: str) -> None:
    choices.out.print(text, markup=False, highlight=False, soft_wrap=True)
