"""Server-sent events as OpenAI's clients read them: one `data:` line an event, `[DONE]` at the end.

Those of /v1/responses and of Anthropic's API have names, and end with an event of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.types import Send

from pagefall.api.errors import error_body
from pagefall.errors import RequestError

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # or nginx would collect events before it passes them on
]


class NamedEvent(msgspec.Struct, frozen=True):
    """`data` of an event with a name."""

    name: str
    data: msgspec.Struct


def named(data: msgspec.Struct) -> NamedEvent:
    """An event whose name is the tag of its struct."""
    return NamedEvent(str(data.__struct_config__.tag), data)


class EventStream:
    """One streamed answer. Every event goes out in one `send`, so several tasks may send theirs to one stream."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def start(self, headers: Mapping[str, str]) -> None:
        """`headers` beside those of every stream."""
        more = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *more]})

    async def send(self, event: msgspec.Struct) -> None:
        """Sends one event now."""
        head = b"data: "
        if isinstance(event, NamedEvent):
            head, event = b"event: " + event.name.encode() + b"\ndata: ", event.data
        await self._body(head + msgspec.json.encode(event) + b"\n\n", more_body=True)

    async def finish(self) -> None:
        """Ends a complete answer."""
        await self._body(b"data: [DONE]\n\n", more_body=False)

    async def close(self) -> None:
        """Ends a stream whose last event says that it is the last."""
        await self._body(b"", more_body=False)

    async def fail(self, error: RequestError) -> None:
        """Ends an answer that cannot be completed: the error is the last event, and `[DONE]` does not come."""
        await self._body(b"data: " + msgspec.json.encode(error_body(error)) + b"\n\n", more_body=False)

    async def _body(self, body: bytes, *, more_body: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more_body})
