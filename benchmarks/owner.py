"""How many features a second the owner of a memory takes, and where the time goes.

    OMP_NUM_THREADS=1 python benchmarks/owner.py -o benchmarks/results/owner.json

One stream answers made-up features in batches (a tenth belongs to new categories, prototypes adapt after every batch),
in turns with the bare matrix product of the same shapes. Rates are given by the clock and by processor seconds: on a
machine where others are at work only the second say what one core can do. A second pass takes the time of each part of
the work; time inside an inner part doesn't count for the outer one. The last row is an encoder, which the owner needs.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.overrides import TorchFunctionMode

from talon_ocd.backbones import EfficientNetLite0
from talon_ocd.backbones.vectors import Vectors
from talon_ocd.benchmarks import rules
from talon_ocd.benchmarks.decisions import THRESHOLD, filled, queries
from talon_ocd.benchmarks.timing import Timing, interleaved
from talon_ocd.cli import choices
from talon_ocd.config import EvidenceConfig, OnlineConfig
from talon_ocd.durable import DurableStream, Identity, Journal, settings_of
from talon_ocd.images import memory_item
from talon_ocd.memory import Groups, PrototypeMemory
from talon_ocd.online import Bounds, DiscoveryStream, EvidenceRule, FeatureStream
from talon_ocd.saved import write_files

Answer = Callable[[Tensor, int], object]
"""Answers a batch ``(B, D)`` whose first index is given."""
Opened = tuple[Any, Answer, Callable[[], dict[str, Any]]]
"""A stream, how it answers, and further facts about it."""
COORDINATES = 256
"""d of the evidence rule."""
PARTS: dict[str, list[tuple[type, str]]] = {
    "search": [(PrototypeMemory, "nearest")],
    "creation": [(FeatureStream, "place")],
    "update": [(Groups, "add"), (FeatureStream, "adapt"), (FeatureStream, "retire")],
    "second thoughts": [(EvidenceRule, "think_again")],
    "answers": [(FeatureStream, "decisions")],
    "journal": [(Journal, "write")],
    "snapshot": [(DurableStream, "_snapshot")],
}
"""Whose time is whose; the rest of a batch is bookkeeping, and what is a matrix product in it is product."""


class Stopwatch(TorchFunctionMode):
    """Seconds of this thread's processor by part, and those of torch's matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what follows for a part."""
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count the calls of all parts."""
        with ExitStack() as stack:
            for name, methods in PARTS.items():
                for owner, method in methods:
                    original = getattr(owner, method)
                    stack.callback(setattr, owner, method, original)
                    setattr(owner, method, self._timed(name, original))
            yield

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count matrix products."""
        if getattr(func, "__name__", "") not in ("matmul", "__matmul__", "mm"):
            return func(*args, **(kwargs or {}))
        with self.part("product"):
            return func(*args, **(kwargs or {}))

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return method(*args, **kwargs)

        return timed

    def _charge(self) -> None:
        now = time.thread_time()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prototypes", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=768, help="D, dimensions of the features")
    parser.add_argument("--batch", type=int, default=256, help="features that are answered at once, and an adaptation")
    parser.add_argument("--batches", type=int, default=24, help="of each of the two passes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", help="some of the rows, with commas: talon, journal, evidence, encoder")
    parser.add_argument("--output", "-o", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    commit, before = choices.commit(), os.getloadavg()[0]
    wanted = chosen.only.split(",") if chosen.only else ["talon", "journal", "evidence", "encoder"]
    rows = {name: encoder_row() if name == "encoder" else owner_row(name, chosen) for name in wanted}
    result = {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {chosen.threads} threads used",
        "load_average": [round(before, 1), round(os.getloadavg()[0], 1)],
        "shapes": {"K": chosen.prototypes, "D": chosen.size, "B": chosen.batch, "batches": chosen.batches},
        "rows": rows,
    }
    text = json.dumps(result, indent=1) + "\n"
    sys.stdout.write(text)
    if chosen.output:
        write_files(chosen.output.parent, {chosen.output.name: text.encode()})


def owner_row(name: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Return rates and parts of one kind of owner."""
    opened = {"talon": talon, "journal": journal, "evidence": evidence}[name]
    with opened(chosen) as (stream, answer, facts):
        memory = stream.memory
        batches = [queries(memory, chosen.batch, 1000 + seed) for seed in range(2 * chosen.batches + 1)]
        answer(batches.pop(), 0)  # a first turn that doesn't count
        timings = beside_product(stream, answer, batches[: chosen.batches])
        watch, before = Stopwatch(), memory.size
        with watch.watching(), watch:
            for features in batches[chosen.batches :]:
                with watch.part("bookkeeping"):
                    answer(features, stream.answered)
        return {
            **{which: rates(timing, chosen.batch) for which, timing in timings.items()},
            "microseconds_a_feature": {
                part: round(1e6 * seconds / (chosen.batches * chosen.batch), 2)
                for part, seconds in sorted(watch.seconds.items(), key=lambda pair: -pair[1])
            },
            "prototypes": (before + memory.size) // 2,
            **facts(),
        }


def beside_product(
    stream: FeatureStream | DiscoveryStream, answer: Answer, batches: Sequence[Tensor]
) -> dict[str, Timing]:
    """Answer batches in turns with the product of each with the prototypes, into a matrix that is there already."""
    coming, last = iter(batches), [batches[0]]

    def owner() -> Callable[[], object]:
        last[0] = next(coming)
        return lambda: answer(last[0], stream.answered)

    def product() -> Callable[[], object]:
        out = torch.zeros(stream.memory.size, len(last[0]))
        return lambda: torch.mm(stream.memory.prototypes, last[0].T, out=out)

    return interleaved({"owner": owner, "product": product}, len(batches))


def rates(timing: Timing, number: int) -> dict[str, float]:
    """Return things a second: by the median of the clock, by the best turn, and by processor seconds."""
    return {
        "a_second": round(number / timing.median, 1),
        "a_second_at_best": round(number / min(timing.seconds), 1),
        "a_processor_second": round(number * len(timing.cpu) / sum(timing.cpu), 1),
    }


@contextmanager
def talon(chosen: argparse.Namespace) -> Iterator[Opened]:
    """Open a stream with TALON's rule, in memory."""
    stream = FeatureStream(filled(chosen.prototypes, chosen.size), config_of(chosen))
    yield stream, lambda features, first: stream.observe_many(features, sources(first, len(features))), dict


@contextmanager
def evidence(chosen: argparse.Namespace) -> Iterator[Opened]:
    """Open a stream that decides by evidence, with second thoughts."""
    memory = filled(chosen.prototypes, chosen.size)
    scene = rules.scene(memory.prototypes, min(COORDINATES, chosen.size))
    rule = EvidenceRule(scene, EvidenceConfig())
    stream = FeatureStream(memory, config_of(chosen), rule=rule)
    yield stream, lambda features, first: stream.observe_many(features, sources(first, len(features))), dict


@contextmanager
def journal(chosen: argparse.Namespace) -> Iterator[Opened]:
    """Open a stream with TALON's rule that writes all answers down, as an owner with a folder does."""
    memory, config, bounds = filled(chosen.prototypes, chosen.size), config_of(chosen), Bounds()
    names = tuple(str(number) for number in range(memory.known))
    identity = Identity("made up", "", names, settings_of(THRESHOLD, "cosine", 0.0, config.adapt, bounds))
    with tempfile.TemporaryDirectory() as scratch:
        parts: dict[str, Any] = {
            "backbone": Vectors(size=chosen.size),
            "memory": memory,
            "config": config,
            "names": names,
        }
        with DurableStream(Path(scratch) / "stream", identity, bounds=bounds, **parts) as stream:
            yield (
                stream,
                lambda features, first: stream.observe_encoded(features, sources(first, len(features))),
                lambda: bytes_of(stream),
            )


def bytes_of(stream: DurableStream) -> dict[str, Any]:
    """Return what an answer takes on the disk, whole pages of sqlite counted: features and replay are dropped later."""
    stream.wait_until_saved()
    pages = dict(map(tuple, stream.journal.query("SELECT name, sum(pgsize) FROM dbstat GROUP BY name")))
    rows = {table: stream.journal.query(f"SELECT count(*) FROM {table}")[0][0] for table in ("features", "replay")}
    newest = max((stream.folder / "snapshots").glob("*"), key=lambda file: file.stat().st_mtime, default=None)
    return {
        "bytes_an_answer": {
            "for_ever": round(sum(size for name, size in pages.items() if "decisions" in name) / stream.answered),
            "feature": round(pages["features"] / max(rows["features"], 1)),
            "replay": round(pages["replay"] / max(rows["replay"], 1)),
        },
        "snapshot_bytes": 0 if newest is None else newest.stat().st_size,
    }


def config_of(chosen: argparse.Namespace) -> OnlineConfig:
    """Return the settings of all owners."""
    return OnlineConfig(threshold=THRESHOLD, adapt=("prototypes",), adapt_every=chosen.batch)


def sources(first: int, number: int) -> list[str]:
    """Return names as long as those of a camera network."""
    return [f"camera-0042/2026-11-16/{first + at:09d}.jpg" for at in range(number)]


def encoder_row(batch: int = 64, repeats: int = 6) -> dict[str, Any]:
    """Return what one process makes of images a second: EfficientNet-Lite0, JPEGs of 640 x 480.

    ``learning`` is an owner in mode exact that adapts its encoder: it runs the head, decides and takes the step.
    """
    backbone = EfficientNetLite0.pretrained()
    coarse = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8))
    file = io.BytesIO()
    coarse.resize((640, 480), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    item = memory_item(file.getvalue(), "made-up.jpg")
    canvases = [backbone.preprocessing.loaded(item)] * batch
    with torch.no_grad():
        hidden = backbone.trunk(backbone.preprocessing.pixels(canvases))
    config = OnlineConfig(threshold=THRESHOLD, adapt=("prototypes", "encoder"), adapt_every=batch)
    stream = DiscoveryStream(backbone, filled(100, backbone.feature_size), config)

    def trunk() -> None:
        with torch.no_grad():
            backbone.trunk(backbone.preprocessing.pixels(canvases))

    def head() -> None:
        with torch.no_grad():
            backbone.head(hidden)

    def learning() -> None:
        stream.observe_hidden(hidden, sources(stream.answered, batch))

    def decode() -> None:
        for _ in range(batch):
            backbone.preprocessing.loaded(item)

    works = {"decode": lambda: decode, "trunk": lambda: trunk, "head": lambda: head, "learning": lambda: learning}
    timings = interleaved(works, repeats)
    return {
        **{which: rates(timing, batch) for which, timing in timings.items()},
        "jpeg_bytes": len(file.getvalue()),
        "hidden_bytes": 4 * int(np.prod(backbone.hidden_shape)),
        "feature_bytes": 4 * backbone.feature_size,
        "head_bytes": sum(value.nbytes for value in stream.adapter.state_dict().values()),
    }


if __name__ == "__main__":
    main()
