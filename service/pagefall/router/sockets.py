"""Plain TCP for httpcore, on asyncio alone.

httpcore's own backends give way to the loop before and after every read and write, which costs as much as the rest of a
forwarded request. Time-outs of reads and writes are their callers': here they are not known.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any, Final

import httpcore

_MAX_BUFFERED: Final = 256 * 1024
"""Bytes that may wait to be read; the other end waits beyond that."""


class AsyncioBackend(httpcore.AsyncNetworkBackend):
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """`socket_options` are not supported, and nobody here gives any."""
        loop = asyncio.get_running_loop()
        local = None if local_address is None else (local_address, 0)
        try:
            async with asyncio.timeout(timeout):
                _, connection = await loop.create_connection(_Connection, host, port, local_addr=local)
        except TimeoutError:
            raise httpcore.ConnectTimeout from None
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        return _Stream(connection)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Connection(asyncio.Protocol):
    """One reader and one writer at a time."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.received = bytearray()
        self.is_ended = False
        self.error: Exception | None = None
        self._readable: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        if len(self.received) > _MAX_BUFFERED:
            self.transport.pause_reading()
        _wake(self._readable)

    def eof_received(self) -> None:
        self.is_ended = True
        _wake(self._readable)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_ended, self.error = True, error
        _wake(self._readable)
        _wake(self._writable)

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        _wake(self._writable)
        self._writable = None

    async def wait_readable(self) -> None:
        while not self.received and not self.is_ended:
            self._readable = asyncio.get_running_loop().create_future()
            await self._readable

    async def wait_writable(self) -> None:
        if self._writable is not None:
            await self._writable


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's
        connection = self._connection
        await connection.wait_readable()
        if not connection.received and connection.error is not None:
            raise httpcore.ReadError(str(connection.error)) from connection.error
        data = bytes(connection.received[:max_bytes])
        del connection.received[:max_bytes]
        if not connection.is_ended:
            connection.transport.resume_reading()
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore's
        connection = self._connection
        if connection.is_ended:
            raise httpcore.WriteError("the other end has closed the connection")
        connection.transport.write(buffer)
        await connection.wait_writable()

    async def aclose(self) -> None:
        """What was not sent yet is not sent any more."""
        self._connection.transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's
    ) -> httpcore.AsyncNetworkStream:
        raise httpcore.UnsupportedProtocol("TLS goes through another backend")

    def get_extra_info(self, info: str) -> Any:
        """`is_readable`, of a connection that nobody uses: it has ended, or is of no use."""
        return (self._connection.is_ended or bool(self._connection.received)) if info == "is_readable" else None


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
