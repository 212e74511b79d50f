"""Which training of the head helps classes that it never saw? One choice changed at a time, others as the default has.

    python benchmarks/representation.py --dataset cub --root DATA --aspect keep --set augmentation=gcd -o cub.json

Everything is judged on new classes, by the labels of the stream, which no fit sees: this explains the default, it does
not choose it. No threshold and no offset has a part in it: images of new classes are ranked by how likely each is to be
of the category that another one founds, as the evidence rule would have it. ``precision`` is the mean average precision
among the R nearest, if a class has R more images; ``nearest`` is how often the nearest is of the same class. Of known
classes, ``known`` is how often the likeliest is right, and ``apart`` the chance that an image of a known class fits its
best one better than an image of a new class does.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from measuring import chosen, options, write
from scipy.stats import rankdata
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.backbones import Backbone, PairedHead
from talon_ocd.backbones.texture import Texture
from talon_ocd.cli import choices
from talon_ocd.cli.display import progress_for
from talon_ocd.config import EvidenceConfig, OfflineConfig, TalonConfig
from talon_ocd.evaluation.datasets import Dataset
from talon_ocd.evaluation.protocol import Experiment, default_cache_directory
from talon_ocd.memory.beliefs import Ints, screened
from talon_ocd.memory.two_covariance import Floats
from talon_ocd.offline import TrunkOutputs
from talon_ocd.offline.estimate import estimate
from talon_ocd.offline.features import class_means, encode
from talon_ocd.offline.fit import TEXTURE_IMAGES
from talon_ocd.offline.trainer import Views, train_head
from talon_ocd.talon import cache_for, prepared

MIXED = "pseudo-novel classes"
VARIANTS: dict[str, dict[str, Any]] = {
    "the default": {},
    "no training": {"epochs": 0},
    "4 epochs": {"epochs": 4},
    "25 epochs": {"epochs": 25},
    "last block only": {"trainable": "block"},
    "angular margin 0.2": {"classifier": "margin"},
    "SupCon temperature 0.05": {"supcon_temperature": 0.05},
    "SupCon temperature 0.2": {"supcon_temperature": 0.2},
    "cross-entropy alone": {"supcon_weight": 0.0},
    "SupCon alone": {"classifier_weight": 0.0},
    MIXED: {},
}
PARTS = {"alone": "the trained head alone", "beside": "beside pre-trained head and texture", "both": "and its texture"}
MEASURES = ("precision", "nearest", "known", "apart")
MOST = 2500
"""Images of new classes that are compared with each other."""


@dataclass(frozen=True)
class Mixed:
    """Views of N images, then of N that are halfway between an image and one of another class, in the trunk's output.

    Attributes:
        views: those of the images.
        partners: who is mixed with whom ``(N,)``.
    """

    views: Views
    partners: Tensor

    def pair(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Return hidden ``(2, B, *hidden_shape)``; from N on they are mixed."""
        own = index % len(self.partners)
        mixed = index >= len(self.partners)
        pairs = self.views.pair(own, generator).clone()
        if mixed.any():
            pairs[:, mixed] = 0.5 * (pairs[:, mixed] + self.views.pair(self.partners[own[mixed]], generator))
        return pairs


def mixed(views: Views, labels: Tensor, weights: Tensor, seed: int) -> tuple[Views, Tensor, Tensor]:
    """Return views, labels ``(2N,)`` and classifier weights ``(2C, D)`` with a pseudo-novel class for each known one.

    Every class has another one for its partner, in a ring; images are mixed with images of that class.
    """
    random = np.random.default_rng(seed)
    classes = random.permutation(len(weights))
    following = np.empty_like(classes)
    following[classes] = np.roll(classes, -1)
    partner_class = torch.from_numpy(following)[labels]
    members = [torch.nonzero(labels == label)[:, 0].numpy() for label in range(len(weights))]
    partners = torch.tensor([int(random.choice(members[label])) for label in partner_class.tolist()])
    between = F.normalize(weights + weights[torch.from_numpy(following)], dim=1)
    return Mixed(views, partners), torch.cat([labels, len(weights) + labels]), torch.cat([weights, between])


def judge(labelled: Tensor, labels: Tensor, stream: Tensor, classes: Ints, config: EvidenceConfig) -> dict[str, float]:
    """Return the measures of unit features ``(N, D)`` and ``(M, D)``; classes ``(M,)`` from C on are new."""
    evidence = estimate(labelled, labels, config)
    beliefs, model = evidence.beliefs(), evidence.model
    coordinates, new = model.coordinates(stream), classes >= len(evidence.counts)
    rows, own = coordinates[new][:MOST], classes[new][:MOST]
    founded = beliefs.predict(np.ones(len(rows)), rows)
    scores = screened(beliefs.seen(rows), founded.levels, beliefs.screen_rows(founded)).astype(np.float64)
    np.fill_diagonal(scores, np.inf)
    precision, nearest = ranked(scores, own)
    known = beliefs.log_density_of_scores(beliefs.screen(beliefs.seen(coordinates)).astype(np.float64))
    fits = known.max(axis=1) + model.new_surprise(coordinates)
    right = float((known.argmax(axis=1) == classes)[~new].mean())
    return {"precision": precision, "nearest": nearest, "known": right, "apart": above(fits[~new], fits[new])}


def ranked(scores: Floats, classes: Ints) -> tuple[float, float]:
    """Return mean average precision at R, and how often the smallest of scores ``(N, N)`` is of the own class."""
    same = classes[np.argsort(scores, axis=1, kind="stable")] == classes[:, None]
    others = np.bincount(classes)[classes] - 1
    precisions = []
    for hits, number in zip(same[others > 0], others[others > 0], strict=True):
        first = hits[:number]
        precisions.append((first * first.cumsum() / np.arange(1, number + 1)).sum() / number)
    return float(np.mean(precisions)), float(same[others > 0, 0].mean())


def above(first: Floats, second: Floats) -> float:
    """Return the chance that one of the first values is above one of the second (area under the ROC curve)."""
    ranks = rankdata(np.concatenate([first, second]))
    return float((ranks[: len(first)].sum() - len(first) * (len(first) + 1) / 2) / (len(first) * len(second)))


class Study:
    """One labelled half of a data set, on which heads are trained and judged."""

    def __init__(self, experiment: Experiment, config: TalonConfig, backbone: Backbone) -> None:
        self.experiment, self.config, self.backbone = experiment, config, backbone
        self.labelled = experiment.labelled
        names = list(self.labelled.names)
        truth = experiment.truth[experiment.rest]
        place = {name: number for number, name in enumerate([*names, *sorted(set(truth) - set(names))])}
        self.classes: Ints = np.array([place[name] for name in truth])

    def trained(self, variant: str) -> PairedHead:
        """Train a head as a variant says, beside the pre-trained one."""
        offline = replace(self.config.offline, **VARIANTS[variant])
        encoder = prepared(self.backbone, replace(self.config.offline, trained_texture=False))
        head = copy.deepcopy(encoder.head)
        assert isinstance(head, PairedHead)
        labelled, seed = self.labelled, self.config.seed
        views, labels = labelled.views, labelled.labels
        weights = class_means(encode(head.first, labelled.outputs), labels, labelled.classes)
        if variant == MIXED:
            views, labels, weights = mixed(views, labels, weights, seed)
        names = self.backbone.head_parameter_names(offline.trainable)
        train_head(head.trained, names, views, labels, weights, offline, seed)
        head.learn_textures(_some(labelled.outputs))
        head.centre(*(encode(part, labelled.outputs) for part in head.heads))
        return head

    def measured(self, variant: str) -> Iterator[dict[str, Any]]:
        """Yield a row for the trained head alone, with the default's other parts, and with its own texture as well."""
        started = time.perf_counter()
        head = self.trained(variant)
        seconds = time.perf_counter() - started
        own = Texture(self.backbone.local_size, self.config.offline.texture)
        own.learn(_local(head.trained, _some(self.labelled.outputs)))
        everything, rest = torch.arange(len(self.labelled)), torch.from_numpy(self.experiment.rest)
        labelled = self._parts(head, own, self.labelled.outputs, everything)
        stream = self._parts(head, own, self.experiment._outputs, rest)
        for part in PARTS:
            found = judge(
                labelled[part], self.labelled.labels, stream[part], self.classes, self.config.evidence
            )  # fmt: skip
            yield {"variant": variant, "parts": part, "seed": self.config.seed, "seconds": seconds, **found}

    def _parts(self, head: PairedHead, own: Texture, outputs: TrunkOutputs, index: Tensor) -> dict[str, Tensor]:
        """Return unit features ``(N, D)`` of images ``(N,)``, each way."""
        found: dict[str, list[Tensor]] = {part: [] for part in PARTS}
        with torch.no_grad():
            for few in index.split(256):
                hidden = outputs.take(few)
                beside, alone = head(hidden), head._centred(head.trained(hidden), len(head.heads) - 1)
                texture = own(_local(head.trained, hidden))
                for part, row in (("alone", alone), ("beside", beside), ("both", torch.cat([beside, texture], dim=1))):
                    found[part].append(F.normalize(row, dim=1))
        return {part: torch.cat(rows) for part, rows in found.items()}


def _local(head: torch.nn.Module, hidden: Tensor) -> Tensor:
    """Return local features ``(B, P, C)``."""
    with torch.no_grad():
        local: Tensor = head.describe(hidden)[1]  # type: ignore[operator]  # a backbone with a local_size has it
    return local


def _some(outputs: TrunkOutputs) -> Tensor:
    return outputs.take(torch.arange(0, len(outputs), -(-len(outputs) // TEXTURE_IMAGES)))


def study(dataset: Dataset, backbone: Backbone, config: TalonConfig, variants: Sequence[str]) -> list[dict[str, Any]]:
    """Measure variants on one labelled half, and print each when it is done."""
    rows: list[dict[str, Any]] = []
    place = default_cache_directory() / dataset.name.replace(":", "-")
    with cache_for(backbone, config, place) as cache:
        offline: OfflineConfig = config.offline
        experiment = Experiment(dataset, backbone, offline, config.seed, cache, progress=progress_for(choices.err))
        one = Study(experiment, config, backbone)
        for variant in variants:
            for row in one.measured(variant):
                rows.append(row)
                tell(row)
    return rows


def tell(row: Mapping[str, Any]) -> None:
    """Print a row."""
    values = "  ".join(f"{name} {100 * row[name]:5.1f}" for name in MEASURES)
    print(f"seed {row['seed']}  {row['variant']:26} {row['parts']:7} {values}", flush=True)  # noqa: T201 - a script speaks to a terminal


def main(words: Sequence[str]) -> int:
    """Measure, print and write."""
    parser = options("Which training of the head helps new classes.", seeds="0")
    parser.add_argument("--only", help="names of variants, with commas")
    given = parser.parse_args(words)
    on = chosen(given)
    variants = given.only.split(",") if given.only else list(VARIANTS)
    halves = [replace(on.config, seed=seed) for seed in on.seeds]
    rows = [row for config in halves for row in study(on.dataset, on.backbone, config, variants)]
    content = {"dataset": on.dataset.name, "seeds": on.seeds, "parts": PARTS, "rows": rows}
    write(given.output, "representation.py", words, content)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
