"""Kill encoders and owner of a stream on Ray at random moments: are ids and journal those of one process left alone?

    python benchmarks/ray_kills.py --kills 50

Embedded digits, a small vision transformer, TALON's rule with both updates, or evidence. While a stream runs, a thread
picks an encoder or the owner, waits a random moment and sends SIGKILL. Ray starts another one. Streams follow each
other until there were enough kills; each must end with the answers, features and events of a stream in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import ray
import torch
from kills import WAYS, fitted, stream_items

from talon_ocd import Talon
from talon_ocd.durable import Journal
from talon_ocd.images import ImageItem
from talon_ocd.scale.connection import connected
from talon_ocd.scale.settings import RaySettings
from talon_ocd.scale.storage import stored
from talon_ocd.scale.stream import RayStream

TABLES = {
    "answers": "idx, source, key, category, verdict, similarity, runner_up, batch, steps FROM decisions",
    "features": "idx, feature FROM features",
    "events": "seq, answered, kind, category, data FROM events",
}


def main() -> None:
    """Fit, kill, compare, print one JSON line a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="least kills altogether, shared by the ways to decide")
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--encoders", type=int, default=2)
    parser.add_argument("--store", action="store_true", help="read the images by address, through Ray Data")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    settings, wrong = RaySettings(encoders=chosen.encoders), 0
    with tempfile.TemporaryDirectory() as scratch, connected(settings):
        model, items = Path(scratch) / "model", stream_items(chosen.images)
        items = in_a_store(items, Path(scratch) / "store") if chosen.store else items
        fitted(chosen.seed).save_pretrained(model)
        for number, (way, options) in enumerate(WAYS.items()):
            place, choice = Path(scratch) / str(number), random.Random(chosen.seed)
            result = try_way(model, items, options, settings, -(-chosen.kills // len(WAYS)), place, choice)
            sys.stdout.write(json.dumps({"way": way, "images": len(items), **result}) + "\n")
            sys.stdout.flush()
            wrong += result["different"]
    sys.exit(1 if wrong else 0)


def in_a_store(items: list[ImageItem], folder: Path) -> list[ImageItem]:
    """Write images into a folder and list them by its address, in the same order."""
    folder.mkdir()
    for number, item in enumerate(items):
        item.load().save(folder / f"{number}.png")
    return stored(folder.as_uri()).items


def try_way(
    model: Path, items: list[ImageItem], options: dict[str, Any], settings: RaySettings, kills: int, place: Path,
    choice: random.Random,
) -> dict[str, Any]:  # fmt: skip
    """Kill until there were enough; count streams whose folder says something else than that of one process."""
    place.mkdir()
    with Talon.from_pretrained(model).stream(place / "alone", **options) as alone:
        told = [decision.category for decision in alone.run(items)]
    wanted, killed, streams, different, began = written(place / "alone"), Counter[str](), 0, 0, time.perf_counter()
    while killed.total() < kills:
        folder = place / f"killed-{streams}"
        with RayStream(model, folder, settings, **options) as stream, killing(stream, killed, kills, choice):
            heard = [decision.category for decision, _ in stream.run_items(items)]
        streams += 1
        different += heard != told or written(folder) != wanted
    seconds = round(time.perf_counter() - began, 1)
    return {"kills": killed.total(), **killed, "streams": streams, "different": different, "seconds": seconds}


@contextmanager
def killing(stream: RayStream, killed: Counter[str], most: int, choice: random.Random) -> Iterator[None]:
    """Kill one process after the other while the stream runs."""
    over = threading.Event()
    everybody = [*(("encoder", actor) for actor in stream.encoders), ("owner", stream.owner)]

    def kill() -> None:
        while killed.total() < most:
            kind, actor = choice.choice(everybody)
            process = ray.get(actor.process.remote())
            if over.wait(choice.uniform(0.0, 0.5)):
                return
            os.kill(process, signal.SIGKILL)
            killed[kind] += 1

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def written(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return what a journal says, but for the times."""
    journal = Journal(folder)
    try:
        return {
            name: [tuple(row) for row in journal.query(f"SELECT {what} ORDER BY 1")] for name, what in TABLES.items()
        }
    finally:
        journal.close()


if __name__ == "__main__":
    main()
