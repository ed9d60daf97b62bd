"""Every failure Pagefall names.

The law of this file: a *request's* fault is a `RequestError` and answers that request alone; a *configuration's* or a
*model's* fault is found before anything heavy starts and ends the program with one clear line; anything else that
escapes an actor is a bug and stops the service loudly.
"""

from __future__ import annotations

from typing import Literal, TypeVar

E = TypeVar("E", bound=BaseException)

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "service_unavailable_error",
    "server_error",
]


class PagefallError(Exception):
    """Base of every error whose message is meant for the person who runs or calls the server."""


class ConfigError(PagefallError):
    """A flag, file or environment value that cannot be used. The message names it and the fix."""


class ModelError(PagefallError):
    """A model that cannot be served here. The message is one line: what, why, and what to do."""


class RequestError(PagefallError):
    """A request that is refused, in OpenAI's error shape.

    `param` names the offending field, `code` is OpenAI's machine-readable reason (for example
    `context_length_exceeded`), `retry_after_seconds` becomes a `Retry-After` header where it is set.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: ErrorType = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type: ErrorType = type
        self.param = param
        self.code = code
        self.retry_after_seconds = retry_after_seconds


def first_failure(group: BaseExceptionGroup[E]) -> E:
    """The first of what a task group raised, however deep it lies in it."""
    first = group.exceptions[0]
    return first_failure(first) if isinstance(first, BaseExceptionGroup) else first
