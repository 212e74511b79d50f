"""Answers for images: one, or a batch (layer: service)."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from talon_ocd.errors import ImageError
from talon_ocd.service import examples, schemas
from talon_ocd.service.deciding import Answers
from talon_ocd.service.dependencies import ServiceHere
from talon_ocd.service.events import message
from talon_ocd.service.problems import from_error
from talon_ocd.service.service import Service
from talon_ocd.service.uploads import FORM, many_images, one_image

router = APIRouter(prefix="/v1", tags=["decide"])
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key", min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$",
        description="Chosen by the client, one for each request: sent again, it gets the first answer "
        "(`Idempotent-Replay: true`) and nothing is learned twice.",
    ),
]  # fmt: skip
Learn = Annotated[bool, Query(description="Remember the image and learn from it; else only look.")]
_BINARY = {"type": "string", "format": "binary"}
_ONE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            **{kind: {"schema": _BINARY} for kind in ("image/jpeg", "image/png", "application/octet-stream")},
            FORM: {"schema": {"type": "object", "properties": {"image": _BINARY}, "required": ["image"]}},
        },
    }
}
_MANY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            FORM: {
                "schema": {
                    "type": "object",
                    "properties": {"images": {"type": "array", "items": _BINARY, "minItems": 1}},
                    "required": ["images"],
                }
            }
        },
    }
}
_PROBLEMS = examples.responses(
    "invalid-image", "key-reused", "too-large", "slow-body", "unsupported-media-type", "busy",
    "storage",
)  # fmt: skip


@router.post("/decide", responses=_PROBLEMS, openapi_extra=_ONE)
async def decide(
    request: Request,
    response: Response,
    service: ServiceHere,
    learn: Learn = True,
    source: Annotated[str | None, Query(max_length=1000, description="What to call the image.")] = None,
    key: Key = None,
) -> schemas.Decision:
    """Answer one image: a known class, a category discovered earlier, or a new one."""
    item = await one_image(request, source)
    (answer,) = await _answers(service, response, await _timed(service, [item], learn, key))
    if isinstance(answer, ImageError):
        raise from_error(answer)
    return answer


@router.post("/decide:batch", responses=_PROBLEMS, openapi_extra=_MANY)
async def decide_batch(
    request: Request, response: Response, service: ServiceHere, learn: Learn = True, key: Key = None
) -> schemas.Batch:
    """Answer several images in their order; one that can't be used is told in its place."""
    items = await many_images(request, service.settings.max_batch)
    answers = await _answers(service, response, await _timed(service, items, learn, key))
    return schemas.Batch(
        decisions=[
            schemas.Refused(source=answer.source, problem=schemas.Problem(**from_error(answer).to_dict()))
            if isinstance(answer, ImageError)
            else answer
            for answer in answers
        ]
    )


async def _timed(service: Service, items: Any, learn: bool, key: str | None) -> Answers:
    started = time.perf_counter()
    answers = await service.decider.decide(items, learn, key)
    if not answers.replayed:
        service.metrics.waited(time.perf_counter() - started)
    return answers


async def _answers(service: Service, response: Response, answers: Answers) -> list[schemas.Decision | ImageError]:
    if answers.replayed:
        response.headers["Idempotent-Replay"] = "true"
    return await run_in_threadpool(_shown, service, answers)


def _shown(service: Service, answers: Answers) -> list[schemas.Decision | ImageError]:
    """Return the answers as clients see them; listeners see what was learned."""
    shown = [answer if isinstance(answer, ImageError) else service.views.decision(answer) for answer in answers.answers]
    if len(service.broadcaster) and not answers.replayed:
        for decision in shown:
            if isinstance(decision, schemas.Decision) and decision.learned:
                service.broadcaster.publish(message("decision", decision.model_dump(mode="json")))
    return shown
