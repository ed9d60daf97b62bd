"""HTTP/1.1 to one worker: connections that are kept, each with one request at a time, on asyncio and httptools.

General clients give way to the loop several times a request, and parse in Python: that cost as much as everything else
that forwarding takes. Here a request is one write, and its answer is parsed as it arrives.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, cast

import httptools

RawHeaders = list[tuple[bytes, bytes]]

_MAX_BUFFERED: Final = 256 * 1024
"""Bytes of an answer that may wait to be read; the worker waits beyond that."""

_MAX_HEAD_BYTES: Final = 64 * 1024

_JOINED_BYTES: Final = 64 * 1024
"""A body up to this size is written together with what is before it."""


class ConnectionFailedError(Exception):
    """The connection broke, or what came on it is no HTTP. The message says which."""


class Connection(asyncio.Protocol):
    """Belongs to whoever took it from its pool, until it is given back or closed.

    An answer is read by one task: `ask`, then `read` until it returns nothing.
    """

    _transport: asyncio.Transport

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._waiting: asyncio.Future[None] | None = None
        self._is_paused = False
        self._is_closed = False
        self._is_asked = False
        self._expect_answer()

    def _expect_answer(self) -> None:
        self.status = 0
        self.headers: RawHeaders = []
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._num_head_bytes = 0
        self._has_head = False
        self._is_whole = False
        self._may_be_kept = False
        self._failure: str | None = None

    # What its owner does.

    async def ask(self, head: bytes, body: bytes) -> None:
        """Sends a request; returns when `status` and `headers`, their names in lower case, are there.

        Raises `ConnectionFailedError`.
        """
        self._expect_answer()
        if self._is_closed:
            raise ConnectionFailedError("the worker had closed it")
        self._is_asked = True
        if len(body) <= _JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        # An answer may come before all of it is sent: whoever waits for that may wait for ever.
        while not self._has_head:
            await self._wait()

    async def read(self) -> bytes:
        """What has arrived of the body, at least a byte; empty at its end. Raises `ConnectionFailedError`."""
        while not self._body and not self._is_whole:
            await self._wait()
        data = bytes(self._body)
        self._body.clear()
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def release(self) -> None:
        """Its owner is done. An answer that was not read to its end takes the connection with it."""
        self._is_asked = False
        if self._is_whole and self._may_be_kept and not self._body and not self._is_closed:
            self._pool.keep(self)
        else:
            self.close()

    def close(self) -> None:
        """At once: what was not sent yet is not sent any more, and nobody is given it."""
        self._is_closed = True
        self._pool.lost(self)
        self._transport.abort()

    async def _wait(self) -> None:
        if self._failure is not None:
            raise ConnectionFailedError(self._failure)
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting

    # What the transport tells it.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # other loops' are one in all but their class

    def data_received(self, data: bytes) -> None:
        if not self._is_asked or self._is_whole:
            self._end("it sent what nobody had asked for")
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self._is_whole:
                self._end(f"its answer is no HTTP: {error}")
            self._may_be_kept = False
            self.close()
        if not self._has_head:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > _MAX_HEAD_BYTES:
                self._end(f"its answer begins with more than {_MAX_HEAD_BYTES} bytes of headers")
                self.close()
        if len(self._body) > _MAX_BUFFERED and not self._is_closed:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closed = True
        self._pool.lost(self)
        self._end(str(error) if error is not None else "the worker closed it", is_close=error is None)

    def _end(self, failure: str, *, is_close: bool = False) -> None:
        """No more will come: all is there, if its end is the connection's, or else it never will be."""
        if not self._is_whole:
            if is_close and self._has_head and not _is_delimited(self.headers):
                self._is_whole = True
            else:
                self._failure = self._failure or failure
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    # What the parser tells it.

    def on_message_begin(self) -> None:
        if self._is_whole:
            raise ValueError("a second answer to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._may_be_kept = self._parser.should_keep_alive()
        self._has_head = self.status >= 200

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_whole = True
        else:  # 100 Continue and its like: the answer is still to come
            self.headers = []


class ConnectionPool:
    """Of one host and port. `tls` None: plain TCP."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None, max_kept: int, keep_seconds: float) -> None:
        """A connection that nobody used for `keep_seconds` is not used again."""
        self._host = host
        self._port = port
        self._tls = tls
        self._max_kept = max_kept
        self._keep_seconds = keep_seconds
        self._kept: dict[Connection, float] = {}
        """The last used comes last, each with when it was."""
        self._open: set[Connection] = set()

    async def take(self, connect_timeout: float) -> Connection:
        """Raises `TimeoutError` and `OSError`."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._keep_seconds
        while self._kept:
            connection, used_at = self._kept.popitem()
            if used_at >= oldest:
                return connection
            connection.close()
        async with asyncio.timeout(connect_timeout):
            _, connection = await loop.create_connection(
                lambda: Connection(self), self._host, self._port, ssl=self._tls
            )
        self._open.add(connection)
        return connection

    def keep(self, connection: Connection) -> None:
        self._kept[connection] = asyncio.get_running_loop().time()
        if len(self._kept) > self._max_kept:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            oldest.close()

    def lost(self, connection: Connection) -> None:
        self._kept.pop(connection, None)
        self._open.discard(connection)

    def close(self) -> None:
        """All of them, whatever is under way on them."""
        self._kept.clear()
        for connection in tuple(self._open):
            connection.close()


def _is_delimited(headers: RawHeaders) -> bool:
    """Whether an answer says itself where it ends."""
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)
