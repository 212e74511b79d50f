"""Published results as data: the tables of the papers, read from the CSV files of this folder (layer: evaluation).

Section 8 of the specification, one file a table. Values are percent. Published figures may stand beside measured ones
only where the backbone and the split of the classes agree; ``published`` therefore asks for both, and ``comparable``
says in words why nothing stands there.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from talon_ocd.backbones import list_backbones
from talon_ocd.errors import ConfigError, nearest

ACCURACIES = (
    "main", "ablation", "categories", "adapters", "backbones", "phe", "diffgre", "ltc", "age-adhl",
)  # fmt: skip
"""Files with All / Old / New; the first that has a figure is the one that tables show."""
OTHERS = "timing"
"""The file with times and angles."""
BACKBONES = {"clip": "openai/clip-vit-base-patch16", "dino": "facebook/dino-vitb16"}
"""The encoders of all published figures, by family."""
PROTOCOLS = ("strict", "greedy")
TITLES = {
    "talon": "TALON", "baseline": "Baseline", "mlc": "Baseline+MLC", "tta-p": "Baseline+TTA-P",
    "mlc-tta-p": "Baseline+MLC+TTA-P", "tta-m": "Baseline+TTA-M", "mlc-tta-m": "Baseline+MLC+TTA-M",
    "tta-p-m": "Baseline+TTA-P-M", "tent": "MLC+TENT", "ostta": "MLC+OSTTA", "tta-p-tent": "MLC+TTA-P+TENT",
    "tta-p-ostta": "MLC+TTA-P+OSTTA", "slc": "SLC", "mldg": "MLDG", "rankstat": "RankStat", "wta": "WTA",
    "base-hash": "BaseHash", "smile": "SMILE", "phe": "PHE", "ltc": "LTC", "paco": "PACO", "age": "AGE",
}  # fmt: skip
"""What papers call the methods of this package. DiffGRE is published with image generation, which ours has not."""
SOURCES = {
    "8.1": "TALON (Wu et al., 2026), main table", "8.2": "TALON (Wu et al., 2026), ablation",
    "8.3": "TALON (Wu et al., 2026), number of categories", "8.4": "TALON (Wu et al., 2026), test-time adapters",
    "8.5": "TALON (Wu et al., 2026), backbones", "8.6": "TALON (Wu et al., 2026), time and geometry",
    "8.7": "PHE (Zheng et al., 2024)", "8.8": "DiffGRE (Liu et al., 2025)", "8.9": "LTC (Zhang et al., 2026)",
    "8.11": "AGE and ADHL (2026)",
}  # fmt: skip
"""Where the tables of each section were taken from."""
UNPRINTED = "not published"
"""Notes of figures that stand in the source of a paper but not in the paper hold these words."""


@dataclass(frozen=True)
class Published:
    """One figure of a paper, in percent; what was not reported is ``None``."""

    section: str
    """Section of the specification that quotes it."""
    protocol: str
    method: str
    """As the paper calls it."""
    backbone: str
    """Family: ``clip`` or ``dino``; empty where the source does not say."""
    dataset: str
    """Name without the split: ``cifar10``, never ``cifar10-6-4``."""
    split: str
    """Known / new classes, e.g. ``6/4``."""
    all: float | None
    old: float | None
    new: float | None
    all_std: float | None
    old_std: float | None
    new_std: float | None
    categories: int | None
    """Categories that the method found."""
    note: str

    @property
    def printed(self) -> bool:
        """Is it in the paper, not only in its source?"""
        return UNPRINTED not in self.note

    @property
    def source(self) -> str:
        """The paper and table, and what must be known of the figure."""
        return f"{SOURCES[self.section]}{f'; {self.note}' if self.note else ''}"

    @property
    def old_share(self) -> float | None:
        """ω = (All - New) / (Old - New), the share of old samples that the figure implies (section 8.0)."""
        if self.all is None or self.old is None or self.new is None or self.old == self.new:
            return None
        return (self.all - self.new) / (self.old - self.new)


@dataclass(frozen=True)
class Measured:
    """A published time or angle; it depends on a machine that is not this one."""

    section: str
    what: str
    method: str
    backbone: str
    dataset: str
    value: float
    std: float | None
    unit: str
    note: str


def published(
    protocol: str | None = None, dataset: str | None = None, split: str | None = None, backbone: str | None = None
) -> list[Published]:
    """Return the printed figures that agree with everything asked for, in the order of the tables.

    >>> [(row.method, row.all) for row in published("strict", "cifar10", "6/4", "clip")]
    [('TALON', 56.9), ('TALON', 56.9)]
    """
    if protocol not in (None, *PROTOCOLS):
        raise ConfigError(
            f"protocol {protocol!r} is not known; use strict or greedy.{nearest(str(protocol), PROTOCOLS)}"
        )
    wanted = {"protocol": protocol, "dataset": dataset, "split": split, "backbone": backbone}
    asked = {name: value for name, value in wanted.items() if value is not None}
    return [
        row for row in everything() if row.printed and all(getattr(row, name) == value for name, value in asked.items())
    ]


def find(protocol: str, title: str, dataset: str, split: str, backbone: str, section: str = "8.1") -> Published | None:
    """Return the figure of a method by its title in papers, or ``None``.

    Several tables may have it: that of ``section`` goes before the others, which follow in order.
    """
    rows = [row for row in published(protocol, dataset, split, backbone) if row.method == title and row.all is not None]
    return min(rows, key=lambda row: row.section != section, default=None)


def comparable(family: str, backbone: str) -> str | None:
    """Return the published family that a backbone belongs to, or ``None`` for encoders that no paper used.

    A folder of weights is taken at its family's word; a well-known id of another size is not.

    >>> comparable("clip", "openai/clip-vit-base-patch16"), comparable("clip", "openai/clip-vit-large-patch14")
    ('clip', None)
    """
    if family not in BACKBONES or (backbone in list_backbones() and backbone != BACKBONES[family]):
        return None
    return family


def base_name(dataset: str) -> str:
    """Return the name of a data set without its split.

    >>> base_name("cifar10-6-4"), base_name("imagenet100-80-20"), base_name("inat-fungi")
    ('cifar10', 'imagenet100', 'inat-fungi')
    """
    return dataset.removesuffix("-6-4").removesuffix("-80-20")


@cache
def everything() -> tuple[Published, ...]:
    """Return all figures with accuracies, unprinted ones too."""
    return tuple(_figure(line) for name in ACCURACIES for line in _lines(name))


@cache
def measured() -> tuple[Measured, ...]:
    """Return published times and angles."""
    return tuple(
        Measured(
            line["section"], line["what"], line["method"], line["backbone"], line["dataset"],
            float(line["value"]), _number(line["std"]), line["unit"], line["note"],
        )
        for line in _lines(OTHERS)
    )  # fmt: skip


def _lines(name: str) -> Iterator[dict[str, str]]:
    text = files("talon_ocd.evaluation").joinpath("published", f"{name}.csv").read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())


def _figure(line: dict[str, str]) -> Published:
    values: dict[str, Any] = dict(line)
    for name in ("all", "old", "new", "all_std", "old_std", "new_std"):
        values[name] = _number(line[name])
    values["categories"] = int(line["categories"]) if line["categories"] else None
    return Published(**values)


def _number(text: str) -> float | None:
    return float(text) if text else None
