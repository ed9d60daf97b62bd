"""Clients that hang up, over real sockets."""

from __future__ import annotations

import json
from collections.abc import Callable

import anyio
import anyio.abc
import pytest
from tests.unit.api.fake_engine import MODEL, FakeEngine, listening

pytestmark = pytest.mark.anyio


def request(path: str, fields: dict[str, object]) -> bytes:
    body = json.dumps({"model": MODEL, **fields}).encode()
    return b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (path.encode(), len(body), body)


def chat(*, stream: bool) -> bytes:
    return request("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "stream": stream})


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(5):
        while not condition():
            await anyio.sleep(0.001)


@pytest.mark.parametrize("stream", [False, True])
async def test_hanging_up_aborts_the_generation(engine: FakeEngine, stream: bool) -> None:
    engine.endless = True
    async with listening(engine) as address:
        async with await anyio.connect_tcp(*address) as connection:
            await connection.send(chat(stream=stream))
            await until(lambda: engine.num_deltas >= 3)
        at_hang_up = engine.num_deltas
        await until(lambda: bool(engine.aborted))
        assert engine.num_deltas - at_hang_up < 200
        assert engine.aborted == [engine.requests[0].request_id]


async def test_hanging_up_aborts_every_prompt_of_the_request(engine: FakeEngine) -> None:
    engine.endless = True
    async with listening(engine) as address:
        async with await anyio.connect_tcp(*address) as connection:
            await connection.send(request("/v1/completions", {"prompt": ["a", "b", "c"], "stream": True}))
            await until(lambda: engine.num_deltas >= 6)
        await until(lambda: len(engine.aborted) == 3)


async def test_hanging_up_withdraws_a_request_that_is_not_accepted_yet(engine: FakeEngine) -> None:
    engine.accepts_together = 2
    async with listening(engine) as address:
        async with await anyio.connect_tcp(*address) as connection:
            await connection.send(chat(stream=False))
            await until(lambda: bool(engine.requests))
        await until(lambda: engine.withdrawn == 1)


async def test_hanging_up_inside_the_body_leaves_nothing(engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    async with listening(engine) as address:
        async with await anyio.connect_tcp(*address) as connection:
            await connection.send(chat(stream=False)[:-10])
        async with await anyio.connect_tcp(*address) as connection:
            await connection.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await connection.receive()).startswith(b"HTTP/1.1 200")
    assert engine.requests == []
    assert "Traceback" not in caplog.text


async def test_events_are_sent_when_they_are_made_and_not_later(engine: FakeEngine) -> None:
    engine.endless = True
    async with listening(engine) as address, await anyio.connect_tcp(*address) as connection:
        await connection.send(chat(stream=True))
        received = b""
        with anyio.fail_after(5):
            while received.count(b"data: ") < 20:
                received += await connection.receive()
        assert engine.num_deltas < 60


async def test_a_connection_serves_one_request_after_the_other(engine: FakeEngine) -> None:
    async with listening(engine) as address, await anyio.connect_tcp(*address) as connection:
        for _ in range(3):
            await connection.send(chat(stream=True))
            received = b""
            with anyio.fail_after(5):
                while b"[DONE]\n\n\r\n0\r\n\r\n" not in received:
                    received += await connection.receive()
    assert engine.aborted == []


async def test_many_clients_that_connect_and_reset_leave_nothing_behind(engine: FakeEngine) -> None:
    engine.endless = True
    async with listening(engine) as address:

        async def connect_and_reset(stream: bool) -> None:
            connection = await anyio.connect_tcp(*address)
            await connection.send(chat(stream=stream))
            await anyio.sleep(0.005)
            await connection.aclose()

        for _ in range(5):
            async with anyio.create_task_group() as group:
                for i in range(10):
                    group.start_soon(connect_and_reset, i % 2 == 0)
        await until(lambda: len(engine.closed) == len(engine.requests))
        assert len(engine.aborted) == len(engine.requests)
