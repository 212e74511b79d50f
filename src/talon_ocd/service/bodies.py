"""What clients send as JSON (layer: service)."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from talon_ocd.service.schemas import MOST

MOST_IMAGES = 10_000
"""Images of one edit."""
Identity = Annotated[int, Field(ge=0, le=MOST)]
Images = Annotated[list[Identity], Field(min_length=1, max_length=MOST_IMAGES)]


class CategoryPatch(BaseModel):
    """What to change of a category."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"name": "great tit"}, {"hidden": True}]})
    name: str | None = Field(None, max_length=400)
    hidden: bool | None = None
    merge: bool = Field(False, description="If another category has the name, merge with it.")


class MergeRequest(BaseModel):
    """Categories that are one."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"categories": [7, 9], "into": 4}]})
    categories: Annotated[list[Identity], Field(min_length=1, max_length=1000)]
    into: Identity | None = Field(None, description="Which one stays; by default the named, the known, the larger one.")


class SplitRequest(BaseModel):
    """Images that are a category of their own."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"images": [12, 40], "name": "coal tit"}]}
    )
    images: Images
    name: str | None = Field(None, max_length=400)


class MoveRequest(BaseModel):
    """Images that belong elsewhere."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"images": [12], "category": 4}]})
    images: Images
    category: Identity


class ImagesRequest(BaseModel):
    """Some images."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"images": [12, 40]}]})
    images: Images


class UndoRequest(BaseModel):
    """What to take back."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{}, {"event": 17}]})
    event: Annotated[int, Field(ge=1, le=MOST)] | None = Field(None, description="By default the last change.")


class PairRequest(BaseModel):
    """Two categories that are not the same."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"first": 4, "second": 7}]})
    first: Identity
    second: Identity


class SessionRequest(BaseModel):
    """The token, to be traded for a cookie."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"token": "the-token-of-the-service"}]})
    token: Annotated[str, Field(max_length=1000)]
