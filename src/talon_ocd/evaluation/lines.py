"""Lines of tables (layer: evaluation): which rows make a line, what it is called, and what stands beside it.

``lines`` turns rows into lines: one a method and way of making rows, with a group of rows for each data set. Published
figures follow the line of their method where backbone and split agree (``published.py``), and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from talon_ocd.errors import DataError
from talon_ocd.evaluation.datasets import OFFICIAL
from talon_ocd.evaluation.provenance import beside, notes
from talon_ocd.evaluation.published import TITLES, Published, base_name, comparable, find, published
from talon_ocd.evaluation.rows import Group, Row, Setup, group_rows
from talon_ocd.evaluation.table import PUBLISHED, Cell, Column, Table
from talon_ocd.methods.registry import REGISTRY

ASPECTS = ("backbone", "sampling", "order", "preset", "epochs", "pipeline")
"""Ways of making rows that a label can name."""


@dataclass(frozen=True)
class Line:
    """One line of a table: a method made in one way, with a group of rows by data set."""

    method: str
    label: str
    groups: dict[str, Group]
    lead: tuple[str, ...] = ()
    """Cells between the label and the figures."""
    paper_title: str | None = None
    """What papers call it."""


@dataclass(frozen=True)
class Layout:
    """What a table shows: its name, title, columns, the figures of a group, and which published ones stand beside."""

    name: str
    title: str
    columns: tuple[str, ...]
    figures: Callable[[Group], list[Cell]]
    published: Callable[[Published], list[Cell]] | None = None
    protocol: str = "strict"
    section: str = "8.1"
    """Where published figures are looked for first."""
    lead: tuple[str, ...] = ()


def lines(rows: Iterable[Row], order: Iterable[str] = (), hidden: frozenset[str] = frozenset()) -> list[Line]:
    """Return the lines of a table, in the order of ``order`` and then of the registry.

    What sets lines of one method apart becomes part of their label, except for what is ``hidden``.
    """
    ways: dict[tuple[str, str, Setup], dict[str, Group]] = {}
    for group in group_rows(rows):
        row = group.first
        ways.setdefault((row.method, repr(row.variant), row.setup), {})[row.dataset] = group
    found = []
    for (method, variant, setup), groups in ways.items():
        rivals = [other for name, same, other in ways if (name, same) == (method, variant)]
        row = next(iter(groups.values())).first
        words = [f"{name} {value}" for name, value in row.variant.items() if name not in hidden]
        words += [f"{name} {getattr(setup, name) or 'unknown'}" for name in _apart(rivals) if name not in hidden]
        label = f"{row.title} ({'; '.join(words)})" if words else row.title
        found.append(Line(method, label, groups, paper_title=TITLES.get(method)))
    places = {name: at for at, name in enumerate(dict.fromkeys([*order, *REGISTRY]))}
    return sorted(found, key=lambda line: places.get(line.method, len(places)))


def fill(layout: Layout, entries: Sequence[Line], remarks: Sequence[str] = ()) -> Table:
    """Return the table of a layout: our lines, published ones below them, and notes."""
    groups = [group for line in entries for group in line.groups.values()]
    if not groups:
        raise DataError(f"no row belongs into the table {layout.name}; docs/tables.md has the command that makes them.")
    datasets = sorted({group.first.dataset for group in groups}, key=place)
    nothing: list[Cell] = [None] * len(layout.columns)
    out: list[tuple[Cell, ...]] = []
    sources: dict[str, None] = {}
    for line in entries:
        own = [layout.figures(line.groups[name]) if name in line.groups else nothing for name in datasets]
        out.append((line.label, *line.lead, *(cell for cells in own for cell in cells)))
        papers = [_beside(layout, line, name) for name in datasets]
        sources.update((f"Published {row.method}: {row.source}.", None) for row in papers if row)
        if layout.published and any(papers):
            theirs = [layout.published(row) if row else nothing for row in papers]
            out.append((line.label + PUBLISHED, *line.lead, *(cell for cells in theirs for cell in cells)))
    columns = [Column("", title) for title in ("method", *layout.lead)]
    columns += [Column(name, title) for name in datasets for title in layout.columns]
    why = beside(row for group in groups for row in group.rows) if layout.published else None
    below = [*notes(groups), *remarks, *sources, *([why] if why else _other_splits(layout, entries))]
    return Table(layout.name, layout.title, tuple(columns), tuple(out), tuple(below))


def place(dataset: str) -> tuple[int, str]:
    """Return a sort key that puts data sets into the order of the papers, and others behind by name."""
    known = list(OFFICIAL)
    return (known.index(dataset) if dataset in known else len(known)), dataset


def _apart(setups: Sequence[Setup]) -> list[str]:
    """Return the names of what differs; the checksum of settings only where nothing else tells setups apart."""
    differ = [name for name in ASPECTS if len({getattr(setup, name) for setup in setups}) > 1]
    told = {tuple(getattr(setup, name) for name in differ) for setup in setups}
    return differ if len(told) == len(setups) else [*differ, "settings"]


def _beside(layout: Layout, line: Line, dataset: str) -> Published | None:
    if dataset not in line.groups or layout.published is None:
        return None
    row = line.groups[dataset].first
    family = comparable(str(row.get("family")), row.setup.backbone)
    if family is None or row.split is None or line.paper_title is None:
        return None
    return find(layout.protocol, line.paper_title, base_name(dataset), row.split, family, layout.section)


def _other_splits(layout: Layout, entries: Sequence[Line]) -> list[str]:
    """Say where figures are published for the backbone, but for another split of the classes."""
    found: dict[str, None] = {}
    for line in entries if layout.published else []:
        for dataset, group in line.groups.items():
            family = comparable(str(group.first.get("family")), group.first.setup.backbone)
            rows = published(layout.protocol, base_name(dataset), backbone=family) if family else []
            splits = {row.split: None for row in rows if row.method == line.paper_title}
            if splits and group.first.split not in splits:
                found[
                    f"Not beside {dataset}: {line.paper_title} is published for the split {' and '.join(splits)}."
                ] = None
    return list(found)
