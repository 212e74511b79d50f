"""Categories: reading them, and what people say about them (layer: service)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from talon_ocd.catalog import Catalog, NameTakenError
from talon_ocd.catalog.names import clean_name
from talon_ocd.durable import Event
from talon_ocd.errors import CatalogError
from talon_ocd.service import bodies, schemas
from talon_ocd.service.dependencies import CategoryId, Cursor, Limit, ServiceHere, finished, found, understood
from talon_ocd.service.examples import responses
from talon_ocd.service.problems import Problem
from talon_ocd.service.service import Service

router = APIRouter(prefix="/v1", tags=["categories"])
State = Literal["active", "tentative", "hidden", "merged", "retired", "known", "discovered", "all"]
Sort = Literal["recent", "count", "name", "created"]
Change = Callable[[Catalog], Event]
EDIT = responses("not-found", "conflict", "busy", "storage")


@router.get("/categories", responses=responses())
def list_categories(
    service: ServiceHere,
    state: State = "active",
    q: Annotated[str, Query(max_length=200, description="Part of a name, present or past.")] = "",
    sort: Sort = "recent",
    limit: Limit = 50,
    cursor: Cursor = None,
) -> schemas.CategoryPage:
    """List categories, page by page."""
    page = understood(lambda: service.catalog.list(state, q, sort, limit, cursor))
    items = [service.views.category(category) for category in page.items]
    return schemas.CategoryPage(items=items, next=page.next, total=page.total)


@router.post("/categories:merge", responses=EDIT)
async def merge_categories(service: ServiceHere, body: bodies.MergeRequest) -> schemas.Edit:
    """Say that categories are one; both keep learning their own images, so an undo is exact."""
    event = await edited(service, lambda catalog: catalog.merge(body.categories, body.into))
    return await run_in_threadpool(_edit, service, event, event.category)


@router.get("/categories/{category}", responses=responses("not-found"))
def get_category(service: ServiceHere, category: CategoryId) -> schemas.Category:
    """Return one category; one that was merged says into which."""
    return service.views.category(found(lambda: service.catalog.get(category)))


@router.get("/categories/{category}/images", responses=responses("not-found"))
def list_members(
    service: ServiceHere, category: CategoryId, limit: Limit = 50, cursor: Cursor = None
) -> schemas.MemberPage:
    """List the images that are at home in a category, newest first."""
    end = found(lambda: service.catalog.resolve(category))
    page = understood(lambda: service.catalog.members(end, limit, cursor))
    return schemas.MemberPage(items=service.views.members(page.items), next=page.next, total=page.total)


@router.patch("/categories/{category}", responses={**EDIT, **responses("name-taken", "conflict")})
async def change_category(service: ServiceHere, category: CategoryId, body: bodies.CategoryPatch) -> schemas.Edit:
    """Name a category, hide it or show it again.

    A name that another category has is refused with its id; with `merge` the two become one.
    """
    if body.name is None and body.hidden is None:
        raise Problem("invalid-request", "give a name, or hidden.", errors=[])
    name = None if body.name is None else understood(lambda: clean_name(body.name or ""))
    await run_in_threadpool(found, lambda: service.catalog.resolve(category))
    event = None
    if name is not None:
        event = await edited(service, lambda catalog: catalog.rename(category, name, merge=body.merge))
    if body.hidden is not None:
        hidden = body.hidden
        state = await run_in_threadpool(lambda: service.catalog.get(service.catalog.resolve(category)).state)
        if (state == "hidden") != hidden:
            event = await edited(service, lambda catalog: catalog.hide(category, hidden))
    return await run_in_threadpool(_edit, service, event, category)


@router.post("/categories/{category}:split", responses={**EDIT, **responses("name-taken", "conflict")})
async def split_category(service: ServiceHere, category: CategoryId, body: bodies.SplitRequest) -> schemas.Edit:
    """Make a new category of some images of one."""
    name = None if body.name is None else understood(lambda: clean_name(body.name or ""))
    await run_in_threadpool(found, lambda: service.catalog.resolve(category))
    event = await edited(service, lambda catalog: catalog.split(category, body.images, name))
    return await run_in_threadpool(_edit, service, event, int(event.data["into"]))


async def edited(service: Service, change: Change) -> Event:
    """Let a person change something, in its turn; what the catalog refuses is a 409."""
    try:
        return await finished(service.edit(change))
    except NameTakenError as error:
        raise Problem("name-taken", str(error), existing=error.existing, existing_name=error.existing_name) from error
    except CatalogError as error:
        raise Problem("conflict", str(error)) from error


def _edit(service: Service, event: Event | None, category: int | None) -> schemas.Edit:
    assert category is not None
    shown = service.views.category(service.catalog.get(service.catalog.resolve(category)))
    return schemas.Edit(event=None if event is None else service.views.event(event), category=shown)
