"""What a grid goes through: methods with their settings, labelled halves, stream orders (layer: evaluation)."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from talon_ocd.config import TalonConfig
from talon_ocd.errors import ConfigError
from talon_ocd.evaluation.splits import SamplingRule, Scenario, StreamOrder
from talon_ocd.images import ImageItem
from talon_ocd.methods import Method, Recipe

OWN = f"{__name__.partition('.')[0]}."
"""What the names of this package's modules start with."""


@dataclass(frozen=True)
class Cell:
    """A method of the grid.

    Attributes:
        name: what the registry calls it.
        method: with the settings to use.
        variant: settings that a sweep changed; they tell the cells of one method apart.
    """

    name: str
    method: Method
    variant: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name and variant, fit for a file name."""
        return "@".join([self.name, *(f"{name}={value}" for name, value in self.variant.items())])


@dataclass(frozen=True)
class Plan:
    """What a grid goes through besides its data sets.

    Attributes:
        cells: the methods.
        config: views, pipeline and cache sizes are taken from it; so is the name of the preset.
        seeds: labelled halves; a seed draws its half, trains, and decides the orders.
        orders: stream orders of each half.
        order: ``shuffled``, or ``dataset`` (a single one).
        rule: how the labelled half is drawn.
        labelled: images of a known class that are labelled, at most.
        virtual: generated images for methods that train on such; they must come from labelled images only.
    """

    cells: Sequence[Cell]
    config: TalonConfig
    seeds: Sequence[int] = (0, 1, 2)
    orders: int = 1
    order: StreamOrder | Scenario = "shuffled"
    rule: SamplingRule = "gcd"
    labelled: int | None = None
    virtual: Sequence[ImageItem] = ()

    def __post_init__(self) -> None:
        if self.orders < 1 or (self.order == "dataset" and self.orders > 1):
            raise ConfigError(f"--orders {self.orders}: give 1 or more; the order of the data set is a single one.")
        if not self.cells or not self.seeds:
            raise ConfigError("a grid needs at least one method and one seed; see --method and --seeds.")

    @property
    def sampling(self) -> str:
        """What is labelled, in words."""
        return self.rule if self.labelled is None else f"{self.rule}, at most {self.labelled} of a class"

    @property
    def rows(self) -> int:
        """Rows for each data set."""
        return len(self.cells) * len(self.seeds) * self.orders

    def by_recipe(self) -> list[list[Cell]]:
        """Return the cells in groups that share a fit."""
        groups: dict[str, list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault(cell.method.recipe.key, []).append(cell)
        return list(groups.values())


def foreign_source(*parts: Method | Recipe) -> list[str]:
    """Return checksums of the files that define parts of a method, if these are none of this package.

    Such files change between runs, and their settings need not tell.
    """
    modules = {type(part).__module__ for part in parts}
    files = [getattr(sys.modules.get(name), "__file__", None) for name in sorted(modules) if not name.startswith(OWN)]
    return [hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] for file in files if file]
