"""What bad streams do to an encoder that adapts, with and without the guard.

    OMP_NUM_THREADS=1 python benchmarks/guard.py --data pets -o benchmarks/results/guard.json

``--data`` is a folder per class, with 100 images or more in each (Oxford-IIIT Pet: 37 classes). Half of the classes are
known. Every stream is answered by the same model in three ways: the encoder stays, adapts freely, or adapts with the
guard. Then clean images of known classes, which no stream and no training has seen, are answered.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.random import Generator
from PIL import Image, ImageFilter
from torch import Tensor

from talon_ocd import DiscoveryStream, Talon, TalonConfig
from talon_ocd.cli import choices
from talon_ocd.evaluation.rows import spread
from talon_ocd.images import ImageItem, labelled, memory_item
from talon_ocd.metrics import strict_accuracy
from talon_ocd.offline import TrunkCache
from talon_ocd.saved import write_files
from talon_ocd.talon import cache_for

BACKBONE, IMAGE_SIZE = "efficientnet-lite0", 160
LABELLED, HELD_OUT, STREAMED, BURST = 25, 10, 10, 64
"""Images of a class that are labelled, held out, in a mixed stream, and in a burst."""
BURSTS, PASSES = 16, 2
BLUR, PIXEL_NOISE = 1 / 32, 80.0
"""Radius of the blur as a share of the shorter side; standard deviation of the noise on pixels from 0 to 255."""
NOBODY = "noise"
MODELS = {
    "talon": {"preset": "official", "epochs": 10, "warmup_epochs": 0, "views": 2, "guard.enabled": True},
    "evidence": {"preset": "default", "epochs": 10, "views": 2, "offset": 0.0},
}
UPDATES: dict[str, tuple[Literal["norms", "head"], float]] = {
    "official": ("norms", 0.01),
    "larger": ("norms", 1.0),
    "head": ("head", 0.1),
    "head, larger": ("head", 1.0),
}
"""What of the encoder adapts, and its learning rate."""
WAYS = ("none", "free", "guarded")


@dataclass(frozen=True)
class Pictures:
    """Trunk outputs of images ``(N, *hidden_shape)`` and the names of their classes ``(N,)``."""

    hidden: Tensor
    names: Any

    def __len__(self) -> int:
        return len(self.names)

    def at(self, index: Any) -> Pictures:
        """Return some of them."""
        return Pictures(self.hidden[torch.as_tensor(index)], self.names[index])

    def __add__(self, other: Pictures) -> Pictures:
        return Pictures(torch.cat([self.hidden, other.hidden]), np.concatenate([self.names, other.names]))


class Sample:
    """The images of one seed: known classes, labelled and held-out ones, and three bad streams."""

    def __init__(self, folder: Path, seed: int, cache: TrunkCache, side: int) -> None:
        self.seed, self.cache, self.side = seed, cache, side
        random = np.random.default_rng(seed)
        self.classes: dict[str, list[ImageItem]] = {}
        for item in labelled(folder).items:
            self.classes.setdefault(str(item.label), []).append(item)
        for items in self.classes.values():
            random.shuffle(items)
        names = sorted(self.classes)
        self.known = sorted(random.permutation(names)[: (len(names) + 1) // 2].tolist())
        self.labelled = self._items(self.known, 0, LABELLED)
        self.held_out = self._look(self._items(self.known, LABELLED, LABELLED + HELD_OUT))
        self.mixed = self._items(names, LABELLED + HELD_OUT, LABELLED + HELD_OUT + STREAMED)

    def streams(self) -> dict[str, Pictures]:
        """Return the bad streams; equal seeds give equal ones."""
        random = np.random.default_rng([self.seed, 1])
        clean = self._look(self.mixed)
        noise = self._look([memory_item(picture, NOBODY, NOBODY) for picture in noise_images(len(clean), random)])
        worse = [
            self._look([corrupted(item, kind, self.side, random) for item in self.mixed]) for kind in ("blur", "noise")
        ]
        return {
            "bursts": self._bursts(random),
            "noise": self._passes([clean + noise], random),
            "corruption": self._passes(worse, random),
        }

    def _bursts(self, random: Generator) -> Pictures:
        """Some classes, one after another: half of them known."""
        new = [name for name in self.classes if name not in self.known]
        names = [*random.permutation(self.known)[: BURSTS // 2], *random.permutation(new)[: BURSTS // 2]]
        first = LABELLED + HELD_OUT
        return self._look(
            [item for name in random.permutation(names) for item in self._items([name], first, first + BURST)]
        )

    def _passes(self, parts: Sequence[Pictures], random: Generator) -> Pictures:
        """Every part shuffled, one after another, several times."""
        shuffled = [part.at(random.permutation(len(part))) for _ in range(PASSES) for part in parts]
        return sum(shuffled[1:], start=shuffled[0])

    def _items(self, names: Sequence[str], first: int, last: int) -> list[ImageItem]:
        return [item for name in names for item in self.classes[name][first:last]]

    def _look(self, items: Sequence[ImageItem]) -> Pictures:
        outputs = self.cache.outputs(items)
        return Pictures(
            outputs.take(torch.arange(len(outputs))), np.array([str(items[at].label) for at in outputs.kept])
        )


def noise_images(count: int, random: Generator) -> Iterator[Image.Image]:
    """Yield white noise and blurred spots of colour in turn."""
    for number in range(count):
        size = 256 if number % 2 else int(random.integers(2, 64))
        image = Image.fromarray(random.integers(0, 256, (size, size, 3), dtype=np.uint8))
        yield image.resize((256, 256), Image.Resampling.BICUBIC)


def corrupted(item: ImageItem, kind: str, side: int, random: Generator) -> ImageItem:
    """Return an image that is heavily blurred, or drowned in noise."""
    image = Image.fromarray(np.asarray(item.load(shorter_side=side)))
    if kind == "blur":
        image = image.filter(ImageFilter.GaussianBlur(min(image.size) * BLUR))
    else:
        pixels = np.asarray(image.convert("RGB")) + random.normal(0, PIXEL_NOISE, (image.height, image.width, 3))
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    return memory_item(image, f"{item.source} ({kind})", item.label)


def config_of(model: str) -> TalonConfig:
    """Return the settings of a model; both are shorter than their presets, and nothing is rehearsed."""
    changes = dict(MODELS[model])
    return TalonConfig.from_preset(str(changes.pop("preset"))).override(**changes)


def opened(talon: Talon, way: str, update: str) -> DiscoveryStream:
    """Open a stream of a model whose encoder stays, adapts, or is guarded."""
    scope, rate = UPDATES[update]
    online = replace(talon.config.online, encoder_scope=scope, encoder_lr=rate)
    settings, talon.config = (
        talon.config,
        replace(talon.config, online=online).override(**{"guard.enabled": way == "guarded"}),
    )
    try:
        return talon.stream(adapt="prototypes" if way == "none" else "prototypes,encoder")
    finally:
        talon.config = settings


def held_out_accuracy(stream: DiscoveryStream, pictures: Pictures, known: Sequence[str]) -> float:
    """Return the share of clean images of known classes that the stream answers with their class."""
    answers = stream.discovery.look(stream.adapter.encode(pictures.hidden).cpu())
    wanted = np.array([known.index(name) for name in pictures.names])
    return float(((answers.ids == wanted) & ~answers.founded).mean())


def measure(talon: Talon, sample: Sample, pictures: Pictures, way: str, update: str) -> dict[str, Any]:
    """Answer a stream in one way."""
    stream = opened(talon, way, update)
    before = held_out_accuracy(stream, sample.held_out, talon.names)
    answers = stream.observe_hidden(pictures.hidden, [""] * len(pictures))
    stream.flush()
    real = pictures.names != NOBODY
    ids = np.array([answer.category for answer in answers])
    row: dict[str, Any] = {
        "before": before,
        "after": held_out_accuracy(stream, sample.held_out, talon.names),
        "strict": asdict(strict_accuracy(pictures.names[real], ids[real], list(talon.names))),
        "categories": stream.memory.size,
        "adapt_seconds": stream.clock.seconds.get("adapt", 0.0),
    }
    if stream.guard is not None:
        counted = ("taken", "skipped", "refused", "rolled_back")
        events = stream.guard.take_events()
        reasons = Counter(
            " ".join(word for word in event["reason"].split() if not word[0].isdigit()) for event in events
        )
        row["guard"] = {
            **{name: getattr(stream.guard, name) for name in counted},
            "reasons": dict(reasons.most_common()),
        }
    return row


def measure_seed(folder: Path, seed: int, models: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield all rows of a seed."""
    for model in models:
        talon = Talon(BACKBONE, replace(config_of(model), seed=seed), image_size=IMAGE_SIZE)
        with cache_for(talon.backbone, talon.config) as cache:
            sample = Sample(folder, seed, cache, talon.backbone.preprocessing.resize)
            talon.fit(sample.labelled, cache=cache)
            for name, pictures in sample.streams().items():
                about = {"seed": seed, "model": model, "stream": name, "images": len(pictures)}
                yield {**about, "way": "none", **measure(talon, sample, pictures, "none", "official")}
                for update in UPDATES:
                    for way in WAYS[1:]:
                        yield {**about, "update": update, "way": way, **measure(talon, sample, pictures, way, update)}


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return means over seeds; differences are of the same seed and stream from an encoder that stays."""
    still = {(row["seed"], row["model"], row["stream"]): row for row in rows if row["way"] == "none"}
    found = []
    for model, stream, update in dict.fromkeys((r["model"], r["stream"], r["update"]) for r in rows if "update" in r):
        line: dict[str, Any] = {"model": model, "stream": stream, "update": update}
        for way in WAYS:
            own = [r for r in rows if (r["model"], r["stream"], r["way"]) == (model, stream, way)]
            own = [r for r in own if way == "none" or r["update"] == update]
            base = [still[r["seed"], model, stream] for r in own]
            line[way] = {
                "after": _spread(r["after"] for r in own),
                "strict_all": _spread(r["strict"]["all"] for r in own),
                "against_none": _spread(r["after"] - b["after"] for r, b in zip(own, base, strict=True)),
                "strict_against_none": _spread(
                    r["strict"]["all"] - b["strict"]["all"] for r, b in zip(own, base, strict=True)
                ),
            }
        found.append(line)
    return found


def _spread(values: Iterator[float]) -> dict[str, Any] | None:
    found = spread(values)
    return None if found is None else asdict(found)


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return the summary as a Markdown table, in percent."""
    head = "| model | stream | update | none | free | guarded | none | free | guarded |\n|---|---|---|" + "---:|" * 6
    text = [head]
    for line in lines:
        cells = [f"{100 * line[way][value]['mean']:.1f}" for value in ("after", "strict_all") for way in WAYS]
        text.append(f"| {line['model']} | {line['stream']} | {line['update']} | {' | '.join(cells)} |")
    return "\n".join(text)


def tell(row: dict[str, Any]) -> None:
    """Print a row, while the others are measured."""
    where = f"{row['seed']} {row['model']:9} {row['stream']:10} {row.get('update', ''):12} {row['way']:8}"
    values = f"{row['before']:.3f} -> {row['after']:.3f} strict {row['strict']['all']:.3f}"
    print(where, values, flush=True)  # noqa: T201 - a script speaks to a terminal


def main(words: Sequence[str]) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="What bad streams do to an encoder that adapts.")
    parser.add_argument("--data", type=Path, required=True, help="a folder per class, 100 images or more in each")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file")
    given = parser.parse_args(words)
    seeds = [int(word) for word in given.seeds.split(",")]
    options = {"--data": given.data.name, "--seeds": given.seeds, "--models": given.models, "-o": given.output.name}
    command = shlex.join(["python", "benchmarks/guard.py", *(word for pair in options.items() for word in pair)])
    about: dict[str, Any] = {"command": command, "commit": choices.commit(), "seeds": seeds}
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        for row in measure_seed(given.data, seed, given.models.split(",")):
            rows.append(row)
            tell(row)
    content = {**about, "models": MODELS, "updates": UPDATES, "summary": summary(rows), "rows": rows}
    text = json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False)
    write_files(given.output.resolve().parent, {given.output.name: f"{text}\n".encode()})
    print(f"{command}\ncommit {about['commit']}, seeds {given.seeds}\n\n{table(content['summary'])}")  # noqa: T201 - as above
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
