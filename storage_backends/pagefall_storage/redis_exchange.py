"""One batch of commands over one connection: sent, and answered straight into the memory it is for.

redis-py makes the connection (TCP, TLS, socket file, password, database) and pools it. Its streams would copy a value
four times on the way from the socket into the caller's buffer, so while a batch is under way a protocol of ours stands
before theirs; what comes at any other time, the end of the connection included, is handed on to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection

from pagefall_storage.redis_replies import Answer, ProtocolError

_IDLE_BYTES: Final = 4096
_BYTES_PER_STEP: Final = 256 * 2**10
"""Written at once before others get a turn, though the system would take more: several connections write at a time."""


async def exchange(connection: AbstractConnection, request: Iterable[bytes | memoryview], answer: Answer) -> None:
    """Sends `request` and returns once `answer` is complete.

    When this does not succeed, or is cancelled, the connection is gone, nothing reads from `request` or writes through
    `answer` any more, and `answer` has what came before. Raises `ConnectionError` (of Python) and `ProtocolError`.
    """
    receiver = _receiver_of(connection)
    try:
        await receiver.exchange(request, answer)
    except BaseException:
        receiver.abort()
        await connection.disconnect(nowait=True)
        raise


def _receiver_of(connection: AbstractConnection) -> _Receiver:
    writer = connection._writer  # noqa: SLF001 - redis-py has no public way to a connection's transport
    if writer is None:
        raise ConnectionResetError("the connection is closed")
    transport = writer.transport
    protocol: Any = transport.get_protocol()
    if isinstance(protocol, _Receiver):
        return protocol
    receiver = _Receiver(transport, protocol)
    transport.set_protocol(receiver)
    return receiver


class _Receiver(asyncio.BufferedProtocol):
    """Stands before `inner`, the protocol of the connection's streams."""

    def __init__(self, transport: asyncio.WriteTransport, inner: Any) -> None:
        self._transport = transport
        self._inner = inner
        self._idle_buffer = memoryview(bytearray(_IDLE_BYTES))
        self._answer: Answer | None = None
        self._answered: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None  # while the transport has enough to send

    async def exchange(self, request: Iterable[bytes | memoryview], answer: Answer) -> None:
        self._answer = answer
        self._answered = answered = asyncio.get_running_loop().create_future()
        num_bytes = 0
        for part in request:
            if self._writable is not None:
                await asyncio.wait({self._writable, answered}, return_when=asyncio.FIRST_COMPLETED)
            elif num_bytes >= _BYTES_PER_STEP:
                await asyncio.sleep(0)
                num_bytes = 0
            if answered.done():  # the connection is lost
                break
            self._transport.write(part)
            num_bytes += len(part)
        await answered

    def abort(self) -> None:
        """Ends the connection now. What is not sent yet stays unsent; what has not come yet goes nowhere."""
        self._answer = None
        if self._answered is not None and not self._answered.cancel() and not self._answered.cancelled():
            self._answered.exception()  # looked at, for asyncio complains of one that is not
        self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._idle_buffer if self._answer is None else self._answer.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._answer is None:
            self._inner.data_received(self._idle_buffer[:nbytes].tobytes())
            return
        try:
            self._answer.buffer_updated(nbytes)
        except ProtocolError as error:
            self._end(error)
        else:
            if self._answer.is_complete:
                self._end(None)

    def eof_received(self) -> bool | None:
        self._end(ConnectionResetError("the server closed the connection"))
        keep_open: bool | None = self._inner.eof_received()
        return keep_open

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionResetError(f"the connection was lost: {exc or 'closed'}"))
        self.resume_writing()
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._writable is None:
            self._writable = asyncio.get_running_loop().create_future()
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
            self._inner.resume_writing()

    def _end(self, error: Exception | None) -> None:
        self._answer = None
        if self._answered is None or self._answered.done():
            return
        if error is None:
            self._answered.set_result(None)
        else:
            self._answered.set_exception(error)
