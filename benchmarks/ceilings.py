"""Ceilings beside the evidence rule, on the very features that its streams decide on.

    python benchmarks/ceilings.py --dataset pets --fits runs/pets -o ceilings.json

``--fits`` is an output folder of ``talon evaluate`` with the same settings: its fits are used, missing ones are made
and kept there. All but the streams look at true labels or at their number: they say what is left to win, not how.
The last rows are an experiment: ψ and the mean of class means, estimated again from what the stream has found.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import chosen, options, write
from reestimation import MATURE, ReestimatingMethod, evidence_of
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.cli import choices
from talon_ocd.cli.display import progress_for
from talon_ocd.config import EvidenceConfig
from talon_ocd.evaluation.datasets import Dataset
from talon_ocd.evaluation.grid import Grid
from talon_ocd.evaluation.plan import Cell, Plan
from talon_ocd.evaluation.protocol import Experiment, default_cache_directory, score
from talon_ocd.evaluation.rows import PARTS, Row, group_rows, spread
from talon_ocd.memory import Beliefs, PrototypeMemory, Recent
from talon_ocd.memory.beliefs import Ints
from talon_ocd.memory.two_covariance import Floats
from talon_ocd.methods import Trained, get_method
from talon_ocd.methods.evidence import EvidenceMethod
from talon_ocd.online import Evidence, EvidenceRule

RESTARTS = 5
L2 = (1e-3, 1e-2, 1e-1, 1.0)
NEVER_NEW = -1e6
"""An offset that all evidence passes."""
WHAT = {
    "evidence": "the method: one answer an image, in order, the number of classes unknown",
    "kmeans": f"offline k-means with the true number of classes on the rule's coordinates, best of {RESTARTS} starts",
    "kmeans-features": "the same on the unit features that the coordinates are made of",
    "true-means": "the rule with the true mean of every class over the stream's images; nothing is new, nothing learns",
    "true-means-left-out": "the same, each image judged by the mean of the others of its class",
    "probe": "multinomial logistic regression on the features, L2 chosen on half of its training images; trained on "
    "half of the stream's images of each class with their labels, scored on the other half only",
    "evidence-psi": f"the method, ψ estimated again from categories of {MATURE} members or more at second thoughts",
    "evidence-mean": "the method, the mean of class means estimated again from the same",
    "evidence-psi-mean": "the method, both estimated again",
}


def k_means(points: Floats, clusters: int, seed: int) -> Ints:
    """Return the cluster of every point ``(N, d)``: k-means++, the best of some starts."""
    found: Ints = KMeans(clusters, n_init=RESTARTS, random_state=seed).fit_predict(points).astype(np.int64)
    return found


def by_true_means(evidence: Evidence, config: EvidenceConfig, features: Tensor, classes: Ints) -> Ints:
    """Return what the rule answers to features ``(N, D)`` if it starts with the mean of each of their classes."""
    beliefs = true_beliefs(evidence, features, classes)
    oracle = replace(evidence, counts=beliefs.counts, sums=beliefs.sums, offset=NEVER_NEW)
    rule = EvidenceRule(oracle, config, learns=False)
    return rule.look(features, PrototypeMemory(features[:1])).ids  # it asks its beliefs, not the memory


def by_true_means_left_out(evidence: Evidence, features: Tensor, classes: Ints) -> Ints:
    """Return the same with every image left out of its own class: second thoughts about true answers."""
    recent = Recent(len(classes), evidence.model.size)
    recent.add(evidence.model.coordinates(features), classes)
    recent.rethink(true_beliefs(evidence, features, classes), -np.inf, sweeps=1)
    return recent.thoughts()[2]


def true_beliefs(evidence: Evidence, features: Tensor, classes: Ints) -> Beliefs:
    """Return beliefs that hold features ``(N, D)`` as members of their true classes ``(N,)``."""
    counts = np.bincount(classes).astype(np.float64)
    sums = np.zeros((len(counts), evidence.model.size))
    np.add.at(sums, classes, evidence.model.coordinates(features))
    return Beliefs(evidence.model, counts, sums)


def probe(features: Tensor, classes: Ints, seed: int) -> tuple[Ints, Ints]:
    """Return the images that a linear probe was not trained on, and the classes that it gives them."""
    training, tested = halves(classes, np.random.default_rng(seed).permutation(len(classes)))
    labels = torch.from_numpy(classes)
    inner, held = halves(classes[training], np.arange(len(training)))
    inner, held = training[inner], training[held]

    def held_out_accuracy(weight: float) -> float:
        found = logistic(features[inner], labels[inner], features[held], weight)
        return float((found == labels[held]).double().mean())

    best = max(L2, key=held_out_accuracy)
    return tested, logistic(features[training], labels[training], features[tested], best).numpy()


def halves(classes: Ints, order: Ints) -> tuple[Ints, Ints]:
    """Deal images of each class out in turn, in ``order``; returns their positions. A single one goes to the first."""
    taken = np.zeros(classes.max() + 1, np.int64)
    parts: tuple[list[int], list[int]] = ([], [])
    for position in order:
        parts[taken[classes[position]] % 2].append(position)
        taken[classes[position]] += 1
    return np.array(parts[0], np.int64), np.array(parts[1], np.int64)


def logistic(features: Tensor, labels: Tensor, others: Tensor, weight: float) -> Tensor:
    """Fit multinomial logistic regression to features ``(N, D)``; returns the classes of others ``(M,)``."""
    centre = features.mean(dim=0)
    scale = (features - centre).std()
    inputs = (features - centre) / scale
    slopes = torch.zeros(features.shape[1], int(labels.max()) + 1, requires_grad=True)
    offsets = torch.zeros(slopes.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([slopes, offsets], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(inputs @ slopes + offsets, labels) + 0.5 * weight * slopes.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        return (((others - centre) / scale) @ slopes + offsets).argmax(dim=1)


class Ceilings(Grid):
    """A grid of one method that measures what is around it, with the fits of its folder."""

    def measure(self, dataset: Dataset) -> Iterator[dict[str, Any]]:
        """Yield all rows, seed by seed."""
        for seed in self.plan.seeds:
            yield from self._sampling(dataset, seed, self.plan.by_recipe())

    def _cell(self, experiment: Experiment, cell: Cell, trained: Trained) -> Iterator[dict[str, Any]]:
        method, known = cell.method, experiment.dataset.known
        features, truth = experiment.features(method, trained), experiment.truth[experiment.rest]
        assert features is not None and isinstance(method, EvidenceMethod)
        for what, images, ids in offline(trained, method, features.values, truth, experiment.seed):
            yield self._ceiling(experiment, what, 0, score(truth[images], ids, known))
        again = [ReestimatingMethod(method.recipe, parts=parts) for parts in (("psi",), ("mean",), ("psi", "mean"))]
        for number in range(self.plan.orders):
            order = experiment.order("shuffled", number)
            for one in (method, *again):
                what = "-".join(["evidence", *getattr(one, "parts", ())])
                scores = experiment.score(experiment.run(one, trained, order, features))
                yield self._ceiling(experiment, what, number, scores)

    def _ceiling(self, experiment: Experiment, what: str, number: int, scores: dict[str, Any]) -> dict[str, Any]:
        """Return a row like those of ``talon evaluate``, as far as a ceiling has one."""
        kept = {name: scores[name] for name in ("strict", "greedy", "categories")}
        order = {"kind": self.plan.order, "number": number}
        return {"dataset": experiment.dataset.name, "method": what, "seed": experiment.seed, "order": order, **kept}


def offline(
    trained: Trained, method: EvidenceMethod, features: Tensor, truth: Any, seed: int
) -> Iterator[tuple[str, Ints, Ints]]:
    """Yield name, images and answers of whatever sees all of the stream's features ``(N, D)`` at once."""
    evidence, everything = evidence_of(trained), np.arange(len(truth))
    names, classes = np.unique(truth, return_inverse=True)
    yield "kmeans", everything, k_means(evidence.model.coordinates(features), len(names), seed)
    yield "kmeans-features", everything, k_means(features.numpy(), len(names), seed)
    yield "true-means", everything, by_true_means(evidence, method.recipe.config.evidence, features, classes)
    yield "true-means-left-out", everything, by_true_means_left_out(evidence, features, classes)
    yield "probe", *probe(features, classes, seed)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and deviation over seeds (and orders); ``gain`` is that of All over the method on the same order."""
    names = [*(("strict", part) for part in PARTS), ("categories", "found"), ("categories", "true")]
    plain = {(one["seed"], one["order"]["number"]): one["strict"]["all"] for one in rows if one["method"] == "evidence"}
    found: dict[str, Any] = {}
    for group in group_rows(Row(one) for one in rows):
        spreads = {name: group.spread(kind, name) for kind, name in names}
        if group.first.method.startswith("evidence-"):
            own = ((one.data["strict"]["all"], one.get("seed"), one.get("order", "number")) for one in group.rows)
            spreads["gain"] = spread(value - plain[seed, number] for value, seed, number in own)
        found[group.first.method] = {name: asdict(value) for name, value in spreads.items() if value is not None}
    return found


def tell(found: dict[str, Any]) -> None:
    """Print the summary."""
    for what in (name for name in WHAT if name in found):
        values = [found[what][part] for part in (*PARTS, "gain") if part in found[what]]
        cells = [f"{100 * value['mean']:5.1f} ± {100 * (value['std'] or 0.0):.1f}" for value in values]
        count = f"{found[what]['found']['mean']:.0f} of {found[what]['true']['mean']:.0f}"
        print(f"{what:20} {count:>10}  {'  '.join(cells)}")  # noqa: T201 - a script speaks to a terminal


def main(words: Sequence[str]) -> int:
    """Measure, print and write."""
    parser = options("Ceilings beside the evidence rule.", seeds="0,1,2")
    parser.add_argument("--fits", type=Path, required=True, help="output folder of talon evaluate")
    parser.add_argument("--orders", type=int, default=3)
    given = parser.parse_args(words)
    on = chosen(given)
    plan = Plan([Cell("evidence", get_method("evidence", on.config))], on.config, on.seeds, given.orders)
    ceilings = Ceilings(plan, on.backbone, given.fits, {}, default_cache_directory(), progress_for(choices.err))
    rows = list(ceilings.measure(on.dataset))
    found = summary(rows)
    content = {"seeds": on.seeds, "orders": given.orders, "what": WHAT, "summary": found, "rows": rows}
    write(given.output, "ceilings.py", words, content)
    tell(found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
