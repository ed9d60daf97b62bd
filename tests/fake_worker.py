"""A worker for the router's tests: HTTP on a real socket, in the test's own loop, and as badly behaved as asked for."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

MODEL = "fake"


@dataclass
class Seen:
    """A request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class Answering:
    """What a behaviour answers with. `left` is set when the other end hangs up."""

    def __init__(self, worker: FakeWorker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.worker = worker
        self.left = asyncio.Event()
        self._reader = reader
        self._writer = writer

    async def whole(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
        await self._write(head.encode() + body)

    async def begin(self, content_type: str = "text/event-stream") -> None:
        await self._write(
            f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        )

    async def chunk(self, data: bytes) -> None:
        await self._write(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        await self._write(b"0\r\n\r\n")

    async def until_left(self) -> None:
        """Returns when the other end hangs up."""
        with suppress(ConnectionError):
            while await self._reader.read(1024):
                pass
        self.left.set()
        self.worker.num_hang_ups += 1

    def reset(self) -> None:
        """Not an orderly end."""
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def close(self) -> None:
        """An orderly end, wherever the answer is."""
        self._writer.close()

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()


Behaviour = Callable[[Seen, Answering], Awaitable[None]]


async def answer(seen: Seen, answering: Answering) -> None:
    """As a chat completion: whole, or in `num_tokens` events where the body asks for a stream."""
    worker = answering.worker
    fields = json.loads(seen.body or b"{}")
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": worker.num_tokens,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    if not fields.get("stream"):
        text = worker.name * worker.num_tokens
        await answering.whole(200, json.dumps({"id": f"chatcmpl-{worker.name}", "text": text, "usage": usage}).encode())
        return
    await answering.begin()
    for index in range(worker.num_tokens):
        await answering.chunk(event(worker.name, index))
        await asyncio.sleep(0)
    await answering.chunk(b"data: [DONE]\n\n")
    await answering.end()


def event(name: str, index: int) -> bytes:
    return b"data: " + json.dumps({"id": "chatcmpl-1", "worker": name, "index": index}).encode() + b"\n\n"


def status(code: int, message: str = "no", **headers: str) -> Behaviour:
    async def behave(seen: Seen, answering: Answering) -> None:
        body = json.dumps({"error": {"message": message, "type": "server_error", "param": None, "code": None}}).encode()
        await answering.whole(code, body, {name.replace("_", "-"): value for name, value in headers.items()})

    return behave


async def reset(seen: Seen, answering: Answering) -> None:
    answering.reset()


async def reset_after_headers(seen: Seen, answering: Answering) -> None:
    await answering.begin()
    answering.reset()


async def silent(seen: Seen, answering: Answering) -> None:
    await answering.until_left()


class FakeWorker:
    """`behaviours` answer the next POSTs, one each; `behaviour` all others. `paths` answer GETs with documents, and
    `gets` as they like.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_tokens = 3
        self.seen: list[Seen] = []
        self.behaviour: Behaviour = answer
        self.behaviours: deque[Behaviour] = deque()
        self.paths: dict[str, object] = {
            "/health": {"status": "ready"},
            "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model"}]},
        }
        self.gets: dict[str, Behaviour] = {}
        self.num_hang_ups = 0
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._handlers: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def posts(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.method == "POST"]

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """At the port that it had before, if it had one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, ssl=tls)
        self._port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Nobody listens any more, and every connection is reset."""
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._connections):
            Answering(self, asyncio.StreamReader(), writer).reset()
        for handler in tuple(self._handlers):
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    def freeze(self) -> None:
        """Like SIGSTOP: connections are taken, and nothing is said on any of them."""
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        self._connections.add(writer)
        try:
            while (seen := await _read(reader)) is not None:
                if seen.path != "/health":
                    self.seen.append(seen)
                await self._thawed.wait()
                await self._answer(seen, Answering(self, reader, writer))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(writer)
            self._handlers.discard(task)
            writer.close()

    async def _answer(self, seen: Seen, answering: Answering) -> None:
        if seen.method == "POST" and seen.path not in self.paths:
            behave = self.behaviours.popleft() if self.behaviours else self.behaviour
            await behave(seen, answering)
        elif seen.path in self.gets:
            await self.gets[seen.path](seen, answering)
        elif seen.path in self.paths:
            await answering.whole(200, json.dumps(self.paths[seen.path]).encode())
        else:
            await answering.whole(404, b'{"error": {"message": "no such path", "type": "not_found_error"}}')


async def _read(reader: asyncio.StreamReader) -> Seen | None:
    """None at the connection's end."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(method, target, headers, body)


@asynccontextmanager
async def fake_workers(*names: str) -> AsyncIterator[list[FakeWorker]]:
    workers = [FakeWorker(name) for name in names]
    for worker in workers:
        await worker.start()
    try:
        yield workers
    finally:
        for worker in workers:
            worker.thaw()
            await worker.kill()
