"""A Redis server that is gone, silent, restarted, or lost in the middle of a value. Nothing raises, nothing hangs, and
the store is whole again by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.redis_servers import RedisServer, free_port, running
from tests.tcp_proxy import tcp_proxy
from tests.unit.storage_backends.redis_stores import names_in, open_store
from tests.unit.storage_backends.stores import get, put, stored_keys

from pagefall_storage.errors import StorageError
from pagefall_storage.protocol import Failed, Hit, Key, Miss, PutItem, StorageBackend, Stored
from pagefall_storage.testing import page_keys, random_values

pytestmark = pytest.mark.anyio

PAGE_BYTES = 368_768


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with running(tmp_path / "redis") as server:
        yield server


async def everything_fails(store: StorageBackend, keys: list[Key]) -> None:
    for outcomes in (await get(store, keys), await put(store, keys)):
        assert [outcome.kind for outcome in outcomes if isinstance(outcome, Failed)] == ["error"] * len(keys)
    with pytest.raises(StorageError):
        await store.contains(keys)
    with pytest.raises(StorageError):
        await store.delete(keys)
    with pytest.raises(StorageError):
        await stored_keys(store)
    with pytest.raises(StorageError):
        await store.usage()


@pytest.mark.parametrize(
    "form", ["redis://127.0.0.1:{}", "redis+cluster://127.0.0.1:{}", "redis+sentinel://127.0.0.1:{}/a"]
)
async def test_a_store_opens_while_its_server_is_down(form: str) -> None:
    async with open_store(url=form.format(free_port())) as store:
        await everything_fails(store, page_keys(3))


async def test_a_host_that_has_no_address_is_an_error() -> None:
    async with open_store(url="redis://no-such-host.invalid") as store:
        await everything_fails(store, page_keys(1))


async def test_what_does_not_speak_the_protocol_is_an_error() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 8)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        async with open_store(url=f"redis://127.0.0.1:{port}") as store:
            await everything_fails(store, page_keys(2))


async def test_a_server_that_was_killed_comes_back_empty_and_serves_again(server: RedisServer) -> None:
    keys = page_keys(4)
    async with open_store(server) as store:
        await put(store, keys)
        await asyncio.gather(*(get(store, keys) for _ in range(8)))  # several connections, all lost in a moment
        server.kill()
        await everything_fails(store, keys)
        server.start()
        assert await get(store, keys) == [Miss()] * 4
        assert await put(store, keys) == [Stored()] * 4
        assert await get(store, keys) == [Hit()] * 4


async def test_the_caller_may_give_a_frozen_server_up_and_use_the_store_again_when_it_thaws(
    server: RedisServer,
) -> None:
    keys = page_keys(16)
    async with open_store(server, max_connections=2) as store:
        await put(store, keys, num_bytes=PAGE_BYTES)
        server.freeze()
        for _ in range(3):
            started = time.monotonic()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await get(store, keys, num_bytes=PAGE_BYTES)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await put(store, keys, num_bytes=PAGE_BYTES)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await store.contains(keys)
            assert time.monotonic() - started < 5
        server.thaw()
        assert await get(store, keys, num_bytes=PAGE_BYTES) == [Hit()] * 16
        assert await store.contains(keys) == 16


async def test_a_frozen_server_does_not_keep_the_store_from_closing(server: RedisServer) -> None:
    async with open_store(server) as store:
        await put(store, page_keys(1))
        server.freeze()
        reading = asyncio.create_task(get(store, page_keys(1)))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(10):
            await store.aclose()
            (outcome,) = await reading
        assert isinstance(outcome, Failed)
        assert "closed" in outcome.reason


@pytest.mark.parametrize(("num_values", "num_bytes"), [(8, 4 * 2**20), (600, 40_000)])
async def test_what_a_cancelled_put_leaves_is_never_what_its_memory_became(
    server: RedisServer, num_values: int, num_bytes: int
) -> None:
    """The memory is the caller's again when the put has returned, though some of it may wait to be sent."""
    keys = page_keys(num_values)
    (value,) = random_values(1, num_bytes)
    memory = bytearray(value)
    async with open_store(url=f"unix://{server.socket_path}") as store:  # the system keeps little that is not read
        await store.put([PutItem(keys[0], memoryview(memory))])
        server.freeze()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await store.put([PutItem(key, memoryview(memory)) for key in keys])
        memory[:] = bytes(num_bytes)
        server.thaw()
        await asyncio.sleep(0.3)
        for name in names_in(server):
            assert server.admin.get(name) == value


@pytest.mark.parametrize("num_whole", [0, 2])
async def test_a_connection_lost_in_the_middle_of_a_value_costs_what_had_not_come(
    server: RedisServer, num_whole: int
) -> None:
    keys = page_keys(5)
    async with open_store(server) as store:
        await put(store, keys, num_bytes=PAGE_BYTES)
    async with tcp_proxy(server.port) as (proxy, port), open_store(url=f"redis://127.0.0.1:{port}") as store:
        proxy.cut_after = num_whole * (PAGE_BYTES + 12) + 100_000
        outcomes = await get(store, keys, num_bytes=PAGE_BYTES)
        assert outcomes[:num_whole] == [Hit()] * num_whole
        assert [type(outcome) for outcome in outcomes[num_whole:]] == [Failed] * (5 - num_whole)
        proxy.cut_after = None
        assert await get(store, keys, num_bytes=PAGE_BYTES) == [Hit()] * 5


async def test_a_connection_lost_while_values_are_written_leaves_whole_ones(server: RedisServer) -> None:
    keys = page_keys(12)
    async with open_store(server) as store:
        writing = asyncio.create_task(put(store, keys, num_bytes=PAGE_BYTES))
        while not names_in(server):
            await asyncio.sleep(0)
        server.admin.client_kill_filter(_type="normal", skipme=True)
        stored = [isinstance(outcome, Stored) for outcome in await writing]
        found = [isinstance(outcome, Hit) for outcome in await get(store, keys, num_bytes=PAGE_BYTES)]
        assert all(is_found or not is_stored for is_found, is_stored in zip(found, stored, strict=True))
        assert await put(store, keys, num_bytes=PAGE_BYTES) == [Stored()] * 12


async def test_a_server_that_became_a_replica_refuses_writes_until_it_is_none(server: RedisServer) -> None:
    async with open_store(server) as store:
        await put(store, page_keys(1))
        server.admin.replicaof("127.0.0.1", free_port())
        (outcome,) = await put(store, page_keys(1))
        assert isinstance(outcome, Failed)
        assert outcome.reason.startswith("READONLY")
        server.admin.replicaof("NO", "ONE")
        assert await put(store, page_keys(1)) == [Stored()]
