"""Live news for pages and programs: server-sent events (layer: service).

``decision`` and ``status`` tell what happens; ``ledger`` events carry their number as ``id``, so that a client that
was away (``Last-Event-ID``) gets what it missed from the journal.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from talon_ocd.service.problems import busy

HEARTBEAT = 15.0
"""Seconds of silence after which a comment is sent, so that proxies keep the connection."""
BACKLOG = 512
"""Messages that may wait for a slow client; then it is sent away and may come back."""
RETRY = b"retry: 2000\n\n"


@dataclass(frozen=True)
class Message:
    """One event, ready to be sent; ``number`` is that of a ledger event, else 0."""

    content: bytes
    number: int = 0


def message(kind: str, data: Mapping[str, Any], number: int | None = None) -> Message:
    r"""Return an event of a kind.

    >>> message("status", {"answered": 3}, 7).content
    b'id: 7\nevent: status\ndata: {"answered":3}\n\n'
    """
    head = f"id: {number}\n" if number is not None else ""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)  # JSON has no raw line ends
    ledger = number or 0 if kind == "ledger" else 0
    return Message(f"{head}event: {kind}\ndata: {text}\n\n".encode("utf-8", "replace"), ledger)


@dataclass(eq=False)
class Listener:
    """One client; it lives in the event loop that made it."""

    loop: asyncio.AbstractEventLoop
    waiting: asyncio.Queue[Message | None] = field(default_factory=lambda: asyncio.Queue(BACKLOG))
    gone: bool = False

    def offer(self, news: Message | None) -> None:
        """Take a message, or give up if the client does not keep up; ``None`` is the end."""
        if self.gone:
            return
        if news is None or self.waiting.full():
            self.gone = True
            if self.waiting.full():
                self.waiting.get_nowait()
            news = None
        self.waiting.put_nowait(news)


class Broadcaster:
    """Sends news to all listeners; any thread may publish."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._listeners: set[Listener] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._listeners)

    def join(self) -> Listener:
        """Add a client; call it inside the event loop."""
        listener = Listener(asyncio.get_running_loop())
        with self._lock:
            if self._closed:
                raise busy("the service is stopping; come again.", 5)
            if len(self._listeners) >= self._most:
                raise busy(f"{self._most} clients listen already; come again later.", 30)
            self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """Forget a client."""
        with self._lock:
            self._listeners.discard(listener)

    def publish(self, news: Message | None) -> None:
        """Send news to everybody; ``None`` says goodbye."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            with suppress(RuntimeError):  # its event loop is closed: the service is gone
                listener.loop.call_soon_threadsafe(listener.offer, news)

    def close(self) -> None:
        """Let all connections end, and take no new ones."""
        with self._lock:
            self._closed = True
        self.publish(None)

    async def stream(self, listener: Listener, first: Sequence[Message]) -> AsyncIterator[bytes]:
        """Yield what a client gets: ``first``, then news as they come; ledger events never twice."""
        try:
            yield RETRY
            newest = 0
            for early in first:
                newest = max(newest, early.number)
                yield early.content
            while True:
                try:
                    news = await asyncio.wait_for(listener.waiting.get(), HEARTBEAT)
                except asyncio.TimeoutError:
                    yield b": still here\n\n"
                    continue
                if news is None:
                    return
                if not news.number or news.number > newest:
                    yield news.content
        finally:
            self.leave(listener)
