"""An S3 that fails under running load: no answer but the cold run's, no error, no stalled neighbour, no restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx
import pytest
from tests.faults.conftest import Truth
from tests.faults.foreign_pages import FOREIGN, Foreign, put_foreign
from tests.faults.load import DEADLINE_SECONDS, Scene, num_stored_tokens, page_names, under_load
from tests.faults.names import Names
from tests.faults.rig import LoadedModel, counted
from tests.s3_servers import moto
from tests.unit.storage_backends.fake_s3 import FakeS3, Fault, Refuse, Stall, TooMuch, Truncate, fake_s3
from tests.unit.storage_backends.s3_stores import open_bucket, open_on

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture
def server() -> Iterator[FakeS3]:
    with fake_s3() as server:
        yield server


@asynccontextmanager
async def s3_under_load(
    loaded: LoadedModel,
    truth: Truth,
    server: FakeS3,
    *,
    deadline_seconds: float = 5 * DEADLINE_SECONDS,
    **config: object,
) -> AsyncIterator[Scene]:
    async with (
        open_on(server, **config) as store,
        under_load(loaded, truth, store, deadline_seconds=deadline_seconds) as scene,
    ):
        yield scene


@pytest.mark.parametrize(
    ("fault", "methods"),
    [
        (Refuse(503, "SlowDown"), "GET PUT HEAD POST"),
        (Refuse(503, "SlowDown"), "GET"),
        (Refuse(500, "InternalError"), "GET PUT HEAD POST"),
        (Refuse(403, "ExpiredToken"), "GET PUT HEAD POST"),
        (Refuse(403, "AccessDenied"), "GET"),
        (Truncate(0), "GET"),
        (Truncate(5000), "GET"),
    ],
    ids=str,
)
async def test_a_fault_of_every_request_opens_the_breaker_until_it_is_over(
    loaded: LoadedModel, truth: Truth, server: FakeS3, fault: Fault, methods: str
) -> None:
    async with s3_under_load(loaded, truth, server) as scene:
        assert num_stored_tokens(await scene.load.go_on())
        server.inject(fault, methods=methods)
        assert num_stored_tokens(await scene.until_left_alone()) == 0
        server.heal()
        await scene.until_used_again()
        assert num_stored_tokens(await scene.load.go_on())
        assert scene.failures().keys() == {"error"}


async def test_an_s3_that_asks_for_fewer_requests_is_asked_less_and_serves(
    loaded: LoadedModel, truth: Truth, server: FakeS3
) -> None:
    async with s3_under_load(loaded, truth, server, num_threads=16) as scene:
        server.capacity, server.pause_seconds = 3, 0.005
        for _ in range(3):
            await scene.load.go_on()
        server.max_at_once = 0
        await scene.load.go_on()
        assert server.max_at_once < 16
        server.capacity, server.pause_seconds = None, 0.0
        await scene.until_used_again()
        assert num_stored_tokens(await scene.load.go_on())


async def test_bodies_longer_than_they_say_are_read_as_long_as_they_say(
    loaded: LoadedModel, truth: Truth, server: FakeS3
) -> None:
    async with s3_under_load(loaded, truth, server) as scene:
        before = scene.engine.outcomes()
        server.inject(TooMuch(500), methods="GET")
        assert num_stored_tokens(await scene.load.go_on())
        assert num_stored_tokens(await scene.load.go_on())
        assert counted(before, scene.engine.outcomes()).keys() == {"hit"}
        assert scene.failures() == {}
        assert scene.engine.store().breaker == "closed"
        server.heal()


@pytest.mark.parametrize("num_bytes", [None, 0, 5000], ids=["of everything", "before a body", "in a body"])
async def test_a_stall_is_waited_for_once(
    loaded: LoadedModel, truth: Truth, server: FakeS3, num_bytes: int | None
) -> None:
    async with s3_under_load(loaded, truth, server, deadline_seconds=DEADLINE_SECONDS) as scene:
        assert num_stored_tokens(await scene.load.go_on())
        server.inject(Stall(num_bytes), methods="GET PUT HEAD POST" if num_bytes is None else "GET")
        await scene.assert_one_wait()
        assert num_stored_tokens(await scene.until_left_alone()) == 0
        server.heal()
        await scene.until_used_again()
        assert num_stored_tokens(await scene.load.go_on())


async def test_a_bucket_that_is_deleted_is_noticed_and_filled_again_when_it_is_there_again(
    loaded: LoadedModel, truth: Truth, server: FakeS3
) -> None:
    async with s3_under_load(loaded, truth, server) as scene:
        assert num_stored_tokens(await scene.load.go_on())
        server.is_bucket_there = False
        server.objects.clear()
        assert num_stored_tokens(await scene.until_left_alone()) == 0
        server.is_bucket_there = True
        await scene.until_used_again()
        assert scene.failures().keys() == {"error"}


async def test_a_bucket_of_a_real_server_that_is_deleted_is_filled_again_when_it_is_there_again(
    loaded: LoadedModel, truth: Truth, tmp_path: Path
) -> None:
    with moto(tmp_path) as server, closing(server.client()) as client:
        bucket = server.new_bucket()
        async with open_bucket(server, bucket) as store, under_load(loaded, truth, store) as scene:
            assert num_stored_tokens(await scene.load.go_on())
            await asyncio.to_thread(httpx.post, f"{server.endpoint_url}/moto-api/reset")  # all that it has, at once
            assert num_stored_tokens(await scene.until_left_alone()) == 0
            await asyncio.to_thread(client.create_bucket, Bucket=bucket)
            await scene.until_used_again()
            assert scene.failures().keys() == {"error"}


async def test_a_name_that_does_not_resolve_is_asked_for_again(
    loaded: LoadedModel, truth: Truth, server: FakeS3, names: Names
) -> None:
    port = server.endpoint_url.rpartition(":")[2]
    async with s3_under_load(loaded, truth, server, endpoint_url=f"http://{names.known}:{port}") as scene:
        assert num_stored_tokens(await scene.load.go_on())
        names.forget()
        server.hang_up()
        assert num_stored_tokens(await scene.until_left_alone()) == 0
        assert names.num_asked
        names.remember()
        await scene.until_used_again()
        assert num_stored_tokens(await scene.load.go_on())


@pytest.mark.parametrize("reason", FOREIGN)
async def test_pages_of_another_version_are_damaged_ones_and_make_room(
    loaded: LoadedModel, truth: Truth, server: FakeS3, reason: Foreign
) -> None:
    async with open_on(server) as other, s3_under_load(loaded, truth, server) as scene:
        before = scene.engine.outcomes()
        await put_foreign(other, page_names(loaded), reason, num_bytes=loaded.value_bytes)
        await scene.load.go_on()
        await scene.load.go_on()
        assert counted(before, scene.engine.outcomes())[f"corrupt:{reason}"] > 0
        assert scene.failures() == {}
        assert scene.engine.store().breaker == "closed"
