"""Two sites that learned apart and are joined, beside one stream that saw everything.

    TALON_DATA=/data OMP_NUM_THREADS=1 python benchmarks/sites.py --fits runs/sites -o benchmarks/results/sites.json

Models that are in ``--fits`` are used, missing ones are fitted and kept there.
The stream's images of Oxford-IIIT Pet are dealt out to two sites. ``overlap``: of the classes that the model does not
know each site sees two thirds, a third is seen at both. ``same``: each sees half of the images of every class. Known
classes are seen at both. A discovered category is of the class that most of its images have. A match is right if both
categories are of one class; a class can be found if both sites have a category of it with two images or more.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from talon_ocd import Catalog, Talon, TalonConfig
from talon_ocd.catalog.joining import Joined, join
from talon_ocd.cli import choices
from talon_ocd.durable import Journal
from talon_ocd.evaluation.datasets import load_dataset
from talon_ocd.evaluation.protocol import default_cache_directory
from talon_ocd.evaluation.splits import split
from talon_ocd.images import ImageItem
from talon_ocd.metrics import strict_accuracy
from talon_ocd.offline import TrunkOutputs
from talon_ocd.saved import write_files
from talon_ocd.talon import cache_for

LEAST = 2
"""Images that a category needs to be one that could be matched."""
RULES: dict[str, dict[str, Any]] = {"evidence": {}, "cosine": {"threshold": 0.5}}
"""Options of the streams; 0.5 is a cosine by which categories of these features are large but not mixed."""
DEALS = ("overlap", "same")
FOUND = ("classes", "right", "wrong")


class Pets:
    """The images of one seed with a model that was fitted to the labelled ones."""

    def __init__(self, root: Path | None, seed: int, fit: Path) -> None:
        there = (fit / "config.json").is_file()
        config = replace(TalonConfig(), seed=seed)
        self.talon = Talon.from_pretrained(fit) if there else Talon("efficientnet-lite0", config)
        self.seed = seed
        dataset = load_dataset("pets", root)
        with cache_for(self.talon.backbone, config, default_cache_directory()) as cache:
            self.outputs: TrunkOutputs = cache.outputs(dataset.items, 0)
            self.items: list[ImageItem] = [dataset.items[at] for at in self.outputs.kept]
            parts = split(self.items, dataset.known, seed, "gcd")
            if not there:
                self.talon.fit([self.items[at] for at in parts.labelled], cache=cache)
                self.talon.save_pretrained(fit)
        self.rest = np.random.default_rng(seed).permutation(parts.rest)
        self.classes = np.array([str(item.label) for item in self.items])

    def deal(self, how: str) -> list[Any]:
        """Return the positions of each site's images, in the order that they come."""
        random = np.random.default_rng([self.seed, 1])
        site = random.integers(0, 2, len(self.rest))
        new = random.permutation(sorted(set(self.classes[self.rest]) - set(self.talon.names)))
        if how == "overlap":
            thirds = np.array_split(new, 3)
            site[np.isin(self.classes[self.rest], thirds[0])] = 0
            site[np.isin(self.classes[self.rest], thirds[1])] = 1
        return [self.rest[site == number] for number in (0, 1)]

    def answer(self, folder: Path, images: Any, rule: str) -> None:
        """Answer images with a stream in a folder."""
        with self.talon.stream(folder, **RULES[rule]) as stream:
            stream.observe_hidden(self.outputs.take(torch.from_numpy(images)), [self.items[at] for at in images])


def measure(pets: Pets, how: str, rule: str) -> dict[str, Any]:
    """Let two sites answer, join them, and answer everything with one stream."""
    sites = pets.deal(how)
    order = np.concatenate(sites)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for name, images in (("a", sites[0]), ("b", sites[1]), ("one", order)):
            pets.answer(work / name, images, rule)
        joined = join([work / "a", work / "b"], work / "c", pets.talon.stream)
        apart, together = answers(work / "c")
        alone, _ = answers(work / "one")
    truth = pets.classes[order]
    strict = {
        name: asdict(strict_accuracy(truth, np.array(ids), list(pets.talon.names)))
        for name, ids in (("one", alone), ("apart", apart), ("joined", together))
    }
    found = {"one": len(set(alone)), "apart": len(set(apart)), "joined": len(set(together))}
    return {"seed": pets.seed, "deal": how, "rule": rule, **count(joined, truth, apart), "strict": strict,
            "categories": found}  # fmt: skip


def answers(folder: Path) -> tuple[list[int], list[int]]:
    """Return the categories that were answered, and what they have become."""
    journal = Journal(folder)
    ids = [row["category"] for row in journal.query("SELECT category FROM decisions ORDER BY idx")]
    catalog = Catalog(journal)
    ends = {category: catalog.resolve(category) for category in set(ids)}
    journal.close()
    return ids, [ends[category] for category in ids]


def count(joined: Joined, truth: Any, ids: Sequence[int]) -> dict[str, Any]:
    """Say how many matches are right, and what there was to find."""
    members: dict[int, Counter[str]] = {}
    for category, name in zip(ids, truth.tolist(), strict=True):
        members.setdefault(category, Counter())[name] += 1
    most = {category: counts.most_common(1)[0][0] for category, counts in members.items()}
    large = {category for category, counts in members.items() if counts.total() >= LEAST}
    own = [{most[one] for one in large if site.has_category(one)} for site in joined.sites]
    there = own[0] & own[1]
    result: dict[str, Any] = {"to_find": len(there)}
    for answer in ("yes", "later"):
        pairs = [one.match for one in joined.settled if one.answer == answer]
        right = [pair for pair in pairs if most[pair.first] == most[pair.second]]
        result[answer] = {"pairs": len(pairs), "right": len(right), "wrong": len(pairs) - len(right),
                          "classes": len({most[pair.first] for pair in right} & there)}  # fmt: skip
    result["pairs"] = [
        {**asdict(one.match), "right": most[one.match.first] == most[one.match.second],
         "images": [members[one.match.first].total(), members[one.match.second].total()]}
        for one in joined.settled
    ]  # fmt: skip
    return result


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return means over seeds as a Markdown table."""
    lines = [
        "| sites see | rule | classes at both | found | right matches | wrong | asked: right / wrong | Strict All: one "
        "stream | apart | joined |",
        "|---|---|" + "---:|" * 8,
    ]
    for how, rule in dict.fromkeys((row["deal"], row["rule"]) for row in rows):
        own = [row for row in rows if (row["deal"], row["rule"]) == (how, rule)]
        numbers = [_mean(own, *path) for path in (("to_find",), *(("yes", name) for name in FOUND))]
        asked = " / ".join(f"{_mean(own, 'later', what):.1f}" for what in ("right", "wrong"))
        scores = [100 * _mean(own, "strict", name, "all") for name in ("one", "apart", "joined")]
        cells = [*(f"{value:.1f}" for value in numbers), asked, *(f"{value:.1f}" for value in scores)]
        lines.append(f"| {how} | {rule} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(rows: Sequence[dict[str, Any]], *path: str) -> float:
    """Return the mean of a number that rows have at the end of a path."""
    values = []
    for row in rows:
        value: Any = row
        for name in path:
            value = value[name]
        values.append(float(value))
    return sum(values) / len(values)


def main(words: Sequence[str]) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="Two sites, joined, beside one stream.")
    parser.add_argument("--root", type=Path, help="where data sets are; default $TALON_DATA")
    parser.add_argument("--fits", type=Path, required=True, help="folder for fitted models")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file")
    given = parser.parse_args(words)
    usual = os.environ.get("TALON_DATA")
    root = given.root or (Path(usual) if usual else None)
    rows = list(_rows(root, given.fits, [int(word) for word in given.seeds.split(",")]))
    options = {"--seeds": given.seeds, "--fits": given.fits.name, "-o": given.output.name}
    command = shlex.join(["python", "benchmarks/sites.py", *(word for pair in options.items() for word in pair)])
    content = {"command": command, "commit": choices.commit(), "rows": rows}
    text = json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False)
    write_files(given.output.resolve().parent, {given.output.name: f"{text}\n".encode()})
    print(f"{command}\ncommit {content['commit']}\n\n{table(rows)}")  # noqa: T201 - a script speaks to a terminal
    return 0


def _rows(root: Path | None, fits: Path, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    for seed in seeds:
        pets = Pets(root, seed, fits / f"seed-{seed}")
        for how in DEALS:
            for rule in RULES:
                row = measure(pets, how, rule)
                print(json.dumps({name: value for name, value in row.items() if name != "pairs"}), flush=True)  # noqa: T201 - as above
                yield row


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
