"""More than one server: a cluster whose slots move, and Sentinels that name another master."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.crc import key_slot
from tests.redis_servers import RedisServer, free_port, running, running_cluster, running_sentinel, until
from tests.unit.storage_backends.redis_stores import names_in, open_store
from tests.unit.storage_backends.stores import get, put, stored_keys

from pagefall_storage.errors import StorageError
from pagefall_storage.protocol import Failed, Hit, Key, Miss, Stored
from pagefall_storage.testing import page_keys

pytestmark = pytest.mark.anyio


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[RedisServer]]:
    with running_cluster(tmp_path / "redis") as nodes:
        yield nodes


async def test_each_node_of_a_cluster_has_its_share_and_one_address_is_enough(nodes: list[RedisServer]) -> None:
    keys = page_keys(200)
    async with open_store(url=cluster_url(nodes[1])) as store:
        assert await put(store, keys) == [Stored()] * 200
        assert [len(names_in(node)) > 50 for node in nodes] == [True, True]
        assert await get(store, keys) == [Hit()] * 200
        assert await stored_keys(store) == set(keys)
        assert (await store.usage()).num_values == 200


async def test_what_has_moved_to_another_node_is_found_there_the_next_time(nodes: list[RedisServer]) -> None:
    keys = page_keys(50)
    async with open_store(url=cluster_url(nodes[0])) as store:
        await store.contains(keys)  # who has which slots is known now
        second = nodes[1].admin.execute_command("CLUSTER MYID")
        for node in nodes:
            moves = node.admin.pipeline(transaction=False)
            for slot in range(8192):
                moves.execute_command("CLUSTER SETSLOT", slot, "NODE", second)
            moves.execute()
        outcomes = await put(store, keys)
        refused = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
        assert 0 < len(refused) < 50
        assert {outcome.reason.split()[0] for outcome in refused} == {"MOVED"}
        assert await put(store, keys) == [Stored()] * 50
        assert len(names_in(nodes[1])) == 50


async def test_what_is_not_there_any_more_while_its_slot_moves_is_a_miss(nodes: list[RedisServer]) -> None:
    (moving,) = [key for key in page_keys(50) if not is_on_second(key)][:1]
    (other,) = [key for key in page_keys(50) if is_on_second(key)][:1]
    first, second = (node.admin.execute_command("CLUSTER MYID") for node in nodes)
    async with open_store(url=cluster_url(*nodes)) as store:
        await put(store, [other])
        nodes[1].admin.execute_command("CLUSTER SETSLOT", key_slot(name_of(moving)), "IMPORTING", first)
        nodes[0].admin.execute_command("CLUSTER SETSLOT", key_slot(name_of(moving)), "MIGRATING", second)
        assert await store.contains([other, moving]) == 1
        assert await get(store, [moving, other]) == [Miss(), Hit()]
        (outcome,) = await put(store, [moving])
        assert isinstance(outcome, Failed)
        with pytest.raises(StorageError, match="ASK"):
            await store.delete([moving])


async def test_a_cluster_without_one_of_its_nodes_serves_what_the_others_have(nodes: list[RedisServer]) -> None:
    for node in nodes:
        node.admin.config_set("cluster-require-full-coverage", "no")
    keys = page_keys(50)
    async with open_store(url=cluster_url(*nodes)) as store:
        await put(store, keys)
        nodes[0].kill()
        for _ in range(3):
            outcomes = await get(store, keys)
            assert {type(outcome) for outcome in outcomes} == {Hit, Failed}
        with pytest.raises(StorageError):
            await store.contains(keys)


async def test_a_silent_node_is_passed_over_when_asking_who_has_what(nodes: list[RedisServer]) -> None:
    for node in nodes:
        node.admin.config_set("cluster-require-full-coverage", "no")
    keys = page_keys(50)
    num_on_second = sum(map(is_on_second, keys))
    async with open_store(url=cluster_url(*nodes), connect_timeout_seconds=0.2) as store:
        nodes[0].freeze()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await store.contains(keys)
        async with asyncio.timeout(5):
            assert await put(store, [key for key in keys if is_on_second(key)]) == [Stored()] * num_on_second


async def test_sentinels_tell_who_the_master_is_and_when_it_is_another(tmp_path: Path) -> None:
    keys = page_keys(3)
    with (
        running(tmp_path / "first") as first,
        running(tmp_path / "second", f"replicaof 127.0.0.1 {first.port}") as second,
    ):
        until(lambda: second.admin.info("replication")["master_link_status"] == "up")
        with running_sentinel(tmp_path / "sentinel", first, service="main") as sentinel:
            until(lambda: sentinel.admin.execute_command("SENTINEL REPLICAS", "main"))
            url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{sentinel.port}/main"
            async with open_store(url=url) as store:
                assert await put(store, keys) == [Stored()] * 3
                assert len(names_in(first)) == 3
                until(lambda: len(names_in(second)) == 3)
                first.kill()
                assert {type(outcome) for outcome in await get(store, keys)} == {Failed}
                until(lambda: second.admin.info("replication")["role"] == "master")
                until(lambda: master_port(sentinel) == second.port)
                assert await get(store, keys) == [Hit()] * 3
                assert await put(store, keys) == [Stored()] * 3


async def test_a_master_that_was_demoted_is_left_for_the_new_one(tmp_path: Path) -> None:
    """It answers still, and refuses writes."""
    keys = page_keys(3)
    with (
        running(tmp_path / "first") as first,
        running(tmp_path / "second") as second,
        running_sentinel(tmp_path / "sentinel", first, service="main") as sentinel,
    ):
        async with open_store(url=f"redis+sentinel://127.0.0.1:{sentinel.port}/main") as store:
            await asyncio.gather(*(put(store, keys) for _ in range(4)))  # several connections
            sentinel.admin.execute_command("SENTINEL REMOVE", "main")
            sentinel.admin.execute_command("SENTINEL MONITOR", "main", "127.0.0.1", second.port, 1)
            first.admin.replicaof("127.0.0.1", second.port)
            refused = await put(store, keys)
            assert {outcome.reason.split()[0] for outcome in refused if isinstance(outcome, Failed)} == {"READONLY"}
            assert await put(store, keys) == [Stored()] * 3
            assert len(names_in(second)) == 3


async def test_sentinels_may_have_a_password_of_their_own(tmp_path: Path) -> None:
    with (
        running(tmp_path / "redis") as server,
        running_sentinel(tmp_path / "sentinel", server, "requirepass secret", service="main") as sentinel,
    ):
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main/1"
        async with open_store(url=url) as store:
            assert [type(outcome) for outcome in await put(store, page_keys(1))] == [Failed]
        async with open_store(url=url, sentinel_password="secret") as store:
            assert await put(store, page_keys(1)) == [Stored()]
            assert server.admin.info("keyspace")["db1"]["keys"] == 1


def cluster_url(*nodes: RedisServer) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def is_on_second(key: Key) -> bool:
    return key_slot(name_of(key)) >= 8192


def name_of(key: Key) -> bytes:
    return f"pagefall:{key}".encode()


def master_port(sentinel: RedisServer) -> int:
    """What it tells those who ask; while it is still promoting a replica that is the old one's."""
    (master,) = sentinel.admin.execute_command("SENTINEL MASTERS").values()
    return int(master["port"])
