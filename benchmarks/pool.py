"""Do 64 encoders keep one owner busy? The owner is real, the encoders only take their time.

    OMP_NUM_THREADS=1 python benchmarks/pool.py -o benchmarks/results/pool.json

First the owner answers alone, to see how long a batch takes it here and now. Then pretended encoders, a thread each,
sleep as long as encoding would take (together they make ``--spare`` times what the owner can take, with jitter and
stragglers) and deliver batches out of order; so many may be under way and no more, and the owner answers them in
order. Where others use the machine, too, the owner's speed changes, and the encoders' with it. What the owner waited
is what the pool failed to hide. ``talon bench scale`` simulates the same without an owner.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from talon_ocd.benchmarks.decisions import THRESHOLD, filled, queries
from talon_ocd.cli import choices
from talon_ocd.config import OnlineConfig
from talon_ocd.online import FeatureStream
from talon_ocd.saved import write_files
from talon_ocd.scale.pool import Pool
from talon_ocd.scale.simulation import simulate

FOLLOWED = 32
"""Batches over which the owner's time is averaged."""
DIFFERENT = 16
"""Batches that are made up; they come again and again."""


class PretendedEncoders:
    """Threads that deliver the numbers of batches when an encoder would."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.random = pool, np.random.default_rng(pool.seed)
        self.room = threading.Semaphore(pool.encoders + pool.at_the_owner)
        self.mean_seconds = pool.trunk_seconds
        self.delivered, self.most_waiting = set[int](), 0
        self._news, self._next = threading.Condition(), 0
        self._threads = [threading.Thread(target=self._encode, daemon=True) for _ in range(pool.encoders)]

    def start(self) -> None:
        """Let all begin."""
        for thread in self._threads:
            thread.start()

    def follow(self, owner_seconds: float) -> None:
        """Take an owner that got faster or slower into account: others use the machine, too."""
        wanted = self.pool.trunk_seconds / self.pool.owner_seconds * owner_seconds
        self.mean_seconds += (wanted - self.mean_seconds) / FOLLOWED

    def take(self, number: int) -> None:
        """Wait until a batch is there, and make room for another one."""
        with self._news:
            self._news.wait_for(lambda: number in self.delivered)
            self.delivered.discard(number)
        self.room.release()

    def _encode(self) -> None:
        while True:
            self.room.acquire()
            with self._news:
                number, self._next = self._next, self._next + 1
                seconds = self._drawn()
            if number >= self.pool.batches:
                return
            time.sleep(seconds)
            with self._news:
                self.delivered.add(number)
                self.most_waiting = max(self.most_waiting, len(self.delivered))
                self._news.notify_all()

    def _drawn(self) -> float:
        spread = np.log1p(self.pool.jitter**2)
        straggles = self.random.random() < self.pool.stragglers
        drawn = self.mean_seconds * self.random.lognormal(-spread / 2.0, np.sqrt(spread))
        return float(drawn) * (self.pool.straggle if straggles else 1.0)


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoders", type=int, default=64)
    parser.add_argument("--spare", type=float, default=1.5, help="what encoders could make over what the owner takes")
    parser.add_argument("--prototypes", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=768, help="D, dimensions of the features")
    parser.add_argument("--batches", type=int, default=800)
    parser.add_argument("--warm-up", type=int, default=256, help="batches that don't count: the pool fills its queue")
    parser.add_argument("--output", "-o", type=Path)
    chosen = parser.parse_args()
    result = {
        "command": shlex.join(["python", *sys.argv]),
        "commit": choices.commit(),
        **run(chosen),
        "load_average": round(os.getloadavg()[0], 1),
    }
    text = json.dumps(result, indent=1) + "\n"
    sys.stdout.write(text)
    if chosen.output:
        write_files(chosen.output.parent, {chosen.output.name: text.encode()})


def run(chosen: argparse.Namespace) -> dict[str, Any]:
    """Answer alone, then behind the pool."""
    torch.set_num_threads(1)
    stream = FeatureStream(
        filled(chosen.prototypes, chosen.size),
        OnlineConfig(threshold=THRESHOLD, adapt=("prototypes",), adapt_every=Pool.batch),
    )
    batches = [queries(stream.memory, Pool.batch, seed) for seed in range(DIFFERENT)]
    began = time.perf_counter()
    for features in batches:
        stream.observe_many(features)
    alone = (time.perf_counter() - began) / len(batches)
    pool = Pool(
        encoders=chosen.encoders, batches=chosen.batches, trunk_seconds=chosen.encoders * alone / chosen.spare,
        owner_seconds=alone, jitter=0.2, stragglers=0.01, straggle=4.0, at_the_owner=4 * chosen.encoders,
        at_an_encoder=1, warm_up=chosen.warm_up,
    )  # fmt: skip
    encoders = PretendedEncoders(pool)
    encoders.start()
    began = busy = 0.0
    for number in range(pool.batches):
        if number == chosen.warm_up:
            began, busy = time.perf_counter(), 0.0
        encoders.take(number)
        at = time.perf_counter()
        stream.observe_many(batches[number % DIFFERENT])
        took = time.perf_counter() - at
        encoders.follow(took)
        busy += took
    lasted = time.perf_counter() - began
    simulated = simulate(pool)
    return {
        "encoders": pool.encoders,
        "spare": chosen.spare,
        "owner_alone_a_second": round(Pool.batch / alone),
        "owner_in_the_pool_a_second": round(Pool.batch * (pool.batches - chosen.warm_up) / lasted),
        "owner_busy": round(busy / lasted, 4),
        "most_waiting": encoders.most_waiting,
        "most_under_way_allowed": pool.most_under_way,
        "simulated": {
            "owner_busy": round(simulated.owner_busy[0], 4),
            "most_waiting": simulated.most_waiting,
        },
    }


if __name__ == "__main__":
    main()
