"""The stream with both adaptations on, against the bare forward pass and the two-forward twin (room: benchmarks)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from talon_ocd.backbones import Backbone
from talon_ocd.benchmarks.result import Result, Target
from talon_ocd.benchmarks.scenes import ENCODERS, Scene, scene
from talon_ocd.benchmarks.sizes import Sizes
from talon_ocd.benchmarks.timing import Contender, Timing, details, interleaved, ratio
from talon_ocd.benchmarks.twin import TwoForward
from talon_ocd.errors import BackboneError
from talon_ocd.memory import PrototypeMemory
from talon_ocd.online import DiscoveryStream
from talon_ocd.progress import SILENT, Progress

FORWARD = {"lite0": Target(">=", 0.8), "vit-b16": Target(">=", 0.85)}
TWO_FORWARD = Target(">=", 1.7)
UNIT = "x images/s"


def measure(sizes: Sizes, progress: Progress = SILENT) -> Iterator[Result]:
    """Measure every encoder at one batch: decoded pixels in, decisions out."""
    for name, build in ENCODERS.items():
        try:
            backbone = build(sizes)
        except BackboneError as error:
            yield Result(f"stream/{name}/forward", None, UNIT, FORWARD[name], str(error))
            yield Result(f"stream/{name}/two-forward", None, UNIT, TWO_FORWARD, str(error))
            continue
        yield from _compare(name, backbone, sizes, progress)


def _compare(name: str, backbone: Backbone, sizes: Sizes, progress: Progress) -> Iterator[Result]:
    view = scene(backbone, sizes.batch)
    with progress.task(f"Stream, {name}", 3 * sizes.repeats, "runs") as task:
        timings = interleaved(contenders(backbone, view), sizes.repeats, sizes.seconds, task)
    facts = {"images_per_second": _rates(timings, sizes.batch), "batch": sizes.batch, "founded": view.founded}
    facts |= {"known": len(view.known), "architecture": backbone.architecture()}
    for other, target, note in (
        ("forward", FORWARD[name], "of the bare forward pass"),
        ("two-forward", TWO_FORWARD, "of the released formulation"),
    ):
        value = ratio(timings[other], timings["stream"])
        yield Result(
            f"stream/{name}/{other}", value, UNIT, target, note, {**details(timings, other, "stream"), **facts}
        )


def contenders(backbone: Backbone, view: Scene) -> dict[str, Contender]:
    """Return the bare forward pass, the stream and the twin; each repeat starts from the same state."""

    def forward() -> Callable[[], object]:
        return lambda: _forward(backbone, view)

    def stream() -> Callable[[], object]:
        fresh = DiscoveryStream(backbone, PrototypeMemory(view.known), view.config)
        return lambda: observe(fresh, view)

    def two_forward() -> Callable[[], object]:
        twin = TwoForward(backbone, view.known, view.config)
        return lambda: twin.observe(view.pixels)

    return {"forward": forward, "stream": stream, "two-forward": two_forward}


def observe(stream: DiscoveryStream, view: Scene) -> list[int]:
    """Send the batch through trunk and stream; returns the ids."""
    with torch.no_grad():
        hidden = stream.backbone.trunk(view.pixels)
    decisions = stream.observe_hidden(hidden, [""] * len(hidden))
    return [decision.category for decision in decisions]


def _forward(backbone: Backbone, view: Scene) -> None:
    with torch.no_grad():
        backbone(view.pixels)


def _rates(timings: dict[str, Timing], batch: int) -> dict[str, Any]:
    return {name: float(f"{batch / timing.median:.4g}") for name, timing in timings.items()}
