"""What is particular to values in Redis: names, expiry, what is found there that is none of ours, limits of memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from tests.redis_servers import RedisServer, running
from tests.unit.storage_backends.redis_stores import names_in, open_store
from tests.unit.storage_backends.stores import get, put, stored_keys

from pagefall_storage.errors import StorageError
from pagefall_storage.protocol import Corrupt, Failed, Hit, Key, Miss, PutItem, Stored, StoredValue
from pagefall_storage.testing import page_keys, random_values

pytestmark = pytest.mark.anyio

MIB = 2**20


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    shared_server.admin.flushall()
    shared_server.admin.config_set("maxmemory", 0)
    shared_server.admin.config_set("maxmemory-policy", "noeviction")
    return shared_server


async def test_names_are_the_prefix_and_the_key(server: RedisServer) -> None:
    async with open_store(server) as store, open_store(server, key_prefix="other/") as other:
        await put(store, [Key("a/b")])
        await put(other, [Key("a/b"), Key("c")])
        assert names_in(server) == {"pagefall:a/b", "other/a/b", "other/c"}
        assert await stored_keys(store) == {Key("a/b")}
        assert (await other.usage()).num_values == 2
        assert await other.delete([Key("a/b")]) == 1
        assert await get(store, [Key("a/b")]) == [Hit()]


async def test_other_things_under_the_prefix_are_not_listed(server: RedisServer) -> None:
    server.admin.set("pagefall:NOT A KEY", "x")
    server.admin.rpush("pagefall:list", "x")
    async with open_store(server) as store:
        await put(store, [Key("a")])
        assert await stored_keys(store) == {Key("a")}
        assert (await store.usage()).num_bytes == 100


async def test_what_is_no_string_is_corrupt_and_can_be_deleted_or_replaced(server: RedisServer) -> None:
    keys = page_keys(2)
    for key in keys:
        server.admin.rpush(f"pagefall:{key}", "x")
    async with open_store(server) as store:
        assert await get(store, keys) == [Corrupt("not a string")] * 2
        assert await store.delete(keys[:1]) == 1
        assert await put(store, keys[1:]) == [Stored()]
        assert await get(store, keys) == [Miss(), Hit()]


async def test_of_a_value_far_too_long_only_one_byte_too_many_is_read(server: RedisServer) -> None:
    keys = page_keys(2)
    server.admin.setrange(f"pagefall:{keys[0]}", 200 * MIB, "x")
    async with open_store(server) as store:
        await put(store, keys[1:])
        num_sent = server.admin.info("stats")["total_net_output_bytes"]
        assert await get(store, keys) == [Corrupt("long"), Hit()]
        assert server.admin.info("stats")["total_net_output_bytes"] - num_sent < MIB


async def test_an_empty_value_is_corrupt_and_none_is_a_miss(server: RedisServer) -> None:
    keys = page_keys(2)
    server.admin.set(f"pagefall:{keys[0]}", "")
    async with open_store(server) as store:
        assert await get(store, keys) == [Corrupt("short"), Miss()]
        assert await get(store, keys, num_bytes=0) == [Hit(), Miss()]


async def test_values_never_expire_unless_told_to(server: RedisServer) -> None:
    async with open_store(server) as store:
        await put(store, [Key("a")])
        assert server.admin.ttl("pagefall:a") == -1


async def test_reading_and_storing_put_the_expiry_off(server: RedisServer) -> None:
    async with open_store(server, ttl_seconds=600) as store:
        await put(store, [Key("a"), Key("b")])
        for use in (get, put):
            server.admin.expire("pagefall:a", 5)
            server.admin.expire("pagefall:b", 5)
            await use(store, [Key("a")])
            assert server.admin.ttl("pagefall:a") > 500
            assert server.admin.ttl("pagefall:b") <= 5


async def test_a_value_is_gone_when_its_time_is_over(server: RedisServer) -> None:
    async with open_store(server, ttl_seconds=1) as store:
        await put(store, [Key("a")])
        await asyncio.sleep(1.1)
        assert await store.contains([Key("a")]) == 0
        assert await get(store, [Key("a")]) == [Miss()]


async def test_read_only_reads_and_writes_nothing(server: RedisServer) -> None:
    async with open_store(server) as store, open_store(server, read_only=True, ttl_seconds=600) as reader:
        await put(store, [Key("a")])
        num_changes = server.admin.info("persistence")["rdb_changes_since_last_save"]
        assert await get(reader, [Key("a"), Key("b")]) == [Hit(), Miss()]
        assert await reader.contains([Key("a")]) == 1
        assert (await reader.usage()).num_values == 1
        (outcome,) = await put(reader, [Key("b")])
        assert isinstance(outcome, Failed)
        with pytest.raises(StorageError, match="read-only"):
            await reader.delete([Key("a")])
        assert server.admin.info("persistence")["rdb_changes_since_last_save"] == num_changes
        assert "read-only" in reader.description


async def test_a_full_server_without_eviction_refuses_values_and_gives_those_it_has(server: RedisServer) -> None:
    keys = page_keys(40)
    async with open_store(server) as store:
        await put(store, keys[:2], num_bytes=MIB)
        server.admin.config_set("maxmemory", server.admin.info("memory")["used_memory"] + 4 * MIB)
        outcomes = await put(store, keys[2:], num_bytes=MIB)
        refused = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
        assert len(refused) > 20
        assert {outcome.kind for outcome in refused} == {"full"}
        assert refused[0].reason.startswith("OOM")
        assert await get(store, keys[:2], num_bytes=MIB) == [Hit()] * 2
        assert await store.delete(keys[:2]) == 2
        assert (await store.usage()).num_evicted == 0


async def test_what_a_server_evicts_is_counted_from_the_first_write_on(server: RedisServer) -> None:
    keys = page_keys(40)
    async with open_store(server) as store:
        await put(store, keys[:1], num_bytes=MIB)
        limit = server.admin.info("memory")["used_memory"] + 12 * MIB
        server.admin.config_set("maxmemory", limit)
        server.admin.config_set("maxmemory-policy", "allkeys-lru")
        for key in keys:
            assert await put(store, [key], num_bytes=MIB) == [Stored()]
        usage = await store.usage()
        assert usage.max_bytes == limit
        assert usage.num_evicted >= 20
        assert usage.num_values + usage.num_evicted == 40
    async with open_store(server) as store:
        assert (await store.usage()).num_evicted == 0


async def test_a_scan_tells_when_a_value_was_last_used(server: RedisServer) -> None:
    server.admin.config_set("maxmemory-policy", "allkeys-lru")
    async with open_store(server) as store:
        before = time.time()
        await put(store, [Key("a")])
        (value,) = [value async for value in store.scan()]
        assert value.last_used is not None
        assert before - 2 < value.last_used < time.time() + 2
        server.admin.config_set("maxmemory-policy", "allkeys-lfu")  # it counts uses, and forgets when they were
        assert [value async for value in store.scan()] == [StoredValue(Key("a"), 100, None)]


async def test_more_values_than_one_page_of_a_scan_are_all_told(server: RedisServer) -> None:
    keys = page_keys(1500)
    async with open_store(server) as store:
        await put(store, keys, num_bytes=5)
        assert await stored_keys(store) == set(keys)
        assert await store.contains(keys) == 1500
        assert await store.delete(keys) == 1500


async def test_connections_are_bounded_and_kept(server: RedisServer) -> None:
    keys = page_keys(8)
    async with open_store(server, max_connections=3) as store:
        await put(store, keys, num_bytes=MIB)
        num_accepted = server.admin.info("stats")["total_connections_received"]
        await asyncio.gather(*(get(store, keys, num_bytes=MIB) for _ in range(20)))
        assert server.admin.info("stats")["total_connections_received"] - num_accepted <= 2
        assert server.admin.info("clients")["connected_clients"] <= 1 + 3
    async with asyncio.timeout(10):  # Redis notices in its own time that they are closed
        while server.admin.info("clients")["connected_clients"] > 1:
            await asyncio.sleep(0.01)


async def test_no_step_keeps_the_event_loop_busy_for_long(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """While values are read and written at full speed. Its own time is counted, whatever else the machine does."""
    keys, num_bytes = page_keys(48), 368_768
    value = memoryview(random_values(1, num_bytes)[0])
    buffers = [memoryview(bytearray(num_bytes)) for _ in keys]
    steps: list[float] = []
    run = asyncio.Handle._run

    def timed_run(handle: asyncio.Handle) -> None:
        started = time.thread_time()
        run(handle)
        steps.append(time.thread_time() - started)

    async with open_store(server) as store:
        await store.contains(keys)
        monkeypatch.setattr(asyncio.Handle, "_run", timed_run)
        for _ in range(3):
            assert await store.put([PutItem(key, value) for key in keys]) == [Stored()] * 48
            assert await store.get(keys, buffers) == [Hit()] * 48
        monkeypatch.undo()
    steps.sort()
    assert steps[int(len(steps) * 0.99)] < 0.02
    assert steps[-1] < 0.05
