"""A grid of data sets, methods, labelled halves and stream orders (layer: evaluation).

Every row of it is one file, written when it is done: a grid that is stopped goes on with the next row, and processes
may share out its data sets. Methods with equal recipes share one fit, and all share the trunk outputs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from talon_ocd import __version__
from talon_ocd.backbones import Backbone
from talon_ocd.errors import ConfigError
from talon_ocd.evaluation.datasets import Dataset
from talon_ocd.evaluation.fits import load_fit, save_fit
from talon_ocd.evaluation.plan import Cell, Plan, foreign_source
from talon_ocd.evaluation.protocol import Answers, Experiment
from talon_ocd.methods import Trained
from talon_ocd.methods.base import checksum
from talon_ocd.methods.registry import entry
from talon_ocd.progress import SILENT, Progress
from talon_ocd.saved import make_folder, write_files
from talon_ocd.talon import cache_for

FORMAT = 1
ROWS, FITS = "rows", "fits"


def folder_name(dataset: Dataset) -> str:
    """Return the name of a data set as a folder can have it."""
    return dataset.name.replace(":", "-")


def _virtual_images(report: dict[str, Any]) -> list[str]:
    """Say where the virtual images came from, if a method has trained on such."""
    return [f"{report['virtual']['source']} images"] if "virtual" in report else []


OnStream = Callable[[Experiment, Cell, int, Answers, dict[str, Any]], None]


@dataclass
class Grid:
    """A plan at work in a folder.

    Attributes:
        plan: what to go through.
        backbone: the encoder, untrained by any method.
        folder: where rows go.
        about: facts that every row carries, such as command and commit.
        cache_directory: where trunk outputs are kept.
        on_stream: told every stream with its order number, answers and row.
    """

    plan: Plan
    backbone: Backbone
    folder: Path
    about: dict[str, Any]
    cache_directory: Path | None = None
    progress: Progress = SILENT
    on_stream: OnStream = lambda experiment, cell, number, answers, row: None
    _checksums: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def _encoder(self) -> list[str]:
        head = hashlib.sha256(
            save({name: value.cpu().contiguous() for name, value in self.backbone.head.state_dict().items()})
        )
        return [self.backbone.trunk_fingerprint(), head.hexdigest()]

    def run(self, datasets: Sequence[Dataset]) -> list[dict[str, Any]]:
        """Compute what is missing; returns all rows of the plan."""
        for dataset in datasets:
            self._refuse_foreign_rows(dataset)
        make_folder(self.folder / ROWS)
        total = self.plan.rows * len(datasets)
        with self.progress.task("Grid", total, unit="rows") as task:
            for dataset in datasets:
                for seed in self.plan.seeds:
                    missing = [cells for cells in self.plan.by_recipe() if self._missing(dataset, cells, seed)]
                    done = len(self.plan.cells) - sum(len(cells) for cells in missing)
                    task.advance(done * self.plan.orders)
                    if missing:
                        for row in self._sampling(dataset, seed, missing):
                            task.advance(1, last=row["method"], all=row["strict"]["all"])
        return [self._read(path) for dataset in datasets for path, *_ in self._rows(dataset)]

    def _sampling(self, dataset: Dataset, seed: int, groups: list[list[Cell]]) -> Iterator[dict[str, Any]]:
        """Yield the rows of one labelled half."""
        trains = any(cells[0].method.recipe.trains for cells in groups)
        config = replace(self.plan.config, seed=seed).override(epochs=int(trains))  # views are for training only
        # A cache has one owner: with one for each data set, several processes can share out the data sets of a grid.
        place = self.cache_directory / folder_name(dataset) if self.cache_directory else None
        with cache_for(self.backbone, config, place) as cache:
            experiment = Experiment(
                dataset, self.backbone, config.offline, seed, cache, self.plan.rule, self.progress, self.plan.virtual,
                self.plan.labelled,
            )  # fmt: skip
            for cells in groups:
                self.progress.note(f"{dataset.name}, seed {seed}: {', '.join(cell.label for cell in cells)}")
                trained = self._fit(experiment, cells[0])
                for cell in cells:
                    yield from self._cell(experiment, cell, trained)

    def _fit(self, experiment: Experiment, cell: Cell) -> Trained:
        """Train, or read what an earlier run trained: fits are kept, for later rows of the same recipe."""
        recipe = cell.method.recipe
        facts = [recipe.key, self._circumstances(experiment.dataset), experiment.seed, *foreign_source(recipe)]
        path = self.folder / FITS / f"{checksum(facts)}.safetensors"
        trained = load_fit(path, recipe, self.backbone, self.progress)
        if trained is None:
            trained = experiment.fit(recipe, self.progress)
            save_fit(trained, path)
        return trained

    def _cell(self, experiment: Experiment, cell: Cell, trained: Trained) -> Iterator[dict[str, Any]]:
        """Yield the rows of one method: its stream in every order."""
        numbers = [
            k for k in range(self.plan.orders) if not self._path(experiment.dataset, cell, experiment.seed, k).is_file()
        ]
        features = experiment.features(cell.method, trained) if numbers else None
        for number in range(self.plan.orders):
            path = self._path(experiment.dataset, cell, experiment.seed, number)
            if number not in numbers:
                yield self._read(path)
                continue
            order = experiment.order(self.plan.order, number)
            answers = experiment.run(cell.method, trained, order, features, self.progress)
            row = self._row(experiment, cell, trained, number, answers)
            self.on_stream(experiment, cell, number, answers, row)
            text = json.dumps(row, ensure_ascii=False, allow_nan=False)
            write_files(path.parent, {path.name: text.encode("utf-8", "backslashreplace")})
            yield row

    def _row(
        self, experiment: Experiment, cell: Cell, trained: Trained, number: int, answers: Answers
    ) -> dict[str, Any]:
        registered, report = entry(cell.name), trained.report
        training = report.get("training", report)
        epochs = int(training.get("epochs", 0))
        batch = getattr(cell.method.recipe, "batch_size", self.plan.config.offline.batch_size)
        timings = {
            "fit_seconds": report["fit_seconds"],
            "training_seconds": training.get("seconds", 0.0),
            "training_steps": training.get("steps", epochs * math.ceil(len(experiment.labelled) / batch)),
            **({"prototype_seconds": report["prototype_seconds"]} if "prototype_seconds" in report else {}),
            **answers.seconds,
        }
        angles = {when: report[f"angles_{when}"] for when in ("before", "after") if f"angles_{when}" in report}
        return {
            "format": FORMAT,
            "dataset": experiment.dataset.name,
            "classes": len(experiment.dataset.classes),
            "known_classes": len(experiment.dataset.known),
            "sampling": self.plan.sampling,
            "order": {"kind": self.plan.order, "number": number},
            "seed": experiment.seed,
            "backbone": self.backbone.name,
            "family": self.backbone.family,
            "pipeline": self._pipeline(),
            "method": cell.name,
            "title": ", ".join([registered.title, *_virtual_images(report)]),
            "group": registered.group,
            "variant": cell.variant,
            "settings": cell.method.settings(),
            "preset": self.plan.config.preset,
            "epochs": epochs,
            **experiment.score(answers),
            "threshold": answers.threshold,
            "timings": timings,
            **({"angles": angles} if angles else {}),
            "fingerprint": self._fingerprint(experiment.dataset, cell, experiment.seed, number),
            **self.about,
            "machine": {"cpu_threads": torch.get_num_threads()},
            "versions": {
                "talon-ocd": __version__, "torch": str(torch.__version__), "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }  # fmt: skip

    def _pipeline(self) -> dict[str, Any]:
        offline = self.plan.config.offline
        return {
            "aspect": self.backbone.preprocessing.aspect,
            "augmentation": offline.augmentation,
            "views": offline.views,
        }

    def _circumstances(self, dataset: Dataset) -> str:
        """Return a checksum of what all rows of a data set have in common, made once: it goes through all images."""
        if dataset.name not in self._checksums:
            self._checksums[dataset.name] = checksum(self._common_facts(dataset))
        return self._checksums[dataset.name]

    def _common_facts(self, dataset: Dataset) -> list[Any]:
        images = checksum([[Path(item.source).name, item.label] for item in dataset.items])  # wherever they lie
        data = [dataset.name, images, list(dataset.known), self.plan.sampling]
        virtual = [checksum(sorted(item.key for item in self.plan.virtual))] if self.plan.virtual else []
        return [FORMAT, data, self._encoder, self._pipeline(), *virtual]

    def _fingerprint(self, dataset: Dataset, cell: Cell, seed: int, number: int) -> str:
        method = [cell.label, cell.method.settings(), *foreign_source(cell.method, cell.method.recipe)]
        return checksum([self._circumstances(dataset), method, seed, self.plan.order, number])

    def _path(self, dataset: Dataset, cell: Cell, seed: int, number: int) -> Path:
        name = f"seed-{seed}-{self.plan.order}-{number}.json"
        return self.folder / ROWS / folder_name(dataset) / cell.label / name

    def _rows(self, dataset: Dataset) -> Iterator[tuple[Path, Cell, int, int]]:
        """Yield the file of every row of a data set, with its method, seed and order number."""
        numbers = range(self.plan.orders)
        for cell, seed, number in itertools.product(self.plan.cells, self.plan.seeds, numbers):
            yield self._path(dataset, cell, seed, number), cell, seed, number

    def _missing(self, dataset: Dataset, cells: Sequence[Cell], seed: int) -> bool:
        numbers = range(self.plan.orders)
        return any(not self._path(dataset, cell, seed, number).is_file() for cell in cells for number in numbers)

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return row
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: can't be read as a row ({error}); delete it and run the grid again.") from error

    def _refuse_foreign_rows(self, dataset: Dataset) -> None:
        """A folder holds rows of one protocol: nobody should mean figures that were made in different ways."""
        for path, cell, seed, number in self._rows(dataset):
            wanted = self._fingerprint(dataset, cell, seed, number)
            if path.is_file() and self._read(path).get("fingerprint") != wanted:
                raise ConfigError(
                    f"{path} was made with other settings, data or encoder (or method file) than this grid asks for; "
                    "choose another output folder, or delete the rows that are out of date."
                )
