"""HTTP/1.1 to a worker, byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from pagefall.router.config import WorkersConfig
from pagefall.router.connections import Connection, ConnectionFailedError, ConnectionPool
from pagefall.router.upstream import UpstreamError, Upstreams
from pagefall.router.worker_urls import worker_spec
from pagefall.router.workers import WorkerRegistry

pytestmark = pytest.mark.anyio

HEAD = b"GET / HTTP/1.1\r\nhost: w\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def pool_of(serve: Serve, *, keep_seconds: float = 60.0, max_kept: int = 8) -> AsyncIterator[ConnectionPool]:
    """Connections to a server that runs `serve` on each and closes it then."""

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            writer.close()

    server = await asyncio.start_server(run, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = ConnectionPool("127.0.0.1", port, tls=None, max_kept=max_kept, keep_seconds=keep_seconds)
    try:
        yield pool
    finally:
        pool.close()
        server.close()


def answering(*pieces: bytes) -> Serve:
    """To each request on a connection the next piece; after the last one, the end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(piece)
            await writer.drain()

    return serve


async def whole(connection: Connection) -> bytes:
    body = b""
    while chunk := await connection.read():
        body += chunk
    return body


async def answer_of(connection: Connection) -> bytes:
    await connection.ask(HEAD, b"")
    return await whole(connection)


async def asked(pool: ConnectionPool, body: bytes = b"") -> Connection:
    connection = await pool.take(5)
    await connection.ask(HEAD, body)
    return connection


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK + b"content-length: 5\r\n\r\nhello", b"hello"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello"),
        (OK + b"x: y\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\nx: 1\r\n\r\n" + OK + b"content-length: 5\r\n\r\nhello", b"hello"),
    ],
    ids=["length", "chunked", "until the end", "no body", "after a word before"],
)
async def test_an_answer_ends_where_it_says(answer: bytes, body: bytes) -> None:
    async with pool_of(answering(answer)) as pool:
        connection = await asked(pool)
        assert await whole(connection) == body
        assert connection.status == (204 if b" 204 " in answer else 200)
        assert dict(connection.headers).get(b"x") == (b"y" if b"x: y" in answer else None)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "the worker closed it"),
        (OK + b"content-le", "the worker closed it"),
        (OK + b"content-length: 6\r\n\r\nhello", "the worker closed it"),
        (OK + b"transfer-encoding: chunked\r\n\r\n6\r\nhello", "the worker closed it"),
        (b"SSH-2.0-OpenSSH\r\n", "is no HTTP"),
        (OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello", "is no HTTP"),
        (OK + b"x: " + b"y" * 600_000 + b"\r\n\r\n", "bytes of headers"),
    ],
    ids=["nothing", "half a head", "short", "half a chunk", "another protocol", "two lengths", "endless headers"],
)
async def test_an_answer_that_breaks_off_is_never_taken_for_a_whole_one(answer: bytes, why: str) -> None:
    async with pool_of(answering(answer)) as pool:
        connection = await pool.take(5)
        with pytest.raises(ConnectionFailedError, match=why):
            await answer_of(connection)


async def test_a_connection_is_used_again_only_after_a_whole_answer_that_allows_it() -> None:
    plain = OK + b"content-length: 1\r\n\r\n"
    pieces = (plain + b"a", plain + b"b", OK + b"connection: close\r\ncontent-length: 1\r\n\r\nc")
    async with pool_of(answering(*pieces)) as pool:
        first = await asked(pool)
        assert await whole(first) == b"a"
        first.release()
        again = await asked(pool)
        assert again is first
        assert await whole(again) == b"b"
        again.release()
        last = await asked(pool)
        assert last is first
        assert await whole(last) == b"c"
        last.release()
        other = await asked(pool)
        assert other is not first
        other.release()  # unread
        assert await asked(pool) is not other


async def test_one_that_was_closed_while_it_was_kept_is_given_to_nobody() -> None:
    async with pool_of(answering(OK + b"content-length: 0\r\n\r\n")) as pool:
        connection = await pool.take(1)
        await answer_of(connection)
        connection.release()
        connection.close()
        assert await pool.take(1) is not connection


async def test_a_connection_on_which_something_came_that_nobody_asked_for_is_not_used() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"content-length: 1\r\n\r\na")
        await asyncio.sleep(0.05)
        writer.write(OK + b"content-length: 1\r\n\r\nb")
        await reader.read()

    async with pool_of(talk) as pool:
        connection = await asked(pool)
        assert await whole(connection) == b"a"
        connection.release()
        async with asyncio.timeout(10):
            while not connection._is_closed:
                await asyncio.sleep(0.01)
        other = await asked(pool)
        assert other is not connection
        assert await whole(other) == b"a"


async def test_bytes_behind_an_answer_are_not_the_next_one() -> None:
    async with pool_of(answering(OK + b"content-length: 1\r\n\r\na" + OK + b"content-length: 1\r\n\r\nb")) as pool:
        connection = await asked(pool)
        assert (await connection.read())[:1] == b"a"
        connection.release()
        assert await pool.take(5) is not connection


async def test_one_that_nobody_used_for_long_is_not_used_again_nor_more_kept_than_asked_for() -> None:
    answer = OK + b"content-length: 0\r\n\r\n"
    async with pool_of(answering(answer, answer), keep_seconds=-1) as pool:
        connection = await asked(pool)
        connection.release()
        assert await asked(pool) is not connection
    async with pool_of(answering(answer, answer), max_kept=1) as pool:
        first, second = await asked(pool), await asked(pool)
        first.release()
        second.release()
        assert await asked(pool) is second
        assert await asked(pool) is not first


async def test_an_answer_that_comes_before_the_request_is_sent_is_heard() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await writer.drain()
        await asyncio.sleep(10)

    async with pool_of(refuse) as pool:
        connection = await pool.take(5)
        async with asyncio.timeout(5):
            await connection.ask(HEAD, bytes(64 << 20))
            assert (connection.status, await whole(connection)) == (413, b"no")


async def test_an_answer_that_nobody_reads_makes_the_worker_wait() -> None:
    num_sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"content-length: %d\r\n\r\n" % (48 << 20))
        for _ in range(48):
            writer.write(bytes(1 << 20))
            await writer.drain()
            num_sent += 1

    async with pool_of(flood) as pool:
        connection = await asked(pool)
        seen = -1
        while seen != num_sent:
            seen = num_sent
            await asyncio.sleep(0.2)
        assert num_sent < 32, "what the sockets hold, and not much more"
        assert len(await whole(connection)) == 48 << 20


@pytest.mark.parametrize("target", ["/v1/x HTTP/1.1\r\nx: y\r\n\r\n", "/v1/a b", "/v1/x\n"])
async def test_a_path_that_would_be_read_as_more_is_not_sent(target: str) -> None:
    registry = WorkerRegistry(WorkersConfig(), clock=lambda: 0.0)
    async with Upstreams(connect_timeout=5, worker_api_key=None) as upstreams:
        registry.listen(upstreams)
        worker = registry.add(worker_spec("http://127.0.0.1:9"), "flag")
        with pytest.raises(UpstreamError, match="must not have"):
            await upstreams.send(worker.worker_id, "GET", target, [], b"")
        with pytest.raises(UpstreamError, match="must not have"):
            await upstreams.send(worker.worker_id, "GET", "/", [(b"x", b"y\r\nz: 1")], b"")
