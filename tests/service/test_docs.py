"""The page about the service speaks of all routes and limits, as they are."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from talon_ocd.service.settings import ServiceSettings
from tests.service.running import Running

PAGE = Path(__file__).parents[2] / "docs" / "service.md"
with_page = pytest.mark.skipif(not PAGE.is_file(), reason="installed without the documentation")
"""Of each test, not of the module: another room imports them."""
NO_LIMITS = {"host", "port", "token", "allowed_hosts", "behind_proxy"}


@with_page
def test_every_route_is_documented(served: Running) -> None:
    paths = served.client().get("/openapi.json").json["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    shown = set(
        re.findall(r"^\| `((?:GET|POST|PATCH|DELETE) [^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert shown == routes


@with_page
def test_every_limit_is_documented_with_its_default() -> None:
    rows = re.findall(r"^\| `([a-z_]+)`[^|]*\| ([0-9]+)( MB)?", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    shown = {name: int(value) * (1_000_000 if unit else 1) for name, value, unit in rows}
    limits = {field.name: field.default for field in fields(ServiceSettings) if field.name not in NO_LIMITS}
    assert shown == limits


@with_page
def test_every_metric_is_documented(served: Running) -> None:
    text = served.client().get("/metrics").body.decode()
    kinds = dict(re.findall(r"^# TYPE (talon_\w+) (\w+)", text, re.MULTILINE))
    names = {name for name in kinds if not name.endswith("_created")}
    shown = set(re.findall(r"`(talon_\w+)", PAGE.read_text(encoding="utf-8")))
    assert shown == names
