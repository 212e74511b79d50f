"""Commands with a Ray of their own, as programs of their own: how they end, and that nothing of them is left."""

from __future__ import annotations

import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from threading import Event

import pytest
from PIL import Image

from tests.cli.programs import LONGEST, Program
from tests.cli.test_serve import serving
from tests.images.pictures import encoded
from tests.service.running import Client
from tests.time_limit import time_limit

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="the service on Ray needs the extra ray"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="who is left is read from /proc"),
]
CLIENTS, EACH = 6, 16
"""Together three micro-batches: while one encoder has two of them in hand, another one waits."""
SIDE = 1500
"""Pixels of a side. Of one colour: small to send, but to decode one takes some 0.03 s, longer than all else together.
All of them take about 3 s, far from the 60 s after which they would be refused."""
LIMIT = 900
"""Seconds for a whole test, more than all of its waits together."""


def encoders(client: Client) -> int:
    found = re.search(r"^talon_encoders (\d+)", client.get("/metrics").body.decode(), re.MULTILINE)
    assert found
    return int(found.group(1))


def rays() -> set[Path]:
    """Return the folders of all Rays that this machine has seen."""
    return set(Path(gettempdir()).glob("ray/session_*"))


def ended_well(started: Program, before: set[Path]) -> str:
    """Check that nothing of a program is left, and that it had one Ray; returns what it said."""
    left = started.left()
    started.kill()
    assert not left, f"{left} are left: {started.said}"
    ours = [folder for folder in rays() - before if folder.name.endswith(f"_{started.process.pid}")]
    assert len(ours) == 1, ours
    assert "Traceback" not in started.said and "Started a local Ray" not in started.said, started.said
    return started.said


def test_under_load_there_are_more_encoders(model: Path, tmp_path: Path) -> None:
    options = ("--engine", "ray", "--encoders", "1-2", "--rate", "0")
    before = rays()
    with (
        time_limit(LIMIT),
        serving(model, tmp_path / "stream", *options) as (client, started),
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        images = [encoded(Image.new("RGB", (SIDE, SIDE), (15 * number, 90, 200))) for number in range(EACH)]
        assert client.decide(images[0]).status == 200 and encoders(client) == 1
        enough, ends = Event(), time.monotonic() + LONGEST

        def send() -> list[int]:
            indices = []
            while not enough.is_set() and time.monotonic() < ends:
                answer = client.batch(images)
                assert answer.status == 200, answer
                indices += [int(decision["index"]) for decision in answer.json["decisions"]]
            return indices

        sent = [pool.submit(send) for _ in range(CLIENTS)]
        try:
            while (most := encoders(client)) < 2 and not any(one.done() for one in sent):
                time.sleep(0.1)
        finally:
            enough.set()
        answered = sorted(index for one in sent for index in one.result())
        assert answered == list(range(1, len(answered) + 1))
        assert most == 2, started.said
        assert len(started.members()) > 1
        assert started.stop(signal.SIGTERM) == 0
        assert "talon: stopped; everything that was answered is kept." in ended_well(started, before).splitlines()
