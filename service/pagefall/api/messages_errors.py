"""Every failure of /v1/messages in Anthropic's shape, which its clients expect even of a refused key."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from pagefall.errors import RequestError

PATH: Final = "/v1/messages"

AnthropicErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "overloaded_error",
]

_TYPES: Final[dict[int, AnthropicErrorType]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class AnthropicError(msgspec.Struct, frozen=True, kw_only=True):
    type: AnthropicErrorType
    message: str


class AnthropicErrorBody(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """An answer of its own, or the last event of a stream that has begun."""

    error: AnthropicError


def speaks_anthropic(path: str) -> bool:
    """Whether clients of this path read Anthropic's errors."""
    return path == PATH or path.startswith(f"{PATH}/")


def anthropic_error_body(error: RequestError) -> AnthropicErrorBody:
    """This shape has no place for the field at fault but the message."""
    named = error.param is None or error.param in error.message
    return AnthropicErrorBody(
        error=AnthropicError(
            type=_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error"),
            message=error.message if named else f"{error.param}: {error.message}",
        )
    )
