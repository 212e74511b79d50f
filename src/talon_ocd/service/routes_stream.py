"""The stream as a whole: status, events, suggestions, what-if, map, session (layer: service)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse

from talon_ocd.durable import Event
from talon_ocd.service import bodies, schemas
from talon_ocd.service.auth import SESSION_SECONDS
from talon_ocd.service.dependencies import ServiceHere
from talon_ocd.service.events import Message, message
from talon_ocd.service.examples import responses
from talon_ocd.service.problems import Problem
from talon_ocd.service.routes_categories import EDIT, edited
from talon_ocd.service.service import Service

router = APIRouter(prefix="/v1", tags=["stream"])
MOST_RESUMED = 2000
"""Events that a client gets that was away; after more it shall load everything anew (``resync``)."""


@router.get("/status", responses=responses())
def status(service: ServiceHere) -> schemas.Status:
    """Say how the stream is."""
    return service.status()


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}, **responses("busy")},
)
async def events(
    service: ServiceHere,
    last: Annotated[str | None, Header(alias="Last-Event-ID", max_length=40)] = None,
) -> StreamingResponse:
    """Listen: `decision` for every image, `ledger` for every event of categories, `status` once in a while.

    Ledger events have ids: with `Last-Event-ID` come those that were missed, or `resync` if they are too many.
    """
    listener = service.broadcaster.join()
    try:
        first = await run_in_threadpool(_missed, service, last)
    except BaseException:
        service.broadcaster.leave(listener)
        raise
    stream = service.broadcaster.stream(listener, first)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


@router.get("/suggestions", responses=responses())
def suggestions(service: ServiceHere, limit: Annotated[int, Query(ge=1, le=200)] = 20) -> schemas.Suggestions:
    """List pairs of categories that look like one, the surest first."""
    return service.insight.suggestions(limit, service.views)


@router.post("/suggestions:refuse", responses=EDIT)
async def refuse(service: ServiceHere, body: bodies.PairRequest) -> schemas.ImageEdit:
    """Say that two categories are not the same; they are suggested no more."""
    event: Event = await edited(service, lambda catalog: catalog.refuse(body.first, body.second))
    return schemas.ImageEdit(event=await run_in_threadpool(service.views.event, event))


@router.get("/what-if", responses=responses())
def what_if(service: ServiceHere) -> schemas.WhatIf:
    """Say how many categories there would be at other thresholds, from stored features."""
    return service.insight.what_if()


@router.get("/map", responses=responses())
def map_of_images(service: ServiceHere, limit: Annotated[int, Query(ge=1, le=5000)] = 2000) -> schemas.Map:
    """Return the newest images in two dimensions."""
    return service.insight.map(limit)


@router.post("/session", status_code=204, response_class=Response, responses=responses())
def open_session(request: Request, service: ServiceHere, body: bodies.SessionRequest) -> Response:
    """Trade the token for a cookie, for pages: images and event streams can't send headers."""
    guardian = service.guardian
    if guardian.wants_token and not guardian.is_token(body.token):
        raise Problem("token-needed", "this is not the token of the service.")
    answer = Response(status_code=204)
    secure = request.url.scheme == "https"
    answer.set_cookie(
        guardian.cookie, guardian.session(), SESSION_SECONDS, path="/", secure=secure, httponly=True, samesite="strict"
    )
    return answer


@router.delete("/session", status_code=204, response_class=Response, responses=responses())
def close_session(service: ServiceHere) -> Response:
    """Forget the cookie."""
    answer = Response(status_code=204)
    answer.delete_cookie(service.guardian.cookie, path="/", httponly=True, samesite="strict")
    return answer


def _missed(service: Service, last: str | None) -> list[Message]:
    """Return what a client gets first: the status with the newest event's number, after what it has missed."""
    newest = int(service.journal.query("SELECT coalesce(max(seq), 0) AS last FROM events")[0]["last"])
    now = message("status", service.status().model_dump(mode="json"), newest)
    if last is None or not (last.isascii() and last.isdigit()) or int(last) >= newest:
        return [now]
    if newest - int(last) > MOST_RESUMED:
        return [message("resync", {"newest": newest}, newest), now]
    missed = [event for event in service.journal.events(int(last)) if event.seq <= newest]
    views = service.views.events(missed)
    return [*(message("ledger", view.model_dump(mode="json"), view.seq) for view in views), now]
