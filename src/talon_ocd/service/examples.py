"""Examples for the OpenAPI description (layer: service)."""

from __future__ import annotations

from typing import Any

from talon_ocd.service.problems import KINDS, STORAGE, TYPE

_TIME = 1767225600.0

DECISION: dict[str, Any] = {
    "index": 41, "source": "garden.jpg", "category": 7, "resolved": 4, "name": "great tit", "verdict": "discovered",
    "similarity": 6.2, "threshold": 0.0, "unit": "log-odds", "margin": 6.2, "runner_up": 2,
    "runner_up_name": "blue tit", "runner_up_similarity": -3.1, "learned": True, "exemplars": [12, 30],
    "runner_up_exemplars": [3], "image": "/v1/images/41", "thumbnail": "/v1/images/41/thumbnail", "steps": 2,
}  # fmt: skip
CATEGORY: dict[str, Any] = {
    "id": 4, "name": "great tit", "named": True, "kind": "discovered", "state": "active", "into": None, "aliases": [7],
    "count": 18, "verdicts": {"known": 0, "discovered": 17, "new": 1}, "first_seen": _TIME, "last_seen": _TIME + 3600,
    "created": 12, "exemplars": [12, 30],
}  # fmt: skip
MEMBER: dict[str, Any] = {
    "index": 41, "source": "garden.jpg", "at": _TIME, "category": 7, "home": 4, "name": "great tit",
    "verdict": "discovered", "similarity": 6.2, "margin": 6.2, "runner_up": 2, "runner_up_name": "blue tit",
    "runner_up_similarity": -3.1, "image": "/v1/images/41", "thumbnail": "/v1/images/41/thumbnail",
}  # fmt: skip
EVENT: dict[str, Any] = {
    "seq": 17, "at": _TIME, "answered": 42, "kind": "named", "category": 4,
    "data": {"name": "great tit", "before": "discovered-1"}, "actor": "person", "undoes": None,
    "summary": "'discovered-1' was named 'great tit'", "undone": False, "images": 0,
}  # fmt: skip
UNDO = {**EVENT, "seq": 18, "kind": "undone", "data": {}, "undoes": 17, "summary": "undone: " + str(EVENT["summary"])}
AXES = "two principal components"
WHAT_IF: dict[str, Any] = {
    "unit": "nats", "current": 0.0, "images": 400,
    "points": [{"value": -2.0, "categories": 20, "discovered": 10}, {"value": 0.0, "categories": 24, "discovered": 14}],
}  # fmt: skip
STATUS: dict[str, Any] = {
    "answered": 42, "categories": 12, "discovered": 4,
    "totals": {"active": 11, "tentative": 1, "hidden": 0, "merged": 1, "retired": 0, "known": 8, "discovered": 4},
    "verdicts": {"known": 30, "discovered": 8, "new": 4}, "model": "birds", "stream": "garden", "rule": "evidence",
    "unit": "log-odds", "threshold": 0.0, "adapt": "prototypes", "encoder_steps": 0, "guard": {}, "rate": 1.5,
    "waiting": 0, "uptime": 3600.0, "version": "1.0",
}  # fmt: skip


def _problem(kind: str, detail: str, **more: Any) -> dict[str, Any]:
    status, title = KINDS[kind]
    return {"type": TYPE + kind, "title": title, "status": status, "detail": detail, **more}


_DETAILS = {
    "bad-request": "There was an error parsing the body",
    "token-needed": "send the header 'Authorization: Bearer TOKEN' with the token of this service.",
    "foreign-origin": "this request comes from a page of another site.",
    "not-found": "there is no category 99; the newest one is 11.",
    "method-not-allowed": "DELETE is not for this address, GET is; /openapi.json lists what there is.",
    "slow-body": "the body did not arrive within 30 s; send it again.",
    "conflict": "category 4 is merged into 7 already.",
    "too-large": "the body is larger than 20,000,000 bytes; make the image smaller or send fewer at once.",
    "unsupported-media-type": "send the image as image/jpeg (or png ...), or a form with the field 'image'.",
    "foreign-host": "this service has another name; allow yours with --allow-host NAME.",
    "invalid-request": "query.limit: Input should be less than or equal to 500",
    "invalid-image": "is truncated or damaged (image file is truncated); copy or export it again.",
    "key-reused": "this Idempotency-Key belongs to a request with other images; use one only once.",
    "too-many-requests": "too many requests from your address; come again in 0.4 s.",
    "internal": "something unexpected happened; the service's log says what.",
    "busy": "256 images wait already; send yours again in a moment.",
    "storage": STORAGE,
}
PROBLEMS: dict[str, dict[str, Any]] = {
    **{kind: _problem(kind, detail) for kind, detail in _DETAILS.items()},
    "name-taken": _problem(
        "name-taken", "'great tit' is the name of category 4 already.", existing=4, existing_name="great tit"
    ),
}
"""One of every kind."""
PROBLEMS["invalid-image"]["source"] = "garden.jpg"
BATCH: dict[str, Any] = {"decisions": [DECISION, {"source": "notes.txt", "problem": PROBLEMS["invalid-image"]}]}


ANYWHERE = ("token-needed", "foreign-origin", "foreign-host", "too-many-requests", "bad-request", "invalid-request")
"""What any route may answer with."""


def responses(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries of the problems that a route may answer with, beside those that any may."""
    wanted = [*kinds, *ANYWHERE]
    found: dict[int | str, dict[str, Any]] = {}
    for kind in dict.fromkeys(wanted):
        status, title = KINDS[kind]
        entry = found.setdefault(status, {"description": title, "content": {}})
        content = entry["content"].setdefault(
            "application/problem+json", {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": {}}
        )
        content["examples"][kind] = {"value": PROBLEMS[kind]}
        if entry["description"] != title:
            entry["description"] += f"; or: {title}"
    return found
