"""The published rows of TALON as settings that can be run again (layer: evaluation).

One TOML file a row in the folder ``paper``: data set, encoder, official settings, and what the paper reports. They are
data of the package, so that ``talon reproduce`` finds them in an installed wheel as it does in a checkout.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from talon_ocd.backbones import Backbone, get_backbone
from talon_ocd.config import TalonConfig
from talon_ocd.errors import BackboneError, ConfigError, nearest
from talon_ocd.evaluation.plan import Cell, Plan
from talon_ocd.evaluation.provenance import notes
from talon_ocd.evaluation.rows import PARTS, PROTOCOLS, Group, Row
from talon_ocd.evaluation.splits import SamplingRule, StreamOrder
from talon_ocd.evaluation.table import Cell as TableCell
from talon_ocd.evaluation.table import Column, Figure, Table, percent
from talon_ocd.methods import get_method

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class PaperRow:
    """A published row and how it was made."""

    name: str
    title: str
    dataset: str
    split: str
    """Known / new classes."""
    backbone: str
    """Hub id of the encoder."""
    family: str
    method: str
    sampling: SamplingRule
    order: StreamOrder
    aspect: str
    config: TalonConfig
    published: dict[str, dict[str, float]]
    """All, Old and New in percent, by protocol."""

    def encoder(self, weights: str | None = None) -> Backbone:
        """Load the encoder: from a folder, or by its hub id."""
        backbone = get_backbone(weights or self.backbone, aspect=self.aspect)
        if backbone.family != self.family:
            raise BackboneError(
                f"{weights}: these are {backbone.family} weights, {self.name} was published with {self.family}; "
                f"give a copy of {self.backbone}."
            )
        return backbone

    def plan(self, orders: int = 1, **changes: Any) -> Plan:
        """Return what a grid has to run: the settings of the paper, with ``changes`` such as ``epochs``."""
        config = self.config.override(**changes)
        cell = Cell(self.method, get_method(self.method, config))
        return Plan([cell], config, (config.seed,), orders, self.order, self.sampling)


def paper_names() -> list[str]:
    """Return the names of all rows."""
    folder = files("talon_ocd.evaluation").joinpath("paper")
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def paper_row(name: str) -> PaperRow:
    """Return a row by its name.

    >>> paper_row("cub-clip").published["strict"]
    {'all': 45.5, 'old': 60.7, 'new': 37.8}
    """
    names = paper_names()
    if name not in names:
        raise ConfigError(f"row {name!r} is not known; use one of {', '.join(names)}.{nearest(name, names)}")
    text = files("talon_ocd.evaluation").joinpath("paper", f"{name}.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    settings = data.pop("settings")
    config = TalonConfig.from_preset(settings["preset"], data["family"])
    changes = {f"{part}.{key}": value for part in ("offline", "online") for key, value in settings[part].items()}
    return PaperRow(name, config=config.override(seed=settings["seed"], **changes), **data)


def comparison(row: PaperRow, made: Sequence[Row]) -> Table:
    """Return ours, the published figures and their difference, under both protocols."""
    group = Group(tuple(made))
    lines: list[tuple[TableCell, ...]] = []
    for protocol in PROTOCOLS:
        found = [percent(group.spread(protocol, part)) for part in PARTS]
        theirs = [row.published[protocol][part] for part in PARTS]
        difference = [
            None if ours is None else f"{ours.mean - value:+.1f}" for ours, value in zip(found, theirs, strict=True)
        ]
        lines += [
            (protocol.capitalize(), "ours", *found),
            ("", "published", *(Figure(value) for value in theirs)),
            ("", "difference", *difference),
        ]
    columns = (Column("", "protocol"), Column("", ""), *(Column(row.dataset, part.capitalize()) for part in PARTS))
    return Table(
        row.name, f"TALON, {row.title}, in percent", columns, tuple(lines), (*notes([group]), *_departures(row, made))
    )


def _departures(row: PaperRow, made: Sequence[Row]) -> list[str]:
    """Say what of the paper's settings these rows do not have."""
    told = []
    settings = made[0].get("settings", "recipe", "config", "offline") or {}
    for name in ("epochs", "views", "batch_size"):
        wanted = getattr(row.config.offline, name)
        if name in settings and settings[name] != wanted:
            told.append(f"{name} {settings[name]} instead of {wanted}")
    if made[0].split is not None and made[0].split != row.split:
        told.append(f"{made[0].split} known / new classes instead of {row.split}")
    return [f"Not as published: {', '.join(told)}."] if told else []
