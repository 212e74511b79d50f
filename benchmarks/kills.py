"""Kill streams with SIGKILL at random moments: does what goes on afterwards end with the ids of a stream left alone?

    python benchmarks/kills.py --kills 300

Every kill has a stream of its own (embedded digits, a small vision transformer, both adaptations on or evidence), or
``--in-a-row`` of them meet the same one. Processes are forks of this one, which has everything loaded, so that a kill
costs a second and not a start of Python; it uses one thread, because forks and thread pools don't mix.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from talon_ocd import Talon, TalonConfig
from talon_ocd.backbones.tiny import TinyViT
from talon_ocd.durable import Journal
from talon_ocd.durable import stream as durable_stream
from talon_ocd.images import ImageItem
from talon_ocd.images.digits import digits

KNOWN = ("0", "1", "2", "3", "4")
WAYS: dict[str, dict[str, Any]] = {
    "evidence": {},
    "evidence, prototypes and encoder": {"adapt": "prototypes,encoder"},
    "cosine, prototypes and encoder": {"threshold": 0.7, "adapt": "prototypes,encoder"},
}


def main() -> None:
    """Fit, kill, compare, print one JSON line a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300, help="kills for each --in-a-row, shared by the ways")
    parser.add_argument(
        "--in-a-row",
        type=int,
        nargs="+",
        default=[1],
        help="kills of one stream before it may end; each in turn",
    )
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    durable_stream.SNAPSHOT_EVERY = 32  # many snapshots: kills shall meet them, too
    talon, items = fitted(chosen.seed), stream_items(chosen.images)
    wrong = 0
    for in_a_row, (way, options) in product(chosen.in_a_row, WAYS.items()):
        result = try_way(talon, items, options, chosen.kills // len(WAYS), in_a_row, chosen.seed)
        sys.stdout.write(json.dumps({"way": way, "images": len(items), "in_a_row": in_a_row, **result}) + "\n")
        sys.stdout.flush()
        wrong += result["different"]
    sys.exit(1 if wrong else 0)


def fitted(seed: int) -> Talon:
    """Return a small model of the digits 0 to 4."""
    changes = {"epochs": 2, "views": 2, "rounds": 1, "orders": 1, "try_untrained": False, "adapt_every": 16}
    changes["guard.images"] = 32  # a step is judged at the next adaptation, so that heads change even in short streams
    talon = Talon(TinyViT(width=32, depth=2), TalonConfig.from_preset("default").override(seed=seed, **changes))
    talon.fit([item for item in digits() if item.label in KNOWN][:150])
    return talon


def stream_items(number: int) -> list[ImageItem]:
    """Return the last digits of the data set, known and new ones."""
    return list(digits())[-number:]


def try_way(
    talon: Talon, items: Sequence[ImageItem], options: dict[str, Any], kills: int, in_a_row: int, seed: int
) -> dict[str, Any]:
    """Kill streams and count those that end with other ids than the one that nobody touched."""
    choice, met, different, streams = random.Random(seed), 0, 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        alone = Path(scratch) / "alone"
        began = time.perf_counter()
        finish(talon, alone, items, options)
        length, wanted = time.perf_counter() - began, answers(alone)
        while streams * in_a_row < kills:
            folder = Path(scratch) / f"killed-{streams}"
            for _ in range(in_a_row):
                met += kill_once(talon, folder, items, options, choice.uniform(0.0, length / in_a_row))
            finish(talon, folder, items, options)
            different += answers(folder) != wanted
            streams += 1
            shutil.rmtree(folder)
    return {"kills": streams * in_a_row, "met_it_alive": met, "streams": streams, "different": different}


def kill_once(talon: Talon, folder: Path, items: Sequence[ImageItem], options: dict[str, Any], seconds: float) -> bool:
    """Begin the stream in a process of its own and kill it; returns whether it was still at work."""
    if (pid := os.fork()) == 0:
        _work(talon, folder, items, options)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def finish(talon: Talon, folder: Path, items: Sequence[ImageItem], options: dict[str, Any]) -> None:
    """Answer what is left, in a process of its own."""
    if (pid := os.fork()) == 0:
        _work(talon, folder, items, options)
    if status := os.waitpid(pid, 0)[1]:
        raise SystemExit(f"a stream that went on ended with status {status}")


def answers(folder: Path) -> list[int]:
    """Return the categories that were answered, in order."""
    journal = Journal(folder)
    try:
        return [row["category"] for row in journal.query("SELECT category FROM decisions ORDER BY idx")]
    finally:
        journal.close()


def _work(talon: Talon, folder: Path, items: Sequence[ImageItem], options: dict[str, Any]) -> None:
    status = 1
    try:
        with talon.stream(folder, **options) as stream:
            for _ in stream.run(items):
                pass
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)  # no clean-up of what belongs to the parent


if __name__ == "__main__":
    main()
