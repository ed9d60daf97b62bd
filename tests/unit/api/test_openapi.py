from __future__ import annotations

import re
from typing import Any

import httpx
import jsonschema
import msgspec
import pytest
from starlette.routing import Route
from tests.unit.api.fake_engine import MODEL, FakeEngine

from pagefall.api.app import create_app
from pagefall.api.endpoints import ENDPOINTS, document
from pagefall.config import HttpConfig

pytestmark = pytest.mark.anyio

JSON = "application/json"


def schema_of(path: str, method: str, *, status: str = "200", media_type: str = JSON) -> dict[str, Any]:
    """The schema of an answer, beside all that it may point to."""
    found = document()["paths"][path][method]["responses"][status]["content"][media_type]["schema"]
    return {**found, "components": document()["components"]}


def test_every_route_is_described_and_nothing_else() -> None:
    """Add what is missing to `api/endpoints.py`."""
    routes = {
        (method.lower(), re.sub(r":\w+}", "}", route.path))
        for route in create_app(FakeEngine(), HttpConfig()).routes
        if isinstance(route, Route)
        for method in route.methods or {"POST"}
        if method != "HEAD"
    }
    assert {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS} == routes


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    def references(value: object) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [found for item in value.values() for found in references(item)]
        return [found for item in value for found in references(item)] if isinstance(value, list) else []

    components = document()["components"]["schemas"]
    assert {name.rpartition("/")[2] for name in references(document())} <= set(components)
    for schema in components.values():
        jsonschema.Draft202012Validator.check_schema(schema)


async def test_the_document_is_served(client: httpx.AsyncClient) -> None:
    response = await client.get("/openapi.json")
    assert response.headers["content-type"] == JSON
    assert response.content == msgspec.json.encode(document())
    assert response.json()["openapi"].startswith("3.1")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("post", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True}),
        ("post", "/v1/completions", {"prompt": "Hi", "logprobs": 2, "n": 2}),
        ("post", "/v1/messages", {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}),
        ("get", "/v1/models", None),
        ("post", "/tokenize", {"prompt": "Hi"}),
        ("post", "/detokenize", {"tokens": [72]}),
        ("post", "/flush_cache", None),
        ("get", "/cache/stats", None),
        ("get", "/cache/tree", None),
        ("get", "/cache/requests", None),
        ("get", "/health", None),
    ],
)
async def test_answers_are_as_described(
    client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None
) -> None:
    response = await client.request(method, path, json=body)
    assert response.status_code == 200, response.text
    jsonschema.validate(response.json(), schema_of(path, method), cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/tokenize"])
async def test_refusals_are_as_described(client: httpx.AsyncClient, path: str) -> None:
    response = await client.post(path, json={"model": 5})
    assert response.status_code == 400
    jsonschema.validate(response.json(), schema_of(path, "post", status="4XX"), cls=jsonschema.Draft202012Validator)
