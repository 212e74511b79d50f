"""A service and its Ray as a program of its own: its encoders grow under load, and nothing of it is left behind."""

from __future__ import annotations

import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from threading import Event

import pytest

from tests.cli.test_serve import serving
from tests.images.pictures import encoded, photo
from tests.service.running import WAIT, Client

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="the service on Ray needs the extra ray"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="who is left is read from /proc"),
]
CLIENTS = 6
SIDE = 300
"""Pixels: an encoder is busy with decoding, whatever the machine."""


def encoders(client: Client) -> int:
    found = re.search(r"^talon_encoders (\d+)", client.get("/metrics").body.decode(), re.MULTILINE)
    assert found
    return int(found.group(1))


def members(session: int) -> list[str]:
    """Return the programs that run in a session."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended by now
            name, rest = file.read_text().split("(", 1)[1].rsplit(")", 1)
            state, _, _, belongs = rest.split()[:4]
            found += [name] if int(belongs) == session and state != "Z" else []
    return found


def test_under_load_there_are_more_encoders(model: Path, tmp_path: Path) -> None:
    options = ("--engine", "ray", "--encoders", "1-2", "--rate", "0")
    with serving(model, tmp_path / "stream", *options) as (client, process), ThreadPoolExecutor() as pool:
        images = [encoded(photo(SIDE, SIDE, seed=number)) for number in range(2)]
        assert client.decide(images[0]).status == 200 and encoders(client) == 1
        grown, ends = Event(), time.monotonic() + WAIT

        def send() -> list[int]:
            indices = []
            while not grown.is_set() and time.monotonic() < ends:
                answer = client.batch(images)
                assert answer.status == 200, answer
                indices += [int(decision["index"]) for decision in answer.json["decisions"]]
            return indices

        sent = [pool.submit(send) for _ in range(CLIENTS)]
        while encoders(client) < 2 and time.monotonic() < ends and not any(one.done() for one in sent):
            time.sleep(0.1)
        grown.set()
        answered = sorted(index for one in sent for index in one.result())
        assert answered == list(range(1, len(answered) + 1))
        assert encoders(client) == 2
        assert len(members(process.pid)) > 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT) == 0 and process.stderr is not None
        assert process.stderr.read().splitlines() == ["talon: stopped; everything that was answered is kept."]
        assert len(list(Path(gettempdir()).glob(f"ray/session_*_{process.pid}"))) == 1  # no other Ray was started
        gone_by = time.monotonic() + WAIT
        while left := members(process.pid):
            assert time.monotonic() < gone_by, left
            time.sleep(0.1)
