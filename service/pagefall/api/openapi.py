"""The endpoints as an OpenAPI 3.1 document, made from the types that read and write their bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

Json = dict[str, Any]
Method = Literal["get", "post", "put", "delete"]

_REF: Final = "#/components/schemas/{name}"
_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """Of the query, or of the path where the path names it. `schema` is JSON Schema."""

    name: str
    description: str
    schema: Mapping[str, Any]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path, as `{name}` in a route, with `:path` left out.

    `body` and `answer` are structs; `events`: what an event of a stream is, where `stream` may be true. `answer` None:
    `media_type` is what comes. `error` is the body of every refusal, `failure` another one that a
    failure of the server may have.
    """

    method: Method
    path: str
    summary: str
    description: str = ""
    tag: str
    body: Any = None
    answer: Any = None
    events: Any = None
    media_type: str = _JSON
    error: Any
    failure: Any = None
    is_open: bool = False
    """Whether it needs no key."""
    parameters: tuple[Parameter, ...] = ()


def openapi_document(endpoints: Sequence[Endpoint], *, title: str, description: str) -> Json:
    """The whole document. Types of one name must be one type."""
    types = [
        type_
        for endpoint in endpoints
        for type_ in (endpoint.body, endpoint.answer, endpoint.events, endpoint.error, endpoint.failure)
        if type_ is not None
    ]
    unique = list(dict.fromkeys(types))
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REF)
    schema_of = dict(zip(unique, schemas, strict=True))
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method] = _operation(endpoint, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version("pagefall"), "description": description},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


class OpenApi:
    """`GET /openapi.json`."""

    def __init__(self, document: Json) -> None:
        self._content = msgspec.json.encode(document)

    async def show(self, request: Request) -> Response:
        return Response(self._content, media_type=_JSON)


def _operation(endpoint: Endpoint, schema_of: Mapping[Any, Json]) -> Json:
    name = endpoint.path.strip("/").replace("/", "_").replace("{", "").replace("}", "").replace(".", "_") or "index"
    failures = [schema_of[type_] for type_ in (endpoint.error, endpoint.failure) if type_ is not None]
    operation: Json = {
        "operationId": f"{endpoint.method}_{name}",
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "security": [{}] if endpoint.is_open else [{}, {"key": []}],
        "responses": {
            "200": {"description": endpoint.summary, "content": _content(endpoint, schema_of)},
            "4XX": _refusal("The request cannot be answered as it is.", [schema_of[endpoint.error]]),
            "5XX": _refusal("The server cannot answer, now or at all.", failures),
        },
    }
    if endpoint.description:
        operation["description"] = endpoint.description
    if endpoint.parameters:
        operation["parameters"] = [_parameter(parameter, endpoint.path) for parameter in endpoint.parameters]
    if endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": schema_of[endpoint.body]}}}
    return operation


def _content(endpoint: Endpoint, schema_of: Mapping[Any, Json]) -> Json:
    if endpoint.answer is None:
        return {endpoint.media_type: {"schema": {"type": "string"}}}
    content: Json = {_JSON: {"schema": schema_of[endpoint.answer]}}
    if endpoint.events is not None:
        named = schema_of[endpoint.events].get("$ref", "").rpartition("/")[2]
        content[_EVENTS] = {
            "schema": {"type": "string", "description": f"Events; the data of each is {named or 'JSON'}."},
            "x-event": schema_of[endpoint.events],
        }
    return content


def _refusal(description: str, schemas: Sequence[Json]) -> Json:
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    return {"description": description, "content": {_JSON: {"schema": schema}}}


def _parameter(parameter: Parameter, path: str) -> Json:
    is_in_path = f"{{{parameter.name}}}" in path
    return {
        "name": parameter.name,
        "in": "path" if is_in_path else "query",
        "required": is_in_path,
        "description": parameter.description,
        "schema": dict(parameter.schema),
    }
