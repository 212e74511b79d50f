"""Commands with a Ray of their own, as programs of their own: how they end, and that nothing of them is left."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from threading import Event

import pytest

from tests.cli.test_serve import end, serving
from tests.images.pictures import encoded, photo
from tests.scale.store import KEYS, store_of
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


def nothing_is_left(process: subprocess.Popen[str]) -> bool:
    """Wait until all processes are gone; also tells whether more than one Ray was started."""
    ends = time.monotonic() + WAIT
    while (left := members(process.pid)) and time.monotonic() < ends:
        time.sleep(0.1)
    rays = list(Path(gettempdir()).glob(f"ray/session_*_{process.pid}"))
    return not left and len(rays) == 1


def test_a_store_that_does_not_answer_holds_nobody_up(
    model: Path, incoming_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "talon_ocd", "discover"]
    options = ["-m", str(model), "-o", str(tmp_path / "out"), "--engine", "ray", "--encoders", "1", "--quiet"]
    with store_of(incoming_folder) as store:
        store.answers.clear()
        words = [*command, store.address, *options]
        process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            assert store.asked.wait(WAIT)
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT) == 130 and process.stderr is not None
            assert process.stderr.read().splitlines() == ["talon: stopped; what was written so far is kept."]
            assert nothing_is_left(process)
        finally:
            end(process)


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
        assert nothing_is_left(process)
