"""Match, creation and update of a batch, against a bare matrix product of the same size (room: benchmarks)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.benchmarks.result import Result, Target
from talon_ocd.benchmarks.sizes import Sizes
from talon_ocd.benchmarks.timing import Contender, details, interleaved, ratio
from talon_ocd.benchmarks.twin import OneByOne
from talon_ocd.config import OnlineConfig
from talon_ocd.memory import PrototypeMemory
from talon_ocd.online import FeatureStream
from talon_ocd.progress import SILENT, Progress

PRODUCT = Target("<=", 1.3)
SAME_IDS = Target(">=", 1.0)
THRESHOLD = 0.7
NEW = 0.1
"""Share of queries that belong to no category there is; every category founded by one is met again."""
CHECKED = 2
"""Batches whose ids are compared with the one-by-one twin."""


def measure(sizes: Sizes, progress: Progress = SILENT) -> Iterator[Result]:
    """Measure exact search at every number of prototypes; ``benchmarks/large_memory.py`` measures the index."""
    for number in sizes.prototypes:
        memory = filled(number, sizes.feature_size)
        config = OnlineConfig(threshold=THRESHOLD, adapt=("prototypes",), adapt_every=sizes.batch, index_above=0)
        name = f"decisions/{number // 1000}k"
        yield _same_ids(f"{name}/same-ids", memory, config, sizes, progress)
        yield _cost(f"{name}/product", memory, config, sizes, progress)


def filled(number: int, size: int, seed: int = 0) -> PrototypeMemory:
    """Build a memory as a stream leaves it: a tenth known, the rest appended, room for some more."""
    generator = torch.Generator().manual_seed(seed)
    rows = F.normalize(torch.randn(number, size, generator=generator), dim=1)
    known = max(number // 10, 1)
    memory = PrototypeMemory(rows[:known])
    for part in rows[known:].split(max(known // 4, 1)):
        memory.append(part)
    return memory


def queries(memory: PrototypeMemory, batch: int, seed: int) -> Tensor:
    """Draw unit features ``(B, D)``: most are near a prototype, pairs of the others near each other."""
    generator = torch.Generator().manual_seed(seed)
    new = max(round(NEW * batch), 2)
    place = torch.randint(memory.size, (batch - new,), generator=generator)
    centres = F.normalize(torch.randn(new - new // 2, memory.feature_size, generator=generator), dim=1)
    around = torch.cat([memory.prototypes[place], centres.repeat(2, 1)[:new]])
    noise = torch.randn(around.shape, generator=generator) * (0.3 / memory.feature_size**0.5)
    mixed = torch.randperm(batch, generator=generator)
    return F.normalize(around + noise, dim=1)[mixed]


def same_ids(memory: PrototypeMemory, config: OnlineConfig, batches: int) -> tuple[int, int, int]:
    """Return how many answers were compared with the twin's, how many are equal, and how many founded a category."""
    twin = OneByOne(memory.prototypes, config, memory.known)
    stream = FeatureStream(memory.copy(), config)
    compared = equal = 0
    for seed in range(batches):
        features = queries(stream.memory, config.adapt_every, seed)
        ids = stream.place(features).ids.tolist()
        stream.adapt()
        slow = twin.decide(features)
        twin.update()
        compared += len(ids)
        equal += sum(a == b for a, b in zip(ids, slow, strict=True))
    return compared, equal, stream.memory.size - memory.size


def _same_ids(name: str, memory: PrototypeMemory, config: OnlineConfig, sizes: Sizes, progress: Progress) -> Result:
    with progress.task(f"Same ids, {memory.size} prototypes", CHECKED * sizes.batch, "queries") as task:
        compared, equal, founded = same_ids(memory, config, CHECKED)
        task.advance(compared)
    note = "those of the one-by-one twin"
    return Result(
        name,
        equal / compared,
        "share of ids",
        SAME_IDS,
        note,
        {"compared": compared, "equal": equal, "founded": founded},
    )


def _cost(name: str, memory: PrototypeMemory, config: OnlineConfig, sizes: Sizes, progress: Progress) -> Result:
    start, shape = memory.size, (sizes.batch, memory.size, memory.feature_size)
    repeats = 3 * sizes.repeats  # they are cheap
    batches = iter([queries(memory, sizes.batch, 1000 + seed) for seed in range(repeats + 1)])
    stream = FeatureStream(memory, config)
    works = contenders(stream, batches, start)
    interleaved(works, 1)  # a first turn that doesn't count
    with progress.task(f"Decisions, {start} prototypes", 2 * repeats, "runs") as task:
        timings = interleaved(works, repeats, sizes.seconds, task)
    facts = {"B_K_D": shape, "founded_per_batch": (memory.size - start) / (len(timings["product"].seconds) + 1)}
    note = "of a bare matrix product"
    value = ratio(timings["decisions"], timings["product"])
    return Result(name, value, "x seconds", PRODUCT, note, {**details(timings, "decisions", "product"), **facts})


def contenders(stream: FeatureStream, batches: Iterator[Tensor], columns: int) -> dict[str, Contender]:
    """Return the decisions of one batch, and the product of another with as many prototypes into a ready matrix."""
    last: list[Tensor] = []

    def decisions() -> Callable[[], object]:
        features = next(batches)
        last[:] = [features]
        return lambda: _decide(stream, features)

    def product() -> Callable[[], object]:
        features, prototypes = last[0], stream.memory.prototypes[:columns]
        out = torch.empty(len(features), columns)
        out.zero_()
        return lambda: torch.mm(features, prototypes.T, out=out)

    return {"decisions": decisions, "product": product}


def _decide(stream: FeatureStream, features: Tensor) -> None:
    stream.place(features)
    stream.adapt()
