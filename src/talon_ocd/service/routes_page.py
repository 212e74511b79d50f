"""The page, health and metrics: what needs no version (layer: service)."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from fastapi import APIRouter, Response
from starlette.requests import Request

from talon_ocd.service import metrics, schemas
from talon_ocd.service.dependencies import ServiceHere
from talon_ocd.service.examples import responses
from talon_ocd.service.problems import Problem, busy

router = APIRouter()
PAGE = Path(__file__).parent / "page"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
}
"""Files that the page may be made of."""
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


@router.get("/", include_in_schema=False)
def page(request: Request) -> Response:
    """Return the page."""
    return asset(request, "index.html")


@router.get("/assets/{name:path}", include_in_schema=False)
def asset(request: Request, name: str) -> Response:
    """Return a file of the page."""
    path = PAGE.joinpath(*name.split("/"))
    clean = all(_NAME.fullmatch(part) for part in name.split("/"))
    if not clean or path.suffix not in KINDS or not path.is_file():
        raise Problem("not-found", "the page has no such file.")
    data = path.read_bytes()
    tag = f'"{hashlib.sha256(data).hexdigest()[:20]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}  # kept, but asked for: an update is seen at once
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers, media_type=KINDS[path.suffix])


@router.get("/healthz", tags=["operation"], responses=responses())
def health() -> schemas.Health:
    """Say that the process lives."""
    return schemas.Health(status="ok")


@router.get("/readyz", tags=["operation"], responses=responses("busy"))
def ready(service: ServiceHere) -> schemas.Health:
    """Say whether images are answered."""
    if not service.worker.alive or service.stopping:
        why = "is stopping" if service.stopping else "can't write answers down any more and must be restarted"
        raise busy(f"the service {why}.", 5)
    return schemas.Health(status="ready")


@router.get(
    "/metrics",
    tags=["operation"],
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **responses()},
)
def prometheus(service: ServiceHere) -> Response:
    """Return numbers for Prometheus."""
    return Response(service.metrics.text(), media_type=metrics.MEDIA_TYPE)
