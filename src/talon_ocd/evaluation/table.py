"""A table as plain data, and its text as Markdown or CSV (layer: evaluation); the command line draws it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import StringIO

from talon_ocd.evaluation.rows import Spread

DASH = "–"
"""What a cell without a figure shows."""
PUBLISHED = ", published"
"""How the label of a line ends that holds figures of papers."""


@dataclass(frozen=True)
class Figure:
    """A number of a table; published ones have no count of runs."""

    mean: float
    std: float | None = None
    digits: int = 1

    def __str__(self) -> str:
        text = f"{self.mean:.{self.digits}f}"
        return text if self.std is None else f"{text} ± {self.std:.{self.digits}f}"


Cell = str | Figure | None
"""Text, a number, or nothing, which shows as a dash."""


@dataclass(frozen=True)
class Column:
    """A column: the part it belongs to (a data set; empty for the columns that name a line) and its title."""

    part: str
    title: str

    def __str__(self) -> str:
        return f"{self.part} {self.title}".strip()


@dataclass(frozen=True)
class Table:
    """What is printed: columns, lines of cells, and remarks below."""

    name: str
    title: str
    columns: tuple[Column, ...]
    lines: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def header(self) -> list[str]:
        """The titles of the columns."""
        return [str(column) for column in self.columns]

    @property
    def rows(self) -> list[list[str]]:
        """All cells as text."""
        return [[shown(cell) for cell in line] for line in self.lines]

    @property
    def parts(self) -> list[str]:
        """The data sets, in order."""
        return list(dict.fromkeys(column.part for column in self.columns if column.part))

    def part(self, name: str) -> Table:
        """Return the table of one data set; published lines without a figure for it are left out."""
        keep = [at for at, column in enumerate(self.columns) if column.part in ("", name)]
        own = [at for at in keep if self.columns[at].part]
        lines = [line for line in self.lines if _is_ours(line) or any(line[at] is not None for at in own)]
        columns = tuple(replace(self.columns[at], part="") for at in keep)
        return replace(self, columns=columns, lines=tuple(tuple(line[at] for at in keep) for line in lines))

    def markdown(self) -> str:
        """Return the table as GitHub shows it, with the notes below."""
        named = [":---" if not column.part else "---:" for column in self.columns]
        lines = [f"**{self.title}**", "", _pipes(self.header), _pipes(named), *(_pipes(row) for row in self.rows)]
        return "\n".join([*lines, "", *(f"- {_escaped(note)}" for note in self.notes)]) + "\n"

    def csv(self) -> str:
        """Return the table for programs: a deviation is a column of its own, notes are lines that start with ``#``."""
        spread = [any(isinstance(line[at], Figure) for line in self.lines) for at in range(len(self.columns))]
        file = StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            name
            for at, title in enumerate(self.header)
            for name in ([title, f"{title} std"] if spread[at] else [title])
        )
        for line in self.lines:
            writer.writerow(text for at, cell in enumerate(line) for text in _fields(cell, spread[at]))
        return file.getvalue() + "".join(f"# {note}\n" for note in self.notes)


def percent(found: Spread | None) -> Figure | None:
    """Return a fraction as percent with one digit."""
    return scaled(found, 100.0)


def scaled(found: Spread | None, scale: float = 1.0, digits: int = 1) -> Figure | None:
    """Return a mean and its deviation times ``scale``.

    >>> str(scaled(Spread(0.5, 0.02, 3), 100.0))
    '50.0 ± 2.0'
    """
    if found is None:
        return None
    return Figure(scale * found.mean, None if found.std is None else scale * found.std, digits)


def shown(cell: Cell) -> str:
    """Return a cell as text."""
    return DASH if cell is None else str(cell)


def _is_ours(line: Sequence[Cell]) -> bool:
    return not str(line[0]).endswith(PUBLISHED)


def _fields(cell: Cell, spread: bool) -> Sequence[str]:
    if not spread:
        return [cell if isinstance(cell, str) else ""]
    if not isinstance(cell, Figure):
        return [cell or "", ""]
    std = "" if cell.std is None else f"{cell.std:.{cell.digits + 1}f}"
    return [f"{cell.mean:.{cell.digits + 1}f}", std]


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
