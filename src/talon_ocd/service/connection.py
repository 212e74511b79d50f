"""Connections that do not wait for ever (layer: service)."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class TimedProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection if a request's head does not arrive in time.

    The bodies of requests have their own limit (``LimitedBody``), and idle connections uvicorn's.
    """

    head_seconds = 30.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Take what came: it ends the wait, or is the beginning of a head."""
        super().data_received(data)
        if self._answering():
            self._rest()
        else:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._rest()
        super().connection_lost(exc)

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._give_up)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self._answering() and not self.transport.is_closing():
            self.transport.close()


def protocol_for(seconds: float) -> type[TimedProtocol]:
    """Return the protocol with its limit; uvicorn makes the connections itself and passes nothing on."""
    return type("TimedProtocol", (TimedProtocol,), {"head_seconds": seconds})
