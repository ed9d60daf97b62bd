"""The answer as the client gets it. Nothing is sent before its first bytes are here: until then it may come from
another worker, afterwards never.
"""

from __future__ import annotations

from typing import Final, assert_never

import msgspec
from starlette.types import Send

from pagefall.api.errors import error_body
from pagefall.api.messages_errors import anthropic_error_body
from pagefall.errors import RequestError
from pagefall.router.bodies import Endpoint
from pagefall.router.connections import RawHeaders

_SSE: Final = b"text/event-stream"


class _ResponseError(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """The error event of /v1/responses."""

    code: str | None
    message: str
    param: str | None
    sequence_number: int


class ClientAnswer:
    def __init__(self, send: Send, endpoint: Endpoint) -> None:
        """`endpoint` says in which shape errors are read."""
        self._send = send
        self._endpoint = endpoint
        self.has_begun = False
        self.status: int | None = None

    async def begin(self, status: int, headers: RawHeaders) -> None:
        self.has_begun, self.status = True, status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, chunk: bytes) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def finish(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def break_off(self, error: RequestError, *, is_stream: bool, num_events: int) -> None:
        """A stream, of which the client has `num_events`, ends with the error as its last event. Of any other answer
        only the connection's end, before the answer's, says that something is missing: the server cuts what is left
        without an end.
        """
        if is_stream:
            event = _error_event(error, self._endpoint, num_events)
            await self._send({"type": "http.response.body", "body": event, "more_body": False})


def _error_event(error: RequestError, endpoint: Endpoint, num_events: int) -> bytes:
    match endpoint:
        case "messages":
            return b"event: error\ndata: " + msgspec.json.encode(anthropic_error_body(error)) + b"\n\n"
        case "responses":
            body = _ResponseError(code=error.code, message=error.message, param=error.param, sequence_number=num_events)
            return b"event: error\ndata: " + msgspec.json.encode(body) + b"\n\n"
        case "chat" | "completions" | "other":
            return b"data: " + msgspec.json.encode(error_body(error)) + b"\n\n"
        case _:
            assert_never(endpoint)


def is_event_stream(headers: RawHeaders) -> bool:
    return any(name.lower() == b"content-type" and value.lower().startswith(_SSE) for name, value in headers)
