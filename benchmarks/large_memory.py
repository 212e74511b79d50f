"""How fast and how right an index over very many prototypes is, beside exact search.

    OMP_NUM_THREADS=1 python benchmarks/large_memory.py -o benchmarks/results/large-memory.json
    OMP_NUM_THREADS=1 python benchmarks/large_memory.py --sizes 10000,50000 --images 1024   # minutes

The world is made up: a tree of categories, as species have genera, families and orders. Those of one genus have a
cosine of 0.65, of one family 0.4, of one order 0.2. The spread of features falls off with the dimension, as that of an
encoder's features does. Images lie around their category, some clearly, some not (about one in forty of a category
that is there already is too far away from it to join). Half of them are of a thousand popular categories, so that
prototypes move; some are of categories that nobody has seen yet, several images each. ``--flat`` has genera only, and
loose ones (0.36): there is nothing that leads a search, which is the hardest that there is for an index.

Two streams answer the same images in batches of 64, in turns: one with exact search, one with the index. Both learn,
each from its own answers. Answers agree if the image joins the same category; a discovered one is known by the image
that founded it. Times are processor seconds of answering and learning together. Memory is what the process holds more
(resident) with a filled memory and its index than before, against the vectors in float32.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import shlex
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.cli import choices
from talon_ocd.config import OnlineConfig
from talon_ocd.memory import CandidateIndex, PrototypeMemory
from talon_ocd.online import Bounds, Decision, FeatureStream
from talon_ocd.saved import write_files

BATCH = 64
TREE, FLAT = (0.2, 0.2, 0.25), (0.36,)
"""What orders, families and genera have of the squared length of a category."""
POPULAR = 1000
THRESHOLD = 0.7
"""τ: far above what most new categories have to their nearest one, below most images of old ones."""
CLEARNESS, SPREAD = 0.5, 0.35
"""Median length of what lies between an image and its category, and the standard deviation of its logarithm."""
WARM = 4
"""Batches before times are taken: in one of them the storage grows by half, as it does once in many thousands."""
CHUNK = 10_000
STEP = 100_000


class World:
    """Categories and images of them; the same seed gives the same ones."""

    def __init__(self, number: int, size: int, shares: Sequence[float], seed: int = 0) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self._scale = torch.arange(1, size + 1).float() ** -0.25
        self._branches = max(round(number ** (1 / (len(shares) + 1))), 2)
        self._ranks = [self._directions(self._branches ** (rank + 1)) for rank in range(len(shares))]
        self._shares, self._number = shares, number

    def prototypes(self) -> Tensor:
        """Return the categories that are there from the start ``(K, D)``."""
        rows = torch.empty(self._number, len(self._scale))
        for start in range(0, self._number, CHUNK):
            part = rows[start : start + CHUNK]
            part[:] = self.categories(len(part))
        return rows

    def categories(self, number: int) -> Tensor:
        """Return more categories ``(N, D)``."""
        genus = torch.randint(len(self._ranks[-1]), (number,), generator=self._random)
        rows = (1 - sum(self._shares)) ** 0.5 * self._directions(number)
        for above, (directions, share) in enumerate(zip(reversed(self._ranks), reversed(self._shares), strict=True)):
            rows += share**0.5 * directions[genus // self._branches**above]
        return F.normalize(rows, dim=1)

    def images(self, prototypes: Tensor, number: int, new: float) -> Tensor:
        """Return images ``(N, D)``, a share ``new`` of them of new categories, about five of each."""
        unseen = self.categories(max(int(number * new) // 5, 1))
        old = torch.randint(len(prototypes), (number,), generator=self._random)
        popular = torch.rand(number, generator=self._random) < 0.5
        old[popular] %= POPULAR
        is_new = torch.rand(number, generator=self._random) < new
        centres = prototypes[old]
        centres[is_new] = unseen[torch.randint(len(unseen), (int(is_new.sum()),), generator=self._random)]
        lengths = CLEARNESS * torch.exp(SPREAD * torch.randn(number, 1, generator=self._random))
        return F.normalize(centres + lengths * self._directions(number), dim=1)

    def _directions(self, number: int) -> Tensor:
        return F.normalize(torch.randn(number, len(self._scale), generator=self._random) * self._scale, dim=1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every size and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes", default="10000,20000,30000,50000,100000,1000000", help="prototypes, separated by commas"
    )
    parser.add_argument("--dimensions", type=int, default=256)
    parser.add_argument("--images", type=int, default=8192)
    parser.add_argument("--new", type=float, default=0.03, help="share of images of new categories")
    parser.add_argument("--flat", action="store_true", help="a world without ranks")
    parser.add_argument(
        "--half", action="store_true", help="hold the prototypes of the index's stream in half precision"
    )
    parser.add_argument("-o", "--out", type=Path, help="write the figures as JSON")
    chosen = parser.parse_args(arguments)
    rows = []
    for number in map(int, chosen.sizes.split(",")):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:  # nothing is resident yet
            rows.append(apart.submit(measure, number, chosen).result())
        print(json.dumps(rows[-1]), flush=True)  # noqa: T201 - a script speaks to a terminal
    print(table(rows))  # noqa: T201
    facts = {"command": shlex.join(["python", *sys.argv]), "commit": choices.commit(), "load": os.getloadavg()[0]}
    if chosen.out:
        result = json.dumps(
            {**facts, "machine": platform.processor(), "torch": torch.__version__, "rows": rows}, indent=1
        )
        write_files(chosen.out.parent, {chosen.out.name: result.encode()})


def measure(number: int, chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one size."""
    torch.set_num_threads(1)  # those of numpy are set by OMP_NUM_THREADS
    world, vectors = World(number, chosen.dimensions, FLAT if chosen.flat else TREE), 4 * number * chosen.dimensions
    prototypes = world.prototypes()
    images = world.images(prototypes, chosen.images, chosen.new)
    config = OnlineConfig(threshold=THRESHOLD, adapt=("prototypes",), adapt_every=BATCH, index_above=0)
    bounds = Bounds(most_categories=10 * number)
    built(PrototypeMemory(prototypes[:POPULAR]))  # libraries allocate their own buffers at the first use
    before = resident()
    memory = PrototypeMemory(prototypes, known=number // 10)
    with_index = replace(config, index_above=1, half_precision=chosen.half)
    quick = FeatureStream(memory, with_index, bounds=bounds)
    index, build = built(memory)
    held = resident() - before
    slow = FeatureStream(PrototypeMemory(prototypes, number // 10), config, bounds=bounds)
    del prototypes
    exact, found, seconds = answers(slow, quick, images)
    same = sum(one == other for one, other in zip(named(exact, number), named(found, number), strict=True))
    return {
        "prototypes": number,
        "exact_ms": round(1e3 * seconds[0], 2),
        "index_ms": round(1e3 * seconds[1], 2),
        "times_faster": round(seconds[0] / seconds[1], 2),
        "agreement": same / len(images),
        "differ": len(images) - same,
        "founded": sum(answer.verdict == "new" for answer in exact),
        "exact_share": round(index.exact_rows / len(images), 5),
        "memory": round(held / vectors, 3),
        "build_cpu_seconds": round(build[0], 1),
        "build_seconds": round(build[1], 1),
        "inserted": index.indexed - number,
    }


def built(memory: PrototypeMemory) -> tuple[CandidateIndex, tuple[float, float]]:
    """Put all prototypes into the index at once, with news of how it goes; returns processor and clock seconds too."""
    cpu, clock, done = time.process_time(), time.perf_counter(), 0
    while new := memory.fill_index(1):
        done += new
        if done // STEP > (done - new) // STEP:
            seconds = time.process_time() - cpu
            print(f"{done:,} in the index, {seconds:.0f} s", file=sys.stderr, flush=True)  # noqa: T201
    assert memory.index is not None
    return memory.index, (time.process_time() - cpu, time.perf_counter() - clock)


def answers(
    slow: FeatureStream, quick: FeatureStream, images: Tensor
) -> tuple[list[Decision], list[Decision], tuple[float, float]]:
    """Answer images with both, batch by batch in turns; returns the mean processor seconds of a batch, too."""
    exact: list[Decision] = []
    found: list[Decision] = []
    seconds = [0.0, 0.0]
    for number, batch in enumerate(images.split(BATCH)):
        for place, (stream, given) in enumerate(((slow, exact), (quick, found))):
            start = time.process_time()
            given += stream.observe_many(batch)
            if number >= WARM:
                seconds[place] += time.process_time() - start
    counted = number + 1 - WARM
    return exact, found, (seconds[0] / counted, seconds[1] / counted)


def named(given: list[Decision], number: int) -> list[int]:
    """Return the category of each answer: its id, or K and the index of the image that founded it."""
    founders: dict[int, int] = {}
    for answer in given:
        founders.setdefault(answer.category, number + answer.index)
    return [answer.category if answer.category < number else founders[answer.category] for answer in given]


def resident() -> int:
    """Return the bytes of memory that the process holds by now."""
    statm = Path("/proc/self/statm")
    if not statm.is_file():  # no Linux: the most it ever held
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(statm.read_text().split()[1]) * resource.getpagesize()


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the figures as a table of Markdown."""
    head = "| prototypes | exact, a batch | index, a batch | faster | agree | exact search | memory | build |"
    lines = [
        f"| {row['prototypes']:,} | {row['exact_ms']:.1f} ms | {row['index_ms']:.1f} ms | {row['times_faster']:.1f}x "
        f"| {row['agreement']:.3%} | {row['exact_share']:.2%} | {row['memory']:.2f}x "
        f"| {row['build_cpu_seconds']:.0f} s |"
        for row in sorted(rows, key=lambda row: int(row["prototypes"]))
    ]
    return "\n".join([head, "|---" * 8 + "|", *lines])


if __name__ == "__main__":
    main()
