"""One process against encoders on Ray: are the ids the same, and how many images a second are there more?

    python benchmarks/ray_stream.py --data DATA --images 2000 --repeats 3

DATA has the folder ``pets`` (a folder per class). A model of every second class is fitted with half of their images,
unless ``--model`` names one; the stream is a shuffled part of all other images. Both stream with both adaptations on
and one thread for each process: the one process is bound to one core, so that its decoding threads don't make it two;
``--loose`` shows what it does when they may. Start-up (loading, starting Ray) is not counted. One JSON line a run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

from talon_ocd import Talon, TalonConfig
from talon_ocd.images import ImageItem, labelled
from talon_ocd.online import Decision
from talon_ocd.scale.settings import RaySettings
from talon_ocd.scale.storage import stored


def main() -> None:
    """Fit if need be, run both in turns, print one JSON line a run and one for all."""
    chosen = arguments()
    if chosen.alone:
        report(run_alone(chosen))
        return
    if not chosen.model.exists():
        fit(chosen)
    kinds = ("alone", "ray", *(("loose",) if chosen.loose else ()))
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for _ in range(chosen.repeats):
        for kind in kinds:
            result = run_on_ray(chosen) if kind == "ray" else in_a_process(kind)
            runs[kind].append(result)
            report({"kind": kind, **{name: value for name, value in result.items() if name != "decisions"}})
    answers = [run["decisions"] for kind in kinds for run in runs[kind]]
    speed = {kind: statistics.median(run["images_per_second"] for run in runs[kind]) for kind in kinds}
    report(
        {
            "images": len(answers[0]),
            "categories": len({category for category, _ in answers[0]}),
            "ids_equal": all([c for c, _ in other] == [c for c, _ in answers[0]] for other in answers),
            "similarities_equal": all(other == answers[0] for other in answers),
            "median_images_per_second": speed,
            "median_cpu_ms_per_image": {
                kind: statistics.median(run["cpu_ms_per_image"] for run in runs[kind]) for kind in kinds
            },
            "ratio": round(speed["ray"] / speed["alone"], 3),
            "commit": commit(),
        }
    )


def arguments() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("TALON_DATA", "data")))
    parser.add_argument("--model", type=Path, default=Path("runs/ray-pets"), help="folder of the model")
    parser.add_argument("--epochs", type=int, help="most of a model that is fitted; 0 keeps the pre-trained head")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--encoders", type=int, default=2)
    parser.add_argument("--adapt", default="prototypes,encoder")
    parser.add_argument("--mode", default="exact")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", action="store_true", help="on Ray, read the images by address, through Ray Data")
    parser.add_argument("--loose", action="store_true", help="also one process with its decoding threads on all cores")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def split(data: Path, seed: int, store: bool = False) -> tuple[list[ImageItem], list[ImageItem]]:
    """Return labelled images of every second class, and all others, shuffled; ``store``: by the folder's address."""
    items = stored((data / "pets").absolute().as_uri()).items if store else labelled(data / "pets").items
    known = set(sorted({str(item.label) for item in items})[::2])
    order = np.random.RandomState(seed).permutation(len(items))
    of_known = [items[at] for at in order if items[at].label in known]
    first = of_known[: len(of_known) // 2]
    taken = {item.key for item in first}
    return first, [items[at] for at in order if items[at].key not in taken]


def fit(chosen: argparse.Namespace) -> None:
    """Fit the model and save it."""
    config = TalonConfig() if chosen.epochs is None else TalonConfig().override(epochs=chosen.epochs)
    talon = Talon("efficientnet-lite0", config)
    talon.fit(split(chosen.data, chosen.seed)[0])
    talon.save_pretrained(chosen.model)


def in_a_process(kind: str) -> dict[str, Any]:
    """Run one process: bound to the first core, or loose."""
    command = [sys.executable, __file__, *sys.argv[1:], "--alone"]
    first = min(os.sched_getaffinity(0))
    bound = (lambda: os.sched_setaffinity(0, {first})) if kind == "alone" else None
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=bound)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**result, "decisions": [tuple(pair) for pair in result["decisions"]]}


def run_alone(chosen: argparse.Namespace) -> dict[str, Any]:
    """Answer the stream in this process."""
    torch.set_num_threads(1)
    items = split(chosen.data, chosen.seed)[1][: chosen.images]
    stream = Talon.from_pretrained(chosen.model).stream(adapt=chosen.adapt)
    began, worked = time.perf_counter(), time.process_time()
    decisions = list(stream.run(items))
    seconds, worked = time.perf_counter() - began, time.process_time() - worked
    return {**result_of(decisions, seconds, worked), "seconds": stream.clock.seconds}


def run_on_ray(chosen: argparse.Namespace) -> dict[str, Any]:
    """Answer the stream with encoders on Ray."""
    from talon_ocd.scale.stream import RayStream

    items = split(chosen.data, chosen.seed, chosen.store)[1][: chosen.images]
    settings, starting = RaySettings(encoders=chosen.encoders, mode=chosen.mode), time.perf_counter()
    with RayStream(chosen.model, settings=settings, adapt=chosen.adapt) as stream:
        processes = [os.getpid(), *stream.processes()]
        began, worked = time.perf_counter(), cpu_seconds(processes)
        decisions = [decision for decision, _ in stream.run_items(items)]
        result = result_of(decisions, time.perf_counter() - began, cpu_seconds(processes) - worked)
        return {**result, "start_seconds": round(began - starting, 2), **stream.rates.facts()}


def cpu_seconds(processes: list[int]) -> float:
    """Return the seconds that processes have computed, all threads together: where others compute too, this is firm."""
    ticks = [Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13] for process in processes]
    return sum(int(user) + int(system) for user, system in ticks) / os.sysconf("SC_CLK_TCK")


def result_of(decisions: list[Decision], seconds: float, worked: float) -> dict[str, Any]:
    """Return speed, work and answers."""
    pairs = [(decision.category, decision.similarity) for decision in decisions]
    speed, work = round(len(decisions) / seconds, 2), round(1000 * worked / len(decisions), 2)
    return {"images_per_second": speed, "cpu_ms_per_image": work, "decisions": pairs}


def commit() -> str:
    """Return the commit that this runs at."""
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def report(facts: dict[str, Any]) -> None:
    """Print a line."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
