"""``talon`` as a program of its own: what it says is in a file, every wait has an end, and nothing of it stays behind.

A pipe would be open as long as any process that inherited it, so that reading one may never end.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

LONGEST = 180.0
"""Seconds after which a program is given up: a cold start on two busy cores is far below; nothing is measured by it."""
REST = 0.1


class Program:
    """A command in a session of its own.

    Attributes:
        process: its first process.
    """

    def __init__(self, words: tuple[str, ...], file: Path) -> None:
        self._file = file
        with file.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "talon_ocd", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=sink,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """All that it has written to its standard error so far."""
        return self._file.read_text(encoding="utf-8", errors="replace")

    def says(self, pattern: str) -> re.Match[str]:
        """Wait until it has said something, whatever else it says before."""
        ends = time.monotonic() + LONGEST
        while True:
            ended = self.process.poll() is not None or time.monotonic() > ends
            found = re.search(pattern, self.said)
            if found:
                return found
            assert not ended, f"it never said {pattern}, but: {self.said}"
            time.sleep(REST)

    def stop(self, number: signal.Signals) -> int:
        """Send a signal and wait until it has ended; returns its exit code."""
        self.process.send_signal(number)
        return self.process.wait(LONGEST)

    def members(self) -> dict[int, str]:
        """Return the processes of its session, those of its Ray too, with their names."""
        found = {}
        for file in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended by now
                name, rest = file.read_text().split("(", 1)[1].rsplit(")", 1)
                state, _, _, session = rest.split()[:4]
                if int(session) == self.process.pid and state != "Z":
                    found[int(file.parent.name)] = name
        return found

    def left(self) -> dict[int, str]:
        """Wait until all its processes have ended; returns those that have not."""
        ends = time.monotonic() + LONGEST
        while (left := self.members()) and time.monotonic() < ends:
            time.sleep(REST)
        return left

    def kill(self) -> None:
        """Kill what still runs of it."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        for member in self.members():
            with suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        self.process.wait(LONGEST)


@contextmanager
def program(*words: str) -> Iterator[Program]:
    """Run a command; what still runs of it at the end is killed."""
    with TemporaryDirectory() as folder:
        started = Program(words, Path(folder) / "stderr")
        try:
            yield started
        finally:
            started.kill()
