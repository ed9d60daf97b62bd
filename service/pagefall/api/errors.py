"""Every failure as an HTTP answer in OpenAI's shape; in Anthropic's where its clients ask."""

from __future__ import annotations

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from pagefall.api.json_response import json_response
from pagefall.api.messages_errors import anthropic_error_body, speaks_anthropic
from pagefall.errors import RequestError


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """`{"error": {...}}`, as an answer of its own or as an event of a stream that has begun."""

    error: ErrorDetail


def internal_error() -> RequestError:
    """What a client learns of a bug; the log has the rest."""
    return RequestError("The server had an error while processing your request.", status=500, type="server_error")


def given_up() -> RequestError:
    """For an answer that the server ended before it was complete ("abort")."""
    return RequestError(
        "The server gave this answer up: send the request again.",
        status=503,
        type="service_unavailable_error",
        code="aborted",
    )


def error_body(error: RequestError) -> ErrorBody:
    return ErrorBody(ErrorDetail(message=error.message, type=error.type, param=error.param, code=error.code))


def error_response(error: RequestError, scope: Scope) -> Response:
    """In the shape that clients of the path of `scope` read."""
    headers: dict[str, str] = {}
    if error.retry_after_seconds is not None:
        headers["Retry-After"] = str(error.retry_after_seconds)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = anthropic_error_body(error) if speaks_anthropic(scope["path"]) else error_body(error)
    return json_response(body, status=error.status, headers=headers)


async def on_request_error(request: Request, error: Exception) -> Response:
    """The handler of `RequestError`."""
    assert isinstance(error, RequestError)
    return error_response(error, request.scope)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """The handler of what the router raises: no such path, no such method."""
    assert isinstance(error, HTTPException)
    match error.status_code:
        case 404:
            message = f"Invalid URL ({request.method} {request.url.path})"
        case 405:
            message = f"Not allowed to {request.method} on {request.url.path}"
        case _:
            message = error.detail
    response = error_response(
        RequestError(message, status=error.status_code, code="not_found" if error.status_code == 404 else None),
        request.scope,
    )
    response.headers.update(error.headers or {})
    return response
