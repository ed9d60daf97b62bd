"""`GET /cache/events`."""

from __future__ import annotations

from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from tests.unit.api.fake_engine import FakeEngine, http_client

from pagefall.api.app import create_app
from pagefall.cache.changes import TierChange
from pagefall.config import HttpConfig
from pagefall.kv_events import Beat, Entered, Held, Hello, KvLine, SnapshotEnd, decode_line


@asynccontextmanager
async def reading(engine: FakeEngine, query: str = "") -> AsyncIterator[Any]:
    """The lines of the answer, one by one: the application is called directly, since test clients wait for its end."""
    app = create_app(engine, HttpConfig())
    send_chunk, receive_chunk = anyio.create_memory_object_stream[bytes](100)
    left = anyio.Event()

    async def receive() -> dict[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
        elif message.get("body"):
            await send_chunk.send(message["body"])

    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "path": "/cache/events",
        "raw_path": b"/cache/events",
        "root_path": "",
        "scheme": "http",
        "query_string": query.encode(),
        "headers": [],
        "client": ("c", 1),
        "server": ("s", 1),
    }
    lines: list[KvLine] = []

    async def answer() -> None:
        await app(scope, receive, send)
        send_chunk.close()

    async def next_line() -> KvLine:
        while not lines:
            with anyio.fail_after(5):
                chunk = await receive_chunk.receive()
            lines.extend(decode_line(line) for line in chunk.splitlines())
        return lines.pop(0)

    async with anyio.create_task_group() as group:
        group.start_soon(answer)
        try:
            yield next_line
        finally:
            left.set()
    receive_chunk.close()


async def test_a_newcomer_gets_a_snapshot_and_then_what_happens() -> None:
    engine = FakeEngine()
    engine.kv_log.publish([TierChange("device", b"1" * 32)])
    async with reading(engine) as next_line:
        hello = await next_line()
        assert isinstance(hello, Hello)
        assert (hello.number, hello.page_size, hello.has_snapshot) == (1, 16, True)
        assert bytes.fromhex(hello.namespace) == b"\1" * 32
        assert await next_line() == Held(tier="device", names=b"d" * 16)
        assert await next_line() == Held(tier="host", names=b"h" * 8)
        assert await next_line() == SnapshotEnd(number=1)
        assert await next_line() == Beat(number=1)
        engine.kv_log.publish([TierChange("host", b"2" * 32)])
        assert await next_line() == Entered(number=2, tier="host", names=b"2" * 8)


async def test_who_was_here_goes_on_where_he_left() -> None:
    engine = FakeEngine()
    engine.kv_log.publish([TierChange("device", b"1" * 32), TierChange("host", b"1" * 32)])
    async with reading(engine, f"epoch={engine.kv_log.epoch}&after=1") as next_line:
        hello = await next_line()
        assert isinstance(hello, Hello)
        assert not hello.has_snapshot
        assert await next_line() == Entered(number=2, tier="host", names=b"1" * 8)


@pytest.mark.parametrize("query", ["epoch=another&after=1", "after=1", "epoch={epoch}&after=7"])
async def test_where_that_is_not_possible_it_begins_with_a_snapshot(query: str) -> None:
    engine = FakeEngine()
    engine.kv_log.publish([TierChange("device", b"1" * 32)])
    async with reading(engine, query.format(epoch=engine.kv_log.epoch)) as next_line:
        hello = await next_line()
        assert isinstance(hello, Hello)
        assert hello.has_snapshot


async def test_the_stream_ends_with_the_server() -> None:
    engine = FakeEngine()
    async with reading(engine) as next_line:
        for _ in range(5):
            await next_line()
        engine.kv_log.close()
        with pytest.raises(anyio.EndOfStream):
            await next_line()


@pytest.mark.parametrize("query", ["after=x", "after=-1", "aftr=1", "after=99999999999999999999999"])
async def test_parameters_that_mean_nothing_are_refused_by_name(query: str) -> None:
    async with http_client(FakeEngine()) as client:
        answer = await client.get(f"/cache/events?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == query.partition("=")[0]
