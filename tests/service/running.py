"""A real service on a free port of this machine, and a small client for it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from talon_ocd import Talon
from talon_ocd.durable import DurableStream
from talon_ocd.service.encoding import Encoding, LocalEncoding
from talon_ocd.service.server import Server, listen
from talon_ocd.service.service import Service
from talon_ocd.service.settings import ServiceSettings
from tests import tiny
from tests.images.pictures import encoded

TOKEN = "a-token-of-the-tests"
WAIT = 60.0
"""Seconds after which a test gives up waiting; nothing is measured by it."""
ENCODING: Callable[[DurableStream], Encoding] = LocalEncoding
"""Who encodes for the services of the tests; another room puts its own here and runs the same tests."""


@dataclass
class Answer:
    """What a service answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def problem(self, kind: str) -> dict[str, Any]:
        """Return the refusal; it must be one of this kind."""
        assert self.headers["content-type"] == "application/problem+json", self
        found: dict[str, Any] = self.json
        assert found["type"] == f"urn:talon-ocd:problem:{kind}", found
        assert found["status"] == self.status and found["title"] and found["detail"]
        return found


@dataclass
class Client:
    """Speaks to a service; every call is a connection of its own."""

    port: int
    token: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __call__(
        self, method: str, path: str, body: bytes | Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        whole = {**self.headers, **(headers or {})}
        if self.token is not None:
            whole.setdefault("Authorization", f"Bearer {self.token}")
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            whole.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        try:
            connection.request(method, path, body, whole)
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self("GET", path, headers=headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self("POST", path, body, headers)

    def decide(self, image: bytes, query: str = "", key: str | None = None) -> Answer:
        headers = {"Content-Type": "image/png", **({"Idempotency-Key": key} if key else {})}
        return self("POST", f"/v1/decide{query}", image, headers)

    def batch(self, images: Sequence[bytes], query: str = "", key: str | None = None, field: str = "images") -> Answer:
        body, kind = form([(field, f"{at}.png", image) for at, image in enumerate(images)])
        return self(
            "POST",
            f"/v1/decide:batch{query}",
            body,
            {"Content-Type": kind, **({"Idempotency-Key": key} if key else {})},
        )

    def state(self) -> dict[str, Any]:
        """Return all that a request can change."""
        status = self.get("/v1/status").json
        kept = {name: status[name] for name in ("answered", "totals", "verdicts", "encoder_steps")}
        return {**kept, "history": self.get("/v1/history?everything=true").json}


@dataclass
class Running:
    """A service that runs in a thread."""

    service: Service
    server: Server
    port: int
    thread: threading.Thread

    def client(self, token: str | None = None) -> Client:
        return Client(self.port, token)

    def stop(self) -> None:
        """Stop as a signal would."""
        self.server.should_exit = True
        self.thread.join(WAIT)
        assert not self.thread.is_alive()


@contextmanager
def running(
    talon: Talon, folder: Path, threshold: float | None = None, adapt: str | None = None, **settings: Any
) -> Iterator[Running]:
    """Run a service as ``talon serve`` does."""
    chosen = ServiceSettings(**{"port": 0, "rate": 0.0, **settings})
    listener = listen(chosen)
    parts: dict[str, Any] = {"threshold": threshold, "adapt": adapt, "encoding": ENCODING}
    with listener, Service(talon, folder, chosen, **parts) as service:
        server = Server(service)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield Running(service, server, listener.getsockname()[1], thread)
        finally:
            server.should_exit = True
            thread.join(WAIT)


@lru_cache
def digits(count: int = 60) -> tuple[bytes, ...]:
    """Pictures of known and unknown digits, shuffled by a fixed rule, as PNG."""
    items = tiny.incoming(140)
    return tuple(encoded(items[(at * 37) % len(items)].load()) for at in range(count))


def form(parts: Sequence[tuple[str, str | None, bytes]]) -> tuple[bytes, str]:
    """Return a multipart body and its content type; parts are field, file name and content."""
    lines = b""
    for name, file, content in parts:
        called = f'; filename="{file}"' if file is not None else ""
        lines += (
            f'--limit\r\nContent-Disposition: form-data; name="{name}"{called}\r\n\r\n'.encode() + content + b"\r\n"
        )
    return lines + b"--limit--\r\n", "multipart/form-data; boundary=limit"
