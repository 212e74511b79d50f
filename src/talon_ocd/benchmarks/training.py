"""Training from the trunk cache, against the bare head and against uncached training (room: benchmarks).

A step of the trainer gathers rows from the cache, encodes, computes the losses, differentiates and moves the head with
AdamW. The bare head is its forward and backward pass on rows that are there already, for gradients of the very same
parameters: no gathering, no loss but a sum, no optimiser.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor

from talon_ocd.backbones import Backbone
from talon_ocd.benchmarks.result import Result, Target
from talon_ocd.benchmarks.scenes import ENCODERS
from talon_ocd.benchmarks.sizes import Sizes
from talon_ocd.benchmarks.timing import collected, details, ratio, timed
from talon_ocd.config import TalonConfig
from talon_ocd.errors import BackboneError
from talon_ocd.offline.row_store import KEY_BYTES, RowStore
from talon_ocd.offline.trainer import CachedViews, Views, train_head
from talon_ocd.offline.trunk_cache import TrunkOutputs
from talon_ocd.progress import SILENT, Progress, Task

STEP = Target("<=", 1.25)
UNCACHED = {"lite0": Target(">=", 3.0), "vit-b16": Target(">=", 4.0)}
Seconds = tuple[float, float]
"""By the clock, and of the processors."""
VIEWS = 2
CLASSES = 10
TURNS = 7
"""Most turns of the step comparison; each trains for several steps."""


class StepClock:
    """A progress that notes when each training step ends."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []

    @contextmanager
    def task(self, name: str, total: int | None = None, unit: str = "images") -> Iterator[Task]:
        """Watch the training."""
        yield self

    def advance(self, amount: int = 1, **facts: float | str) -> None:
        """Note the time at the end of a step; the trainer's first call (0 images) is its start."""
        self.ends.append((time.perf_counter(), time.process_time()))

    def note(self, message: str) -> None:
        """Ignore remarks."""

    def step(self) -> Seconds:
        """Return the median seconds of a step; of several, the first doesn't count (it allocates AdamW's moments)."""
        steps = [(end[0] - start[0], end[1] - start[1]) for start, end in pairwise(self.ends)]
        return _medians(steps[1:] or steps)


@dataclass(frozen=True)
class UncachedViews:
    """Runs the trunk on pixels that are decoded and augmented already, at every step."""

    backbone: Backbone
    pixels: Tensor

    def pair(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Return hidden of two views of each image."""
        with torch.no_grad():
            pixels = self.pixels[index % len(self.pixels)]
            return torch.stack([self.backbone.trunk(pixels), self.backbone.trunk(pixels)])


def measure(sizes: Sizes, progress: Progress = SILENT) -> Iterator[Result]:
    """Measure every encoder."""
    for name, build in ENCODERS.items():
        try:
            backbone = build(sizes)
        except BackboneError as error:
            yield Result(f"training/{name}/step", None, "x seconds", STEP, str(error))
            yield Result(f"training/{name}/uncached", None, "x images/s", UNCACHED[name], str(error))
            continue
        yield _against_bare_head(name, backbone, sizes, progress)
        yield _against_uncached(name, backbone, sizes, progress)


def _against_bare_head(name: str, backbone: Backbone, sizes: Sizes, progress: Progress) -> Result:
    outputs = cached(backbone, 2 * sizes.train_batch)
    hidden = CachedViews(outputs).pair(torch.arange(sizes.train_batch), torch.Generator()).flatten(0, 1)
    found: dict[str, list[Seconds]] = {"step": [], "head": []}
    ends = time.perf_counter() + sizes.seconds
    with progress.task(f"Training, {name}", TURNS * sizes.train_steps, "steps") as task:
        for turn in range(min(TURNS, sizes.repeats)):
            if turn >= 3 and time.perf_counter() > ends:
                break
            found["step"].append(steps(backbone, CachedViews(outputs), sizes.train_batch, sizes.train_steps))
            found["head"].append(bare_head(backbone, hidden, sizes.train_steps))
            task.advance(sizes.train_steps)
    timings = {part: collected(times) for part, times in found.items()}
    facts = {"batch": sizes.train_batch, "rows": 2 * sizes.train_batch, "hidden_shape": backbone.hidden_shape}
    value = ratio(timings["step"], timings["head"])
    note = "of the bare head, forward + backward"
    return Result(
        f"training/{name}/step", value, "x seconds", STEP, note, {**details(timings, "step", "head"), **facts}
    )


def _against_uncached(name: str, backbone: Backbone, sizes: Sizes, progress: Progress) -> Result:
    batch, side = sizes.fresh_batch, backbone.preprocessing.crop
    outputs = cached(backbone, 2 * batch)
    pixels = torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(0))
    found: dict[str, list[Seconds]] = {"uncached": [], "cached": []}
    turns = min(3, sizes.repeats)
    with progress.task(f"Uncached training, {name}", turns, "turns") as task:
        for _ in range(turns):
            found["uncached"].append(steps(backbone, UncachedViews(backbone, pixels), batch, 1))
            found["cached"].append(steps(backbone, CachedViews(outputs), batch, sizes.train_steps))
            task.advance()
    timings = {part: collected(times) for part, times in found.items()}
    rates = {part: float(f"{batch / timing.median:.4g}") for part, timing in timings.items()}
    facts = {"batch": batch, "images_per_second": rates}
    note = "of uncached training (no decoding)"
    return Result(
        f"training/{name}/uncached",
        ratio(timings["uncached"], timings["cached"]),
        "x images/s",
        UNCACHED[name],
        note,
        {**details(timings, "uncached", "cached"), **facts},
    )


def cached(backbone: Backbone, images: int) -> TrunkOutputs:
    """Fill a trunk cache with rows of the right shape; what they hold doesn't change the speed."""
    store, generator = RowStore(backbone.hidden_shape), torch.Generator().manual_seed(0)
    total = VIEWS * images
    store.reserve(total)
    for number in range(total):
        key = number.to_bytes(KEY_BYTES, "big")
        store.append([key], torch.randn(1, *backbone.hidden_shape, generator=generator))
    views = torch.arange(total).view(VIEWS, images)
    numbers = torch.cat([views[:1], views])  # there is no clean view: nobody asks for it
    return TrunkOutputs((store, store), numbers, list(range(images)), [], torch.device("cpu"))


def steps(backbone: Backbone, views: Views, batch: int, number: int) -> Seconds:
    """Train a copy of the head for ``number`` steps and return the seconds of one."""
    config = TalonConfig.official(backbone.family).override(batch_size=batch, epochs=1).offline
    labels = torch.arange(batch * number) % CLASSES
    initial = torch.randn(CLASSES, backbone.feature_size, generator=torch.Generator().manual_seed(0))
    clock = StepClock()
    names = backbone.head_parameter_names(config.trainable)
    train_head(copy.deepcopy(backbone.head), names, _Wrapped(views, 2 * batch), labels, initial, config, 0, clock)
    return clock.step()


@dataclass(frozen=True)
class _Wrapped:
    """Lets few images play many: numbers wrap around."""

    views: Views
    images: int

    def pair(self, index: Tensor, generator: torch.Generator) -> Tensor:
        return self.views.pair(index % self.images, generator)


def bare_head(backbone: Backbone, hidden: Tensor, number: int) -> Seconds:
    """Return the median seconds of forward and backward of the head on rows ``(2B, *hidden_shape)``."""
    head = copy.deepcopy(backbone.head).requires_grad_(False)
    named = dict(head.named_parameters())
    parameters = [named[name] for name in backbone.head_parameter_names("head")]
    for parameter in parameters:
        parameter.requires_grad_(True)

    direction = torch.randn(len(hidden), backbone.feature_size, generator=torch.Generator().manual_seed(0))

    def work() -> Callable[[], None]:
        for parameter in parameters:
            parameter.grad = None
        return lambda: (head(hidden) * direction).sum().backward()

    return _medians([timed(work) for _ in range(number)][1:])


def _medians(times: Sequence[Seconds]) -> Seconds:
    return median(clock for clock, _ in times), median(cpu for _, cpu in times)
