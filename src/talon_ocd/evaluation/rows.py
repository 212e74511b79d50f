"""Rows of grids read back, checked and grouped (layer: evaluation): what tables and figures are made of.

A row is one stream: data set x method x variant x labelled half (seed) x stream order, a JSON file of ``grid.py``.
Whatever a row does not say is ``None`` here and a dash in tables; only what makes it a row at all is required.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from talon_ocd.errors import ConfigError, DataError, nearest
from talon_ocd.evaluation.grid import FORMAT, ROWS
from talon_ocd.images import display
from talon_ocd.methods.registry import REGISTRY

REQUIRED = ("dataset", "method", "seed", "order", "strict", "greedy")
PROTOCOLS, PARTS = ("strict", "greedy"), ("all", "old", "new")
ROUNDING = 2e-4
"""How far All may be from its mix of Old and New: rows may be rounded to four digits."""


@dataclass(frozen=True)
class Setup:
    """How a row was made, apart from what tables vary: rows are averaged only if all of this agrees."""

    backbone: str
    sampling: str
    order: str
    preset: str
    epochs: str
    """As asked for; rehearsals may have decided to train none."""
    pipeline: str
    settings: str
    """A checksum."""


@dataclass(frozen=True)
class Row:
    """One stream of a grid."""

    data: Mapping[str, Any]
    path: Path | None = None

    def get(self, *names: str) -> Any:
        """Return a value inside nested tables, or ``None``."""
        found: Any = self.data
        for name in names:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    def number(self, *names: str) -> float | None:
        """Return a finite number, or ``None``."""
        found = self.get(*names)
        usable = isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)
        return float(found) if usable else None

    @property
    def dataset(self) -> str:
        """Name of the data set."""
        return str(self.data["dataset"])

    @property
    def method(self) -> str:
        """Name of the method in the registry."""
        return str(self.data["method"])

    @property
    def title(self) -> str:
        """What tables call the method."""
        known = REGISTRY.get(self.method)
        return str(self.get("title") or (known.title if known else self.method))

    @property
    def group(self) -> str:
        """Group of the method, e.g. ``ablation``."""
        known = REGISTRY.get(self.method)
        return str(self.get("group") or (known.group if known else ""))

    @property
    def variant(self) -> dict[str, Any]:
        """Settings that a sweep changed."""
        found = self.get("variant")
        return dict(found) if isinstance(found, Mapping) else {}

    @property
    def split(self) -> str | None:
        """Known / new classes, e.g. ``19/18``."""
        classes, known = self.get("classes"), self.get("known_classes")
        return f"{known}/{classes - known}" if isinstance(classes, int) and isinstance(known, int) else None

    @property
    def old_share(self) -> float | None:
        """ω, the share of old images in the stream."""
        old, all_images = self.number("sizes", "stream_old"), self.number("sizes", "stream")
        return old / all_images if old is not None and all_images else self.number("sizes", "old_share")

    @cached_property
    def setup(self) -> Setup:
        """How the row was made."""
        epochs = self.get("settings", "recipe", "epochs")
        if epochs is None:
            epochs = self.get("settings", "recipe", "config", "offline", "epochs")
        pipeline = self.get("pipeline")
        return Setup(
            _word(self.get("backbone")), _word(self.get("sampling")), _word(self.get("order", "kind")),
            _word(self.get("preset")), _word(self.get("epochs") if epochs is None else epochs),
            ", ".join(f"{name} {value}" for name, value in pipeline.items()) if isinstance(pipeline, Mapping) else "",
            _checksum(_without_seed(self.get("settings"))),
        )  # fmt: skip

    def __str__(self) -> str:
        where = "" if self.path is None else f"{display(self.path)}: "
        return f"{where}{self.method} on {self.dataset}, seed {self.get('seed')}, order {self.get('order', 'number')}"


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over samplings x orders; one value has no deviation."""

    mean: float
    std: float | None
    count: int


@dataclass(frozen=True)
class Group:
    """Rows that differ in their labelled half and stream order only."""

    rows: tuple[Row, ...]

    @property
    def first(self) -> Row:
        """A row to ask what all have in common."""
        return self.rows[0]

    def spread(self, *names: str) -> Spread | None:
        """Return mean and deviation of a number, or ``None`` if no row has it."""
        return spread(value for row in self.rows if (value := row.number(*names)) is not None)


@dataclass(frozen=True)
class Reading:
    """What folders held: rows, and files that are none."""

    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_rows(folders: Sequence[Path]) -> Reading:
    """Read all rows of output folders, or of their ``results.json``.

    Damaged files are reported and skipped, rows that can't be true refused.
    """
    reading, seen = Reading(), dict[str, Row]()
    for folder in folders:
        for row in (row for path in _files(folder) for row in _rows(path, reading.problems)):
            check(row)
            key = _identity(row)
            if key not in seen:
                seen[key] = row
                reading.rows.append(row)
            elif dict(seen[key].data) != dict(row.data):
                reading.problems.append(f"{row}: left out, {seen[key]} is the same row already.")
    if not reading.rows:
        places = ", ".join(display(folder) for folder in folders)
        raise DataError(f"{places}: no rows in there; `talon evaluate --dataset ... -o DIR` makes them in DIR/{ROWS}.")
    return reading


def check(row: Row) -> None:
    """Refuse a row that can't be true: All = ω Old + (1 - ω) New in both protocols, and Strict is at most Greedy."""
    for protocol in PROTOCOLS:
        values = [row.number(protocol, part) for part in PARTS]
        wrong = [value for value in values if value is not None and not -ROUNDING <= value <= 1 + ROUNDING]
        if wrong:
            raise DataError(f"{row}: {protocol} holds {wrong[0]:g}; accuracies are fractions between 0 and 1.")
        (total, old, new), share = values, row.old_share
        if share is not None and total is not None and old is not None and new is not None:
            wanted = share * old + (1 - share) * new
            if abs(total - wanted) > ROUNDING:
                raise DataError(
                    f"{row}: {protocol} All is {total:.4f}, but Old and New at an old share of {share:.4f} make "
                    f"{wanted:.4f}; the file was changed or two runs were mixed: compute the row again."
                )
    for part in PARTS:
        strict, greedy = row.number("strict", part), row.number("greedy", part)
        if strict is not None and greedy is not None and strict > greedy + ROUNDING:
            raise DataError(
                f"{row}: Strict {part.capitalize()} {strict:.4f} is above Greedy {greedy:.4f}, which can't be; "
                "compute the row again."
            )


def group_rows(rows: Iterable[Row]) -> list[Group]:
    """Return rows in groups of equal data set, known classes, method, variant and setup, in the order they come in."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(_kind(row), []).append(row)
    return [Group(tuple(members)) for members in groups.values()]


def of_dataset(rows: Sequence[Row], name: str | None) -> list[Row]:
    """Return the rows of one data set, or all for ``None``."""
    names = list(dict.fromkeys(row.dataset for row in rows))
    if name is not None and name not in names:
        raise ConfigError(f"no row is of data set {name!r}; there are {', '.join(names)}.{nearest(name, names)}")
    return [row for row in rows if name in (None, row.dataset)]


def spread(values: Iterable[float]) -> Spread | None:
    """Return mean and sample standard deviation, or ``None`` without values.

    >>> spread([1, 2, 3])
    Spread(mean=2.0, std=1.0, count=3)
    """
    found = np.array(list(values), dtype=np.float64)
    if not found.size:
        return None
    std = float(found.std(ddof=1)) if found.size > 1 else None
    return Spread(float(found.mean()), std, int(found.size))


def _files(folder: Path) -> list[Path]:
    place = folder / ROWS if (folder / ROWS).is_dir() else folder
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise DataError(f"{display(folder)}: there is no such folder; give the --output of `talon evaluate`.")
    return sorted(path for path in place.rglob("*.json") if not path.name.startswith("."))


def _rows(path: Path, problems: list[str]) -> list[Row]:
    """Return the rows of a file: one, or the list of them that a finished grid writes."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problems.append(f"{display(path)}: skipped, it can't be read as a row ({error}).")
        return []
    found = []
    for data in content if isinstance(content, list) else [content]:
        missing = [name for name in REQUIRED if name not in data] if isinstance(data, dict) else list(REQUIRED)
        if missing:
            problems.append(f"{display(path)}: skipped, it is no row: {', '.join(missing)} missing.")
        elif data.get("format", FORMAT) != FORMAT:
            problems.append(f"{display(path)}: skipped, format {data['format']} is not the {FORMAT} of this version.")
        else:
            found.append(Row(data, path))
    return found


def _kind(row: Row) -> str:
    share = (row.get("known_classes"), row.get("classes"))
    return json.dumps([row.dataset, share, row.method, row.variant, asdict(row.setup)], sort_keys=True, default=str)


def _identity(row: Row) -> str:
    return json.dumps([_kind(row), row.get("seed"), row.get("order")], sort_keys=True, default=str)


def _word(value: Any) -> str:
    return "" if value is None else str(value)


def _checksum(settings: Any) -> str:
    if not settings:
        return ""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:6]


def _without_seed(settings: Any) -> Any:
    """The seed is that of the row; the config inside the settings has one that is not used."""
    if isinstance(settings, Mapping):
        return {name: _without_seed(value) for name, value in settings.items() if name != "seed"}
    return settings
