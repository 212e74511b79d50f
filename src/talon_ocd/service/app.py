"""The app: routes behind the gate (layer: service)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp

from talon_ocd import __version__
from talon_ocd.service import problems, routes_categories, routes_decide, routes_images, routes_page, routes_stream
from talon_ocd.service.events import message
from talon_ocd.service.examples import PROBLEMS
from talon_ocd.service.gate import Gate
from talon_ocd.service.schemas import Problem
from talon_ocd.service.service import Service

STATUS_SECONDS = 1.0
"""How often listeners hear how the stream is, while it changes."""
ABOUT = """On-the-fly category discovery in a stream of images: send images, get a known class, a category discovered
earlier or a new one; look at what was found, name it, merge it, split it, undo it.

Refusals are `application/problem+json` (RFC 9457). Send `Authorization: Bearer TOKEN` if the service has a token."""


def create_app(service: Service) -> ASGIApp:
    """Return the ASGI app of a service; the service stays the caller's to close."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        ticking = asyncio.create_task(_tell_status(service))
        yield
        ticking.cancel()
        with suppress(asyncio.CancelledError):
            await ticking

    app = FastAPI(
        title="talon", version=__version__, description=ABOUT, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    app.state.service = service
    problems.install(app)
    for routes in (routes_decide, routes_categories, routes_images, routes_stream, routes_page):
        app.include_router(routes.router)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return Gate(app, service.settings, service.guardian, service.metrics)


async def _tell_status(service: Service) -> None:
    """Tell listeners how the stream is whenever it has changed."""
    told = None
    while True:
        await asyncio.sleep(STATUS_SECONDS)
        if not len(service.broadcaster):
            continue
        status = (await run_in_threadpool(service.status)).model_dump(mode="json")
        state = {name: value for name, value in status.items() if name not in ("uptime", "rate")}
        if state != told:
            told = state
            service.broadcaster.publish(message("status", status))


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return the description, with problems instead of the framework's own errors, and the token."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        parts = made.setdefault("components", {})
        models = parts.setdefault("schemas", {})
        models["Problem"] = Problem.model_json_schema()
        models["Problem"]["examples"] = list(PROBLEMS.values())
        for name in ("HTTPValidationError", "ValidationError"):
            models.pop(name, None)
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}, {}]
        app.openapi_schema = made
    return app.openapi_schema
