"""How much and how fast a client may send (layer: service)."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import ceil

from starlette.types import Message, Receive

from talon_ocd.service.problems import Problem, busy
from talon_ocd.service.settings import ServiceSettings

MOST_CLIENTS = 10_000
"""Clients whose rate is remembered; the one that was silent longest is forgotten first."""
DRAIN_SECONDS, DRAIN_BYTES = 3.0, 2**23
"""Time to read on after a refusal, and bytes where the limit itself is small: a client that still sends would not see
the answer."""


class TokenBuckets:
    """Lets every client do ``rate`` things a second, and ``burst`` at once.

    >>> now = [0.0]
    >>> buckets = TokenBuckets(rate=2, burst=1, clock=lambda: now[0])
    >>> buckets.wait("a"), buckets.wait("a"), buckets.wait("b")
    (0.0, 0.5, 0.0)
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str) -> float:
        """Take one thing for a client; returns the seconds it has to wait for it (0: go on)."""
        if not self._rate:
            return 0.0
        now = self._clock()
        left, before = self._buckets.pop(client, (float(self._burst), now))
        left = min(self._burst, left + (now - before) * self._rate)
        allowed = left >= 1
        self._buckets[client] = (left - allowed, now)
        if len(self._buckets) > MOST_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._rate


class BodyBudget:
    """Bytes of all requests that are in the house at the moment."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.held = 0


class LimitedBody:
    """Reads the body of one request within its limits; use it as the request's ``receive``."""

    def __init__(self, receive: Receive, headers: Mapping[str, str], budget: BodyBudget) -> None:
        self._receive, self._budget = receive, budget
        self._limit = budget.settings.max_body
        self._waits_for_leave = headers.get("expect", "").lower() == "100-continue"
        self._size = 0
        self._ended = False
        self._deadline: float | None = None
        self._declared = _declared(headers)

    async def __call__(self) -> Message:
        """Return the next message; refuses what is too large or too slow."""
        if self._ended:
            return await self._receive()
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._budget.settings.body_seconds
        try:
            message = await asyncio.wait_for(self._receive(), max(self._deadline - now, 0.001))
        except asyncio.TimeoutError:
            self._ended = True
            seconds = self._budget.settings.body_seconds
            raise Problem(
                "slow-body", f"the body did not arrive within {seconds:g} s; send it again.", {"Connection": "close"}
            ) from None
        if message["type"] != "http.request":
            self._ended = True
            return message
        self._ended = not message.get("more_body", False)
        await self._count(len(message.get("body", b"")))
        return message

    async def check_declared(self) -> None:
        """Refuse by the length that the client has announced, before anything is read."""
        if self._declared > self._limit:
            await self._refuse()

    async def drain(self) -> None:
        """Read on for a moment and forget what comes, so that the client sees a refusal and no broken pipe."""
        if self._ended or (self._waits_for_leave and not self._size):
            return
        most = max(2 * self._limit, DRAIN_BYTES)

        async def rest() -> None:
            read, more = 0, True
            while more and read < most:
                message = await self._receive()
                read += len(message.get("body", b""))
                more = message["type"] == "http.request" and message.get("more_body", False)

        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(rest(), DRAIN_SECONDS)
        self._ended = True

    def release(self) -> None:
        """Say that the request has been answered."""
        self._budget.held -= self._size
        self._size = 0

    async def _count(self, received: int) -> None:
        self._size += received
        self._budget.held += received
        if self._size > self._limit:
            await self._refuse()
        if self._budget.held > self._budget.settings.max_held:
            self.release()
            await self.drain()
            raise busy("many large requests are waiting; send this one again in a moment.")

    async def _refuse(self) -> None:
        self.release()
        await self.drain()
        detail = f"the body is larger than {self._limit:,} bytes; make the image smaller or send fewer at once."
        raise Problem("too-large", detail, {"Connection": "close"}, limit=self._limit)


def retry_after(seconds: float) -> dict[str, str]:
    """Return the header that says when to come again."""
    return {"Retry-After": str(max(1, ceil(seconds)))}


def _declared(headers: Mapping[str, str]) -> int:
    text = headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
