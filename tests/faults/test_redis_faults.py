"""A Redis that fails under running load: no answer but the cold run's, no error, no stalled neighbour, no restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.faults.conftest import Truth
from tests.faults.foreign_pages import FOREIGN, Foreign, put_foreign
from tests.faults.load import DEADLINE_SECONDS, Scene, num_stored_tokens, page_names, under_load
from tests.faults.names import Names
from tests.faults.rig import LoadedModel, counted
from tests.redis_servers import RedisServer, running
from tests.tcp_proxy import tcp_proxy
from tests.unit.storage_backends.redis_stores import names_in, open_store

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

USER = "pagefall"
PREFIX = "pagefall:"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with running(tmp_path / "redis") as server:
        yield server


@asynccontextmanager
async def redis_under_load(
    loaded: LoadedModel,
    truth: Truth,
    server: RedisServer | None,
    *,
    deadline_seconds: float = 5 * DEADLINE_SECONDS,
    **config: object,
) -> AsyncIterator[Scene]:
    async with (
        open_store(server, **config) as store,
        under_load(loaded, truth, store, deadline_seconds=deadline_seconds) as scene,
    ):
        yield scene


async def test_a_frozen_redis_is_waited_for_once_and_used_again_when_it_thaws(
    loaded: LoadedModel, truth: Truth, server: RedisServer
) -> None:
    async with redis_under_load(loaded, truth, server, deadline_seconds=DEADLINE_SECONDS) as scene:
        assert num_stored_tokens(await scene.load.go_on())
        server.freeze()
        await scene.assert_one_wait()
        assert num_stored_tokens(await scene.until_left_alone()) == 0
        server.thaw()
        await scene.until_used_again()
        assert num_stored_tokens(await scene.load.go_on())


async def test_a_redis_that_was_killed_and_comes_back_empty_is_filled_again(
    loaded: LoadedModel, truth: Truth, server: RedisServer
) -> None:
    async with redis_under_load(loaded, truth, server) as scene:
        assert num_stored_tokens(await scene.load.go_on())
        await asyncio.to_thread(server.kill)
        assert num_stored_tokens(await scene.until_left_alone()) == 0
        await asyncio.to_thread(server.start)
        await scene.until_used_again()
        assert scene.failures().keys() == {"error"}


async def test_a_redis_that_is_full_and_may_not_evict_serves_what_it_has(
    loaded: LoadedModel, truth: Truth, server: RedisServer
) -> None:
    names = page_names(loaded)
    kept, lost = names[::2], names[1::2]
    async with redis_under_load(loaded, truth, server) as scene:
        server.admin.delete(*(PREFIX + name for name in lost))
        server.admin.config_set("maxmemory-policy", "noeviction")
        server.admin.config_set("maxmemory", "1")
        before = scene.engine.outcomes()
        await scene.load.go_on()
        await scene.load.go_on()
        assert scene.failures().keys() == {"full"}
        assert counted(before, scene.engine.outcomes()).keys() <= {"hit", "miss"}
        assert scene.engine.store().breaker == "closed", "a store that is full is not down"
        assert {PREFIX + name for name in kept} <= names_in(server)
        server.admin.config_set("maxmemory", "0")
        await scene.load.go_on()


async def test_a_redis_that_evicts_half_of_the_pages_costs_these(
    loaded: LoadedModel, truth: Truth, server: RedisServer
) -> None:
    async with redis_under_load(loaded, truth, server) as scene:
        assert num_stored_tokens(await scene.load.go_on())
        num_bytes = len(names_in(server)) * loaded.value_bytes
        server.admin.config_set("maxmemory-policy", "allkeys-random")
        server.admin.config_set("maxmemory", str(server.admin.info("memory")["used_memory"] - num_bytes // 2))
        await scene.load.go_on()
        await scene.load.go_on()
        assert server.admin.info("stats")["evicted_keys"] > 0
        assert scene.engine.outcomes().keys() <= {"hit", "miss"}
        assert scene.failures() == {}
        assert scene.engine.store().breaker == "closed"
        server.admin.config_set("maxmemory", "0")


async def test_a_password_that_changes_locks_the_store_out_until_it_is_told_the_new_one(
    loaded: LoadedModel, truth: Truth, server: RedisServer, tmp_path: Path
) -> None:
    password_file = tmp_path / "password"
    password_file.write_text("first")
    server.admin.acl_setuser(USER, enabled=True, passwords=["+first"], keys=["*"], categories=["+@all"])
    async with redis_under_load(loaded, truth, server, username=USER, password_file=str(password_file)) as scene:
        assert num_stored_tokens(await scene.load.go_on())
        server.admin.acl_setuser(USER, enabled=True, reset_passwords=True, passwords=["+second"])
        server.admin.execute_command("CLIENT KILL USER", USER)
        assert num_stored_tokens(await scene.until_left_alone()) == 0
        password_file.write_text("second")
        await scene.until_used_again()
        assert num_stored_tokens(await scene.load.go_on())


async def test_rights_that_are_taken_away_and_given_back_need_no_restart(
    loaded: LoadedModel, truth: Truth, server: RedisServer
) -> None:
    server.admin.acl_setuser(USER, enabled=True, passwords=["+pw"], keys=["*"], categories=["+@all"])
    async with redis_under_load(loaded, truth, server, username=USER, password="pw") as scene:
        assert num_stored_tokens(await scene.load.go_on())
        server.admin.execute_command("ACL SETUSER", USER, "-@all", "+exists")
        assert num_stored_tokens(await scene.until_left_alone()) == 0
        server.admin.execute_command("ACL SETUSER", USER, "+@all")
        await scene.until_used_again()
        assert num_stored_tokens(await scene.load.go_on())


@pytest.mark.parametrize("cut_after", [40, 5000])
async def test_connections_that_are_reset_in_the_middle_of_a_value_open_the_breaker(
    loaded: LoadedModel, truth: Truth, server: RedisServer, cut_after: int
) -> None:
    async with (
        tcp_proxy(server.port) as (proxy, port),
        redis_under_load(loaded, truth, None, url=f"redis://127.0.0.1:{port}") as scene,
    ):
        assert num_stored_tokens(await scene.load.go_on())
        proxy.cut_after = cut_after
        assert num_stored_tokens(await scene.until_left_alone()) == 0
        proxy.cut_after = None
        await scene.until_used_again()
        assert num_stored_tokens(await scene.load.go_on())


async def test_of_a_batch_whose_connection_is_reset_what_had_come_is_used(
    loaded: LoadedModel, truth: Truth, server: RedisServer
) -> None:
    async with (
        tcp_proxy(server.port) as (proxy, port),
        redis_under_load(loaded, truth, None, url=f"redis://127.0.0.1:{port}") as scene,
    ):
        proxy.cut_after = 3 * loaded.value_bytes + 5000
        before = scene.engine.outcomes()
        assert num_stored_tokens(await scene.load.go_on())
        assert counted(before, scene.engine.outcomes()).keys() >= {"hit", "error"}
        proxy.cut_after = None
        await scene.until_used_again()


async def test_a_name_that_does_not_resolve_is_asked_for_again(
    loaded: LoadedModel, truth: Truth, server: RedisServer, names: Names
) -> None:
    async with redis_under_load(loaded, truth, None, url=f"redis://{names.known}:{server.port}") as scene:
        assert num_stored_tokens(await scene.load.go_on())
        names.forget()
        server.admin.client_kill_filter(_type="normal", skipme=True)
        assert num_stored_tokens(await scene.until_left_alone()) == 0
        assert names.num_asked
        names.remember()
        await scene.until_used_again()
        assert num_stored_tokens(await scene.load.go_on())


@pytest.mark.parametrize("reason", FOREIGN)
async def test_pages_of_another_version_are_damaged_ones_and_make_room(
    loaded: LoadedModel, truth: Truth, server: RedisServer, reason: Foreign
) -> None:
    async with open_store(server) as other, redis_under_load(loaded, truth, server) as scene:
        before = scene.engine.outcomes()
        await put_foreign(other, page_names(loaded), reason, num_bytes=loaded.value_bytes)
        await scene.load.go_on()
        await scene.load.go_on()
        assert counted(before, scene.engine.outcomes())[f"corrupt:{reason}"] > 0
        assert scene.failures() == {}
        assert scene.engine.store().breaker == "closed"
