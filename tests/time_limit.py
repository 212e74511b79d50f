"""A limit for tests that wait for other processes: a deadlock fails with a traceback instead of stopping everything."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SECONDS = 300


@contextmanager
def time_limit(seconds: int = SECONDS) -> Iterator[None]:
    """Raise ``TimeoutError`` where the main thread is after some seconds; systems without alarms wait on."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {seconds} s; some process does not answer.")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
