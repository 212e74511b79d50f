"""Runs an app: listens, and stops without losing anything (layer: service)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from signal import SIGINT, SIGTERM, signal

import uvicorn

from talon_ocd.errors import ConfigError
from talon_ocd.service.app import create_app
from talon_ocd.service.connection import protocol_for
from talon_ocd.service.service import Service
from talon_ocd.service.settings import ServiceSettings

KEEP_ALIVE_SECONDS = 15
WAITING_CONNECTIONS = 512
MOST_HEADERS = 32 * 1024
"""Bytes of a request's head."""


def listen(settings: ServiceSettings) -> socket.socket:
    """Open the address of a service."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(WAITING_CONNECTIONS)  # who comes while the model is being loaded waits for it
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"{settings.host}:{settings.port} can't be listened on ({error.strerror or error}); "
            "choose another --port or --host, or stop the program that uses it."
        ) from error
    return listener


def url_of(listener: socket.socket, host: str) -> str:
    """Return where a service is."""
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """A server that ends event streams when it stops, and lets its caller go on afterwards."""

    def __init__(self, service: Service, log_level: str = "warning", access_log: bool = False) -> None:
        settings = service.settings
        super().__init__(
            uvicorn.Config(
                create_app(service),
                http=protocol_for(settings.body_seconds),
                ws="none",
                lifespan="on",
                log_level=log_level,
                access_log=access_log,
                server_header=False,
                proxy_headers=settings.behind_proxy,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=round(settings.stop_seconds),
                h11_max_incomplete_event_size=MOST_HEADERS,
            )
        )
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: no new connections, listeners are sent away, requests under way are answered."""
        self._service.begin_stop()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGTERM and SIGINT; a stream that is closed in peace is no reason to die of the signal."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: list[tuple[int, Callable[..., object] | int | None]] = [
            (number, signal(number, self.handle_exit)) for number in (SIGINT, SIGTERM)
        ]
        try:
            yield
        finally:
            for number, handler in before:
                signal(number, handler)


def serve(service: Service, listener: socket.socket, access_log: bool = False) -> None:
    """Answer requests until somebody says stop."""
    Server(service, access_log=access_log).run([listener])
