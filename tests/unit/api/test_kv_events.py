"""`GET /cache/events`."""

from __future__ import annotations

from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from starlette.requests import ClientDisconnect, Request
from tests.unit.api.fake_engine import FakeEngine, http_client

from pagefall.actors.refusals import unavailable
from pagefall.api.app import create_app
from pagefall.api.kv_events import KvEvents
from pagefall.cache.changes import TierChange
from pagefall.config import HttpConfig
from pagefall.kv_events import Beat, Entered, Held, Hello, KvLine, SnapshotEnd, decode_line
from pagefall.messages import ControllerStats, KeysSnapshot


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


def with_store(identity: str | None) -> ControllerStats:
    return ControllerStats(breaker="closed", storage_identity=identity)


async def test_it_says_how_much_the_device_holds_and_which_store_there_is() -> None:
    engine = FakeEngine()
    said = []
    for tiers in (None, ControllerStats(), with_store("s"), with_store(None)):
        engine.tiers = tiers
        async with reading(engine) as next_line:
            hello = await next_line()
        assert isinstance(hello, Hello)
        assert hello.num_device_pages == 10
        said.append(hello.store)
    assert said == [None, None, "s", engine.kv_log.epoch], "one that it cannot name is nobody else's"


async def test_with_another_store_the_stream_ends_and_the_reader_begins_anew() -> None:
    engine = FakeEngine()
    engine.tiers = with_store("s")
    async with reading(engine) as next_line:
        for _ in range(5):
            await next_line()
        engine.tiers = with_store("other")
        engine.kv_log.publish([TierChange("device", b"1" * 32)])
        with pytest.raises(anyio.EndOfStream):
            await next_line()


async def test_the_same_store_attached_again_is_another_epoch_and_empties_it_for_nobody() -> None:
    engine = FakeEngine()
    engine.tiers = with_store("s")
    async with reading(engine) as next_line:
        hello = await next_line()
        for _ in range(4):
            await next_line()
        engine.kv_log.publish([TierChange("storage", b"")])
        with pytest.raises(anyio.EndOfStream):
            await next_line()
    assert isinstance(hello, Hello)
    async with reading(engine, f"epoch={hello.epoch}&after=0") as next_line:
        again = await next_line()
    assert isinstance(again, Hello)
    assert again.has_snapshot


async def test_numbers_of_another_store_are_not_gone_on_from() -> None:
    engine = FakeEngine()
    engine.tiers = with_store("s")
    async with reading(engine) as next_line:
        hello = await next_line()
    assert isinstance(hello, Hello)
    for store, has_snapshot in (("s", False), ("other", True), (None, True)):
        engine.tiers = with_store(store)
        async with reading(engine, f"epoch={hello.epoch}&after=0") as next_line:
            again = await next_line()
        assert isinstance(again, Hello)
        assert again.has_snapshot == has_snapshot


@pytest.mark.parametrize("query", ["after=x", "after=-1", "aftr=1", "after=99999999999999999999999"])
async def test_parameters_that_mean_nothing_are_refused_by_name(query: str) -> None:
    async with http_client(FakeEngine()) as client:
        answer = await client.get(f"/cache/events?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == query.partition("=")[0]


MORE_THAN_READERS = 65


class BusyEngine(FakeEngine):
    """Others ask for snapshots already."""

    is_busy = True

    async def snapshot_keys(self) -> KeysSnapshot:
        if self.is_busy:
            raise unavailable("4 snapshots of the cache are under way")
        return await super().snapshot_keys()


async def test_a_reader_for_whom_there_is_no_snapshot_now_is_told_to_come_back_and_holds_no_place() -> None:
    engine = BusyEngine()
    async with http_client(engine) as client:
        for _ in range(MORE_THAN_READERS):
            answer = await client.get("/cache/events")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "service_unavailable")
            assert int(answer.headers["retry-after"]) > 0
        engine.is_busy = False
        engine.kv_log.close()
        assert (await client.get("/cache/events")).status_code == 200


async def test_a_reader_that_leaves_before_the_first_line_holds_no_place() -> None:
    events = KvEvents(FakeEngine())
    scope = {"type": "http", "method": "GET", "query_string": b"", "headers": [], "asgi": {"spec_version": "2.4"}}

    async def send(message: MutableMapping[str, Any]) -> None:
        raise OSError

    for _ in range(MORE_THAN_READERS):
        response = await events.stream(Request(scope))
        with pytest.raises(ClientDisconnect):
            await response(scope, Request(scope).receive, send)
