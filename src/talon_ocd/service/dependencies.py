"""What routes ask for (layer: service)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Annotated, TypeVar

from fastapi import Depends, Path, Query
from starlette.requests import Request

from talon_ocd.errors import CatalogError
from talon_ocd.service.problems import Problem
from talon_ocd.service.schemas import MOST
from talon_ocd.service.service import Service

T = TypeVar("T")


async def service_of(request: Request) -> Service:
    """Return the service that a request belongs to; a coroutine, because others are called in a thread."""
    service: Service = request.app.state.service
    return service


ServiceHere = Annotated[Service, Depends(service_of)]
CategoryId = Annotated[int, Path(ge=0, le=MOST, description="Id of a category; ids of merged ones stay valid.")]
ImageIndex = Annotated[int, Path(ge=0, le=MOST, description="Index of an image in the stream.")]
Limit = Annotated[int, Query(ge=1, le=500, description="Most rows.")]
Cursor = Annotated[str | None, Query(max_length=2000, description="`next` of the page before.")]


def finished(future: Future[T]) -> Awaitable[T]:
    """Wait for the owner of the stream; a client that leaves cancels nothing."""
    return asyncio.shield(asyncio.wrap_future(future))


def found(look: Callable[[], T]) -> T:
    """Return what the catalog has; what it has not is a 404."""
    try:
        return look()
    except CatalogError as error:
        raise Problem("not-found", str(error)) from error


def understood(look: Callable[[], T]) -> T:
    """Return what the catalog makes of a value; what makes no sense to it is a 422."""
    try:
        return look()
    except CatalogError as error:
        raise Problem("invalid-request", str(error), errors=[]) from error
