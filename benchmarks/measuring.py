"""What scripts that measure on a data set share: their options, what these choose, and the file that is written."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from talon_ocd.backbones import Backbone
from talon_ocd.cli import choices
from talon_ocd.config import TalonConfig
from talon_ocd.evaluation.datasets import Dataset, load_dataset
from talon_ocd.images import display
from talon_ocd.saved import write_files


@dataclass(frozen=True)
class Chosen:
    """What is measured: an encoder and its settings on labelled halves of a data set."""

    backbone: Backbone
    config: TalonConfig
    dataset: Dataset
    seeds: list[int]


def options(description: str, seeds: str) -> argparse.ArgumentParser:
    """Return the options that all have; ``seeds`` are the usual ones."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--root", type=Path, help="where data sets are; default $TALON_DATA")
    parser.add_argument("--seeds", default=seeds, help="labelled halves, with commas")
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--aspect")
    parser.add_argument("--set", action="append", dest="settings", help="any setting, as in talon evaluate")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file")
    return parser


def chosen(given: argparse.Namespace) -> Chosen:
    """Build what the options ask for."""
    backbone = choices.backbone_from(given.backbone, given.image_size, given.aspect)
    config = choices.config_from("default", backbone.family, None, given.settings)
    usual = os.environ.get("TALON_DATA") if given.dataset not in ("digits", "glyphs") else None
    dataset = load_dataset(given.dataset, given.root or (Path(usual) if usual else None))
    return Chosen(backbone, config, dataset, [int(word) for word in given.seeds.split(",")])


def write(output: Path, script: str, words: Sequence[str], content: Mapping[str, Any]) -> None:
    """Write what was measured, and by which command and commit."""
    command = display(shlex.join(["python", f"benchmarks/{script}", *words]))
    about = {"command": command, "commit": choices.commit(), **content}
    text = json.dumps(about, ensure_ascii=False, indent=1, allow_nan=False)
    write_files(output.resolve().parent, {output.name: f"{text}\n".encode()})
