"""Comments in streams that have nothing to say for a while, so that no proxy and no client takes them for dead."""

from __future__ import annotations

import math
from typing import Final

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagefall.api.errors import error_response
from pagefall.errors import RequestError

HEADER: Final = "x-stream-keepalive-seconds"
"""What a client asks for, in place of the server's own."""

_COMMENT: Final = b": keep-alive\n\n"
_LEAST_SECONDS: Final = 0.01


class KeepaliveMiddleware:
    """Sends a comment after each `seconds` of silence in a `text/event-stream`; 0: none. Clients may choose."""

    def __init__(self, app: ASGIApp, *, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            seconds = self._wanted(scope)
        except RequestError as error:
            await error_response(error, scope)(scope, receive, send)
            return
        if seconds:
            await _KeptAlive(send, seconds).run(self._app, scope, receive)
        else:
            await self._app(scope, receive, send)

    def _wanted(self, scope: Scope) -> float:
        text = Headers(scope=scope).get(HEADER)
        if text is None:
            return self._seconds
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not math.isfinite(seconds) or (seconds < _LEAST_SECONDS and seconds != 0):
            raise RequestError(
                f"Invalid value for the header '{HEADER}': it is a number of seconds from {_LEAST_SECONDS} on, or 0.",
                param=HEADER,
            )
        return seconds


class _KeptAlive:
    """One answer. Each event goes out in one `send`, so a comment never comes to stand inside of one."""

    def __init__(self, send: Send, seconds: float) -> None:
        self._send = send
        self._seconds = seconds
        self._streams = anyio.Event()
        self._num_sent = 0

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive) -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._comment)
                await app(scope, receive, self._pass_on)
                group.cancel_scope.cancel()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _pass_on(self, message: Message) -> None:
        self._num_sent += 1
        await self._send(message)
        if message["type"] == "http.response.start":
            if Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream"):
                self._streams.set()
        elif not message.get("more_body", False):
            self._streams = anyio.Event()  # it has ended

    async def _comment(self) -> None:
        await self._streams.wait()
        while self._streams.is_set():
            num_sent = self._num_sent
            await anyio.sleep(self._seconds)
            if self._num_sent == num_sent and self._streams.is_set():
                await self._send({"type": "http.response.body", "body": _COMMENT, "more_body": True})
