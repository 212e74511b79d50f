"""Errors as RFC 9457 problem answers (layer: service).

Every refusal is ``application/problem+json`` with a type that programs can tell apart and a text for people.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from talon_ocd.errors import CatalogError, ImageError, StorageError, TalonError

MEDIA_TYPE = "application/problem+json"
TYPE = "urn:talon-ocd:problem:"
KINDS: Mapping[str, tuple[int, str]] = {
    "bad-request": (400, "The request can't be understood"),
    "token-needed": (401, "A valid token is needed"),
    "foreign-origin": (403, "Other web sites may not do this"),
    "not-found": (404, "There is no such thing"),
    "method-not-allowed": (405, "This can't be done here"),
    "slow-body": (408, "The request took too long to arrive"),
    "name-taken": (409, "Another category has this name"),
    "conflict": (409, "This can't be changed like this"),
    "too-large": (413, "The request is too large"),
    "unsupported-media-type": (415, "This kind of content is not supported"),
    "foreign-host": (421, "The service is not called like this"),
    "invalid-request": (422, "A value is missing or wrong"),
    "invalid-image": (422, "The image can't be used"),
    "key-reused": (422, "The idempotency key was used for something else"),
    "too-many-requests": (429, "Too many requests"),
    "internal": (500, "The service made a mistake"),
    "busy": (503, "The service is busy"),
    "storage": (503, "The answer could not be written down"),
}
STORAGE = "the disk can't be written; what was answered is safe. Free some space; if that is not enough, restart me."
_BY_STATUS = {401: "token-needed", 404: "not-found", 405: "method-not-allowed", 413: "too-large"}
_log = logging.getLogger("talon_ocd.service")


class Problem(HTTPException):
    """A refusal: raise it anywhere in a request.

    Attributes:
        kind: one of ``KINDS``.
        more: further members of the answer.
    """

    def __init__(self, kind: str, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(KINDS[kind][0], detail, dict(headers) if headers else None)
        self.kind, self.more = kind, more

    def to_dict(self) -> dict[str, Any]:
        """Return the answer's body."""
        status, title = KINDS[self.kind]
        return {"type": TYPE + self.kind, "title": title, "status": status, "detail": self.detail, **self.more}

    def response(self) -> Response:
        """Return the answer."""
        return JSONResponse(self.to_dict(), self.status_code, self.headers, MEDIA_TYPE)


def busy(detail: str, seconds: int = 1) -> Problem:
    """Return a refusal that asks to come again in a moment."""
    return Problem("busy", detail, {"Retry-After": str(seconds)})


def from_error(error: TalonError) -> Problem:
    """Return the problem that an error of this package is to a client."""
    if isinstance(error, ImageError):
        return Problem("invalid-image", error.reason, source=error.source)
    if isinstance(error, CatalogError):
        return Problem("conflict", str(error))
    if isinstance(error, StorageError):
        _log.error("%s", error)
        return Problem("storage", STORAGE, {"Retry-After": "30"})
    _log.error("%s", error)
    return Problem("internal", "the service could not do this; its log says why.")


def install(app: FastAPI) -> None:
    """Let an app answer with problems only."""

    async def http(request: Request, error: Exception) -> Response:
        if isinstance(error, Problem):
            return error.response()
        assert isinstance(error, HTTPException)
        kind = _BY_STATUS.get(error.status_code, "bad-request" if error.status_code < 500 else "internal")
        return Problem(kind, _in_words(request, error), error.headers).response()

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return invalid_request(error.errors()).response()

    async def ours(_: Request, error: Exception) -> Response:
        assert isinstance(error, TalonError)
        return from_error(error).response()

    async def unexpected(_: Request, error: Exception) -> Response:
        return Problem("internal", "something unexpected happened; the service's log says what.").response()

    for kind, handler in ((HTTPException, http), (RequestValidationError, invalid), (TalonError, ours)):
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, unexpected)


def _in_words(request: Request, error: HTTPException) -> str:
    """Return what the framework refuses in words that help; it only names the status."""
    if error.status_code == 404:
        return "there is nothing at this address; /openapi.json lists what there is."
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "something else")
        return f"{request.method[:20]} is not for this address, {allowed} is; /openapi.json lists what there is."
    return str(error.detail)


def invalid_request(errors: Sequence[Mapping[str, Any]]) -> Problem:
    """Return the refusal of wrong values; what was sent is not repeated, it may be a secret."""
    found = [{"where": ".".join(map(str, error["loc"])), "message": str(error["msg"])} for error in errors]
    first = f"{found[0]['where']}: {found[0]['message']}" if found else "the request"
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return Problem("invalid-request", first + more, errors=found)
