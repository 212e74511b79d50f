"""Load a service from a second process: is anything lost or doubled, and how fast is it beside `talon discover`?

    python benchmarks/service.py --model runs/pets --data photos/incoming --seconds 60

Both answer the same images on the same machine in the same run: discover, service, discover. Clients send one image a
request over connections that stay open, each with an Idempotency-Key; some send it again, as after a lost answer.
Afterwards the journal is counted: every key that got an answer is there, once.

    python benchmarks/service.py --model runs/pets --data photos/incoming --seconds 60 --engine ray --encoders 2

The service with encoders on Ray, between two runs of the single-process service, with the same clients and images.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from talon_ocd.durable import Journal
from talon_ocd.images import stream
from talon_ocd.saved import write_files

RESULTS = {
    "local": Path(__file__).parent / "results" / "service.json",
    "ray": Path(__file__).parent / "results" / "service_on_ray.json",
}
FEW = 20
"""Images of a run that is all start: what it costs is taken off."""
REPLAYED = 0.1
"""Share of the requests that are sent twice."""


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", "-m", type=Path, required=True, help="folder that `talon fit` wrote")
    parser.add_argument("--data", type=Path, required=True, help="images, any source of `talon discover` with files")
    parser.add_argument("--clients", type=int, default=32, help="connections that send all the time")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--images", type=int, default=1000, help="images of the data that are used, over and over")
    parser.add_argument("--adapt", help="passed on: prototypes,encoder ...")
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--encoders", type=int, default=2, help="with --engine ray")
    parser.add_argument("--output", "-o", type=Path)
    chosen = parser.parse_args()
    paths = chosen_images(chosen.data, chosen.images)
    options = ["--adapt", chosen.adapt] if chosen.adapt else []
    found = beside_local(chosen, paths, options) if chosen.engine == "ray" else beside_discover(chosen, paths, options)
    result = {
        "command": shlex.join(["python", "benchmarks/service.py", *_without_paths(sys.argv[1:])]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load_average": [round(value, 2) for value in os.getloadavg()],
        **found,
    }
    text = json.dumps(result, indent=2)
    sys.stdout.write(text + "\n")
    output = chosen.output or RESULTS[chosen.engine]
    write_files(output.parent, {output.name: (text + "\n").encode()})
    if found["lost"] or found["doubled"] or found["server_errors"]:
        sys.exit(1)


def beside_local(chosen: argparse.Namespace, paths: list[Path], options: list[str]) -> dict[str, Any]:
    """Run the service on Ray between two runs of the single-process service."""
    on_ray = ["--engine", "ray", "--encoders", str(chosen.encoders)]
    with tempfile.TemporaryDirectory() as folder:
        before = serve(chosen, paths, Path(folder) / "before", options)
        served = serve(chosen, paths, Path(folder) / "ray", [*options, *on_ray])
        after = serve(chosen, paths, Path(folder) / "after", options)
    rates = [run["images_per_second"] for run in (before, after)]
    return {
        "encoders": chosen.encoders,
        "local_images_per_second": rates,
        "local_latency_ms": [run["latency_ms"] for run in (before, after)],
        "local_cpu_ms_per_image": [run["cpu_ms_per_image"] for run in (before, after)],
        "ratio": round(served["images_per_second"] / (sum(rates) / 2), 3),
        **served,
    }


def beside_discover(chosen: argparse.Namespace, paths: list[Path], options: list[str]) -> dict[str, Any]:
    """Run the service between two runs of `talon discover`."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        listed = place / "images.csv"
        listed.write_text("path\n" + "".join(f"{path}\n" for path in paths), encoding="utf-8")
        before = discover(chosen.model, listed, place / "before", options)
        served = serve(chosen, paths, place / "stream", options)
        after = discover(chosen.model, listed, place / "after", options)
        durable = discover(chosen.model, listed, place / "durable", [*options, "--stream", str(place / "lasting")])
        few = place / "few.csv"
        few.write_text("path\n" + "".join(f"{path}\n" for path in paths[:FEW]), encoding="utf-8")
        start = discover(chosen.model, few, place / "few", options)
    alone = (before.rate + after.rate) / 2
    cpu = (before.cpu + after.cpu - 2 * start.cpu) / 2 / (len(paths) - FEW) * 1000
    return {
        "discover_images_per_second": [round(before.rate, 2), round(after.rate, 2)],
        "discover_with_stream_images_per_second": round(durable.rate, 2),
        "discover_cpu_ms_per_image": round(cpu, 2),
        "ratio": round(served["images_per_second"] / alone, 3),
        "ratio_to_discover_with_stream": round(served["images_per_second"] / durable.rate, 3),
        "cpu_ratio": round(cpu / served["cpu_ms_per_image"], 3),
        **served,
    }


def chosen_images(data: Path, most: int) -> list[Path]:
    """Return image files, spread over the whole data set."""
    files = [Path(item.payload).resolve() for item in stream(str(data)).items if isinstance(item.payload, Path)]
    return files[:: max(1, len(files) // most)][:most]


@dataclass(frozen=True)
class Discovered:
    """Images a second without loading the model, and processor seconds with it."""

    rate: float
    cpu: float


def discover(model: Path, listed: Path, output: Path, options: list[str]) -> Discovered:
    """Run `talon discover`."""
    words = ["discover", str(listed), "-m", str(model), "-o", str(output), "--quiet", *options]
    process = subprocess.Popen([sys.executable, "-m", "talon_ocd", *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"talon discover failed ({process.returncode})")
    summary = json.loads((output / "summary.json").read_text(encoding="utf-8"))
    return Discovered(float(summary["images_per_second"]), used.ru_utime + used.ru_stime)


def serve(chosen: argparse.Namespace, paths: list[Path], folder: Path, options: list[str]) -> dict[str, Any]:
    """Run `talon serve` and the clients; return what they saw and what the journal says."""
    words = ["serve", "-m", str(chosen.model), "--stream", str(folder), "--port", "0", "--rate", "0", *options]
    service = subprocess.Popen([sys.executable, "-m", "talon_ocd", *words], stderr=subprocess.PIPE, text=True)
    try:
        assert service.stderr is not None
        found = re.search(r":(\d+) \(", service.stderr.readline())
        assert found, service.stderr.read()
        port = int(found.group(1))
        context = multiprocessing.get_context("spawn")
        seen: Any = context.Queue()
        clients = context.Process(target=load, args=(port, paths, chosen.clients, chosen.seconds, seen))
        before, others_before = cpu_seconds(port), cpu_of_descendants(service.pid)
        clients.start()
        report = seen.get(timeout=chosen.seconds + 120)
        clients.join()
        cpu, metrics = cpu_seconds(port) - before, stages(port)
        others = cpu_of_descendants(service.pid) - others_before
        service.terminate()
        code = service.wait(60)
    finally:
        service.kill()
    answers: dict[str, int] = report.pop("answers")
    used = {
        "cpu_ms_per_image": round(1000 * (cpu + others) / report["images"], 2),
        "owner_cpu_ms_per_image": round(1000 * cpu / report["images"], 2),
    }
    return {**report, **used, **counted(folder, answers), "stages_ms": metrics, "exit_code": code}


def load(port: int, paths: list[Path], clients: int, seconds: float, seen: Any) -> None:
    """Send images from ``clients`` threads; what they saw goes to the queue ``seen``."""
    images = [path.read_bytes() for path in paths]
    threads = [Sender(number, port, images, clients) for number in range(clients)]
    threads[0].ask(images[0], "warm-up")  # the first answer of a process is slow: allocators, sqlite
    started = time.perf_counter()
    for thread in threads:
        thread.end = started + seconds
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - started
    latencies = np.array([value for thread in threads for value in thread.latencies]) * 1000
    statuses: dict[str, int] = {}
    for thread in threads:
        for status, number in thread.statuses.items():
            statuses[str(status)] = statuses.get(str(status), 0) + number
    answers = {key: index for thread in threads for key, index in thread.answers.items()}
    seen.put(
        {
            "clients": clients,
            "seconds": round(took, 2),
            "images": len(latencies),
            "images_per_second": round(len(latencies) / took, 2),
            "latency_ms": {f"p{share}": round(float(np.percentile(latencies, share)), 1) for share in (50, 90, 99)},
            "statuses": statuses,
            "server_errors": sum(number for status, number in statuses.items() if status >= "500"),
            "replays": sum(thread.replays for thread in threads),
            "replays_with_another_answer": sum(thread.different for thread in threads),
            "answers": answers,
        }
    )


class Sender(threading.Thread):
    """One client: sends image after image over one connection."""

    def __init__(self, number: int, port: int, images: list[bytes], clients: int) -> None:
        super().__init__()
        self.number, self.images, self.clients = number, images, clients
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.end = 0.0
        self.latencies: list[float] = []
        self.statuses: dict[int, int] = {}
        self.answers: dict[str, int] = {}
        self.replays = self.different = 0

    def run(self) -> None:
        """Send until it is time to end."""
        turn, repeat = 0, round(1 / REPLAYED)
        while time.perf_counter() < self.end:
            image = self.images[(self.number + turn * self.clients) % len(self.images)]
            key = f"{self.number}-{turn}"
            started = time.perf_counter()
            index = self.ask(image, key)
            self.latencies.append(time.perf_counter() - started)
            if turn % repeat == 0:
                self.replays += 1
                self.different += self.ask(image, key) != index
            turn += 1

    def ask(self, image: bytes, key: str) -> int | None:
        """Send one image; returns the index that it got."""
        headers = {"Content-Type": "image/jpeg", "Idempotency-Key": key}
        self.connection.request("POST", "/v1/decide", image, headers)
        response = self.connection.getresponse()
        body = response.read()
        self.statuses[response.status] = self.statuses.get(response.status, 0) + 1
        if response.status != 200:
            return None
        index: int = json.loads(body)["index"]
        self.answers[key] = index
        return index


def counted(folder: Path, answers: dict[str, int]) -> dict[str, int]:
    """Compare what clients were told with the journal."""
    journal = Journal(folder)
    try:
        rows = journal.query("SELECT key, idx FROM requests")
        written = {str(row["key"]).rpartition(" ")[0]: int(row["idx"]) for row in rows}
        in_journal = journal.answered
    finally:
        journal.close()
    return {
        "answered": in_journal,
        "lost": sum(written.get(key) != index for key, index in answers.items()),
        "doubled": len(answers) - len(set(answers.values())) + (in_journal - len(written)),
    }


def metrics_of(port: int) -> str:
    """Return what the service says of itself."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def cpu_seconds(port: int) -> float:
    """Return the processor seconds that the service has used so far."""
    found = re.search(r"^process_cpu_seconds_total (\S+)", metrics_of(port), re.MULTILINE)
    return float(found.group(1)) if found else float("nan")


def cpu_of_descendants(process: int) -> float:
    """Return the processor seconds that all processes below one have used so far (Linux; 0 elsewhere)."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
            seconds[int(stat.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def below(number: int) -> float:
        return sum(seconds[child] + below(child) for child, parent in parents.items() if parent == number)

    return below(process)


def stages(port: int) -> dict[str, dict[str, float]]:
    """Return the mean and the largest bucket of the time of every stage, as the service measured them."""
    text = metrics_of(port)
    found: dict[str, dict[str, float]] = {}
    for stage in ("decode", "encode", "decide", "adapt"):
        total = re.search(rf'stage_seconds_sum{{stage="{stage}"}} (\S+)', text)
        number = re.search(rf'stage_seconds_count{{stage="{stage}"}} (\S+)', text)
        if total and number:
            buckets = re.findall(rf'stage_seconds_bucket{{le="(\S+)",stage="{stage}"}} (\S+)', text)
            below = next(float(end) for end, count in buckets if float(count) == float(number.group(1)))
            mean = 1000 * float(total.group(1)) / float(number.group(1))
            found[stage] = {"times": float(number.group(1)), "mean": round(mean, 2), "all_below": 1000 * below}
    size = re.search(r"talon_batch_images_sum (\S+)", text), re.search(r"talon_batch_images_count (\S+)", text)
    if size[0] and size[1]:
        found["encode"]["images"] = round(float(size[0].group(1)) / float(size[1].group(1)), 2)
    return found


def _without_paths(words: list[str]) -> list[str]:
    return [Path(word).name if "/" in word else word for word in words]


if __name__ == "__main__":
    main()
