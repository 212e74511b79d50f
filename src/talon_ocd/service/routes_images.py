"""Images: the newest answers, pictures, corrections; history and undo (layer: service)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from talon_ocd.durable import Event
from talon_ocd.service import bodies, schemas
from talon_ocd.service.dependencies import ImageIndex, Limit, ServiceHere
from talon_ocd.service.examples import responses
from talon_ocd.service.problems import Problem
from talon_ocd.service.routes_categories import EDIT, edited
from talon_ocd.service.service import Service

router = APIRouter(prefix="/v1", tags=["images"])
SHOWN = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp", "image/bmp", "image/avif"})
"""Pictures that browsers show and that can't carry scripts; others are only offered for saving."""
PICTURE = {
    "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "Cache-Control": "private, max-age=3600",
}
Before = Annotated[int | None, Query(ge=0, le=schemas.MOST, description="Only what came before this one.")]
_MISSING = responses("not-found")
_PICTURES = {200: {"content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}}, **_MISSING}


@router.get("/images", responses=responses())
def recent_images(service: ServiceHere, limit: Limit = 50, before: Before = None) -> schemas.RecentPage:
    """List the newest answers."""
    items, following = service.views.recent(limit, before)
    return schemas.RecentPage(items=items, next=following)


@router.get("/images/{index}", responses=_PICTURES, response_class=Response)
def image(request: Request, service: ServiceHere, index: ImageIndex) -> Response:
    """Return the picture as it came, or its thumbnail if the original is gone."""
    at = _at(service, index)
    tag = f'"{index}-{at}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={**PICTURE, "ETag": tag})
    original = service.stream.pictures.original(index)
    if original is None:
        return thumbnail(request, service, index)
    data, kind = original
    headers = {**PICTURE, "ETag": tag}
    if kind not in SHOWN:
        kind, headers["Content-Disposition"] = "application/octet-stream", "attachment"
    return Response(data, headers=headers, media_type=kind)


@router.get("/images/{index}/thumbnail", responses=_PICTURES, response_class=Response)
def thumbnail(request: Request, service: ServiceHere, index: ImageIndex) -> Response:
    """Return a small picture."""
    tag = f'"{index}-{_at(service, index)}-small"'
    headers = {**PICTURE, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    small = service.stream.pictures.thumbnail(index)
    if small is None:
        raise Problem("not-found", f"image {index} has no picture any more.")
    return Response(small, headers=headers, media_type="image/jpeg")


@router.get("/images/{index}/decision", responses=_MISSING)
def image_decision(service: ServiceHere, index: ImageIndex) -> schemas.Decision:
    """Return the answer that an image got, explained with the names of today."""
    decision = service.views.stored(index)
    if decision is None:
        raise _no_image(service, index)
    return decision


@router.post("/images:move", responses=EDIT)
async def move_images(service: ServiceHere, body: bodies.MoveRequest) -> schemas.ImageEdit:
    """Bring images to another category; the stream learns from it at once."""
    return await _shown(service, await edited(service, lambda catalog: catalog.move(body.images, body.category)))


@router.post("/images:confirm", responses=EDIT)
async def confirm_images(service: ServiceHere, body: bodies.ImagesRequest) -> schemas.ImageEdit:
    """Say that images are where they belong."""
    return await _shown(service, await edited(service, lambda catalog: catalog.confirm(body.images)))


@router.post("/images:reject", responses=EDIT)
async def reject_images(service: ServiceHere, body: bodies.ImagesRequest) -> schemas.ImageEdit:
    """Say that images belong to no category."""
    return await _shown(service, await edited(service, lambda catalog: catalog.reject(body.images)))


@router.post("/undo", responses=EDIT, tags=["history"])
async def undo(service: ServiceHere, body: bodies.UndoRequest | None = None) -> schemas.Undone:
    """Take a change back: the last one, or any. Undoing an undo brings the change back."""
    wanted = None if body is None else body.event
    event = await edited(service, lambda catalog: catalog.undo(wanted))

    def both() -> schemas.Undone:
        before = service.views.find_event(int(event.undoes or 0))
        assert before is not None
        return schemas.Undone(event=service.views.event(event), undone=service.views.event(before))

    return await run_in_threadpool(both)


@router.get("/history", responses=responses(), tags=["history"])
def history(
    service: ServiceHere,
    limit: Limit = 50,
    before: Before = None,
    everything: Annotated[bool, Query(description="Also what the stream itself did.")] = False,
) -> schemas.History:
    """List what people did, newest first."""
    events = list(service.catalog.history(limit + 1, before, everything))
    following = events[limit - 1].seq if len(events) > limit else None
    return schemas.History(items=service.views.events(events[:limit]), next=following)


async def _shown(service: Service, event: Event) -> schemas.ImageEdit:
    return schemas.ImageEdit(event=await run_in_threadpool(service.views.event, event))


def _at(service: Service, index: int) -> str:
    """Return when an image came, for its ETag: another stream on this address has other images with its numbers."""
    rows = service.journal.query("SELECT at FROM decisions WHERE idx = ?", (index,))
    if not rows:
        raise _no_image(service, index)
    return f"{int(rows[0]['at'] * 1000):x}"


def _no_image(service: Service, index: int) -> Problem:
    return Problem("not-found", f"there is no image {index}; {service.stream.answered} were answered, counted from 0.")
