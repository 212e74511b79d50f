from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from talon_ocd.service.problems import KINDS
from tests.service.running import Running

EXAMPLES = 8
"""Requests that are made up for every route."""
ENDLESS = "/v1/events"
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def operations(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


@pytest.fixture(scope="module")
def schema(served: Running) -> dict[str, Any]:
    found: dict[str, Any] = served.client().get("/openapi.json").json
    return found


def test_every_route_describes_itself_with_examples(schema: dict[str, Any]) -> None:
    assert schema["openapi"].startswith("3.1")
    models = schema["components"]["schemas"]
    for name, operation in operations(schema):
        assert operation["summary"] and operation["description"], name
        for status, answer in operation["responses"].items():
            for kind, content in answer.get("content", {}).items():
                if kind == "application/problem+json":
                    assert content["examples"], (name, status)
                    assert all(shown["value"]["status"] == int(status) for shown in content["examples"].values())
                if kind == "application/json":
                    assert models[content["schema"]["$ref"].rpartition("/")[2]]["examples"], (name, status)
        for kind, content in operation.get("requestBody", {}).get("content", {}).items():
            if kind == "application/json":
                refs = str(content["schema"])
                model = refs.partition("#/components/schemas/")[2].partition("'")[0]
                assert models[model]["examples"], name
    assert len(models["Problem"]["examples"]) == len(KINDS)


def test_every_problem_has_an_example_of_its_status(schema: dict[str, Any]) -> None:
    for example in schema["components"]["schemas"]["Problem"]["examples"]:
        kind = example["type"].rpartition(":")[2]
        assert (example["status"], example["title"]) == KINDS[kind]


def test_wrong_addresses_and_methods_are_told_where_to_look(served: Running) -> None:
    client = served.client()
    assert "/openapi.json" in client.get("/v1/nothing").problem("not-found")["detail"]
    refused = client("DELETE", "/v1/status")
    assert refused.problem("method-not-allowed")["detail"].startswith("DELETE is not for this address, GET is")
    assert refused.headers["allow"] == "GET"


@pytest.mark.slow
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: str(mode.value))
def test_made_up_requests_find_no_server_error(served: Running, schema: dict[str, Any], mode: GenerationMode) -> None:
    """Schemathesis makes up requests for all routes, valid or not, and compares the answers with the description."""
    loaded = schemathesis.openapi.from_dict(schema)
    tried = []
    for result in loaded.exclude(path=ENDLESS).get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        described = schema["paths"][operation.path][operation.method]
        if mode is GenerationMode.POSITIVE or "parameters" in described or "requestBody" in described:
            try_out(operation, mode, f"http://127.0.0.1:{served.port}")
            tried.append(operation.label)
    assert len(tried) > 10
    if mode is GenerationMode.POSITIVE:
        assert set(tried) == {name for name, _ in operations(schema) if ENDLESS not in name}
    assert served.client().get("/readyz").status == 200


def try_out(operation: Any, mode: GenerationMode, url: str) -> None:
    """Send made-up requests of one route; the same ones every time."""

    @settings(
        max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        case.call_and_validate(base_url=url, checks=CHECKS, timeout=60)

    run()
