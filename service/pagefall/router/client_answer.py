"""The answer as the client gets it. Nothing is sent before its first bytes are here: until then it may come from
another worker, afterwards never.
"""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.types import Send

from pagefall.api.errors import error_body
from pagefall.errors import RequestError
from pagefall.router.upstream import RawHeaders

_SSE: Final = b"text/event-stream"


class ClientAnswer:
    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False
        self.status: int | None = None

    async def begin(self, status: int, headers: RawHeaders) -> None:
        self.has_begun, self.status = True, status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, chunk: bytes) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def finish(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def break_off(self, error: RequestError, *, is_stream: bool) -> None:
        """A stream ends with the error as its last event. Of any other answer only the connection's end, before the
        answer's, says that something is missing: the server cuts what is left without an end.
        """
        if is_stream:
            event = b"data: " + msgspec.json.encode(error_body(error)) + b"\n\n"
            await self._send({"type": "http.response.body", "body": event, "more_body": False})


def is_event_stream(headers: RawHeaders) -> bool:
    return any(name.lower() == b"content-type" and value.lower().startswith(_SSE) for name, value in headers)
