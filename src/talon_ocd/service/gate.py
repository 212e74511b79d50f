"""The gate that every request passes first: rate, host, origin, token, body limits (layer: service).

It is plain ASGI and stands outside of the framework: what it refuses never reaches a route.
"""

from __future__ import annotations

import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from talon_ocd.service.auth import Guardian
from talon_ocd.service.limits import BodyBudget, LimitedBody, TokenBuckets, retry_after
from talon_ocd.service.metrics import Metrics
from talon_ocd.service.problems import Problem
from talon_ocd.service.settings import ServiceSettings

UNLIMITED = frozenset({"/healthz", "/readyz"})
"""Probes of orchestrators may come as often as they like."""
CONTENT_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
SECURITY = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer that does not bring its own."""


class Gate:
    """Wraps an app: refuses, limits, counts and adds the headers that keep browsers careful."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings, guardian: Guardian, metrics: Metrics) -> None:
        self._app, self._guardian, self._metrics = app, guardian, metrics
        self._budget = BodyBudget(settings)
        self._buckets = TokenBuckets(settings.rate, settings.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        body = LimitedBody(receive, headers, self._budget)
        answer = _Answer(send)
        try:
            await self._enter(scope, headers, body)
            await self._app(scope, body, answer)
        except Problem as problem:
            await body.drain()
            await problem.response()(scope, receive, answer)
        finally:
            body.release()
            self._metrics.answered(scope, answer.status, time.perf_counter() - answer.started)

    async def _enter(self, scope: Scope, headers: Headers, body: LimitedBody) -> None:
        path = scope["path"]
        if path not in UNLIMITED:
            wait = self._buckets.wait((scope.get("client") or ("unknown",))[0])
            if wait:
                detail = f"too many requests from your address; come again in {wait:.1f} s."
                raise Problem("too-many-requests", detail, retry_after(wait))
        self._guardian.check(scope["method"], path, headers)
        await body.check_declared()


class _Answer:
    """Sends an answer with the careful headers, and remembers its status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.started = time.perf_counter()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY.items():
                headers.setdefault(name, value)
        await self._send(message)
