"""Listens to the events of a service."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.service.running import WAIT


@dataclass
class News:
    """One server-sent event."""

    kind: str
    data: Any
    id: str | None


class Listener:
    """The answer of ``/v1/events``, event by event."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def next(self, kind: str | None = None) -> News | None:
        """Return the next event (of a kind); ``None`` when the service says goodbye."""
        block: dict[str, str] = {}
        while line := self._response.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                block[name] = value
            elif "event" in block and kind in (None, block["event"]):
                return News(block["event"], json.loads(block["data"]), block.get("id"))
            else:
                block = {}
        return None


@contextmanager
def listening(port: int, headers: Mapping[str, str] | None = None) -> Iterator[Listener]:
    """Listen; the first event, the status, has been heard when it begins."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
    connection.request("GET", "/v1/events", headers=dict(headers or {}))
    try:
        with connection.getresponse() as response:
            assert response.status == 200 and response.getheader("content-type", "").startswith("text/event-stream")
            yield Listener(response)
    finally:
        connection.close()
