"""A TCP proxy on this machine that ends connections where a test wants it to."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_CHUNK_BYTES = 65536


class TcpProxy:
    """Forwards to `port`. `cut_after`: each connection is reset once so many bytes more have come from the server."""

    def __init__(self, port: int) -> None:
        self.cut_after: int | None = None
        self.num_connections = 0
        self._server_port = port
        self._under_way: set[asyncio.Task[None]] = set()

    async def forward(self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        try:
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._copy(client_reader, writer, None))
                directions.create_task(self._copy(reader, client_writer, client_writer))
        except* OSError:
            pass  # one of the two has gone
        finally:
            writer.transport.abort()
            client_writer.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: asyncio.StreamWriter | None
    ) -> None:
        num_bytes = 0
        while chunk := await reader.read(_CHUNK_BYTES):
            if cut is None or self.cut_after is None:
                num_bytes = 0
            elif num_bytes + len(chunk) > self.cut_after:
                writer.write(chunk[: self.cut_after - num_bytes])
                await writer.drain()
                _reset(cut)
                raise ConnectionResetError("cut")
            else:
                num_bytes += len(chunk)
            writer.write(chunk)
            await writer.drain()
        raise ConnectionResetError("the end")


@asynccontextmanager
async def tcp_proxy(port: int) -> AsyncIterator[tuple[TcpProxy, int]]:
    """The proxy and the port that it listens on."""
    proxy = TcpProxy(port)
    server = await asyncio.start_server(proxy.forward, "127.0.0.1", 0)
    try:
        yield proxy, server.sockets[0].getsockname()[1]
    finally:
        server.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closing sends a reset, not an orderly end."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
