"""One Redis or one bucket, several servers: what one has computed the others have, and no page is ever torn."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import pytest
from tests.engine_rig import greedy_by_transformers
from tests.faults.conftest import Truth
from tests.faults.rig import NUM_ANSWER_TOKENS, LoadedModel, engine_over, prompt_of
from tests.redis_servers import RedisServer, running
from tests.s3_servers import S3Server, seaweedfs
from tests.unit.storage_backends.redis_stores import open_store
from tests.unit.storage_backends.s3_stores import open_bucket

from pagefall.actors.runner import DeviceThread
from pagefall_storage import page_format
from pagefall_storage.page_format import HEADER_BYTES
from pagefall_storage.protocol import Hit, Key, Miss, PutItem, StorageBackend, Stored

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

PROMPT = prompt_of(5, 1000)
PAGE_BYTES = 100_000

OpenShared = Callable[[], AbstractAsyncContextManager[StorageBackend]]
"""Opens the same store each time, with connections of its own."""


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def shared_redis(redis_server: RedisServer) -> OpenShared:
    redis_server.admin.flushall()
    return lambda: open_store(redis_server)


@pytest.fixture
def shared_bucket(s3_server: S3Server) -> OpenShared:
    bucket = s3_server.new_bucket()
    return lambda: open_bucket(s3_server, bucket, num_threads=4)


@pytest.fixture(params=["redis", "bucket"])
def open_shared(request: pytest.FixtureRequest) -> OpenShared:
    opener: OpenShared = request.getfixturevalue(f"shared_{request.param}")
    return opener


async def compute(loaded: LoadedModel, open_shared: OpenShared, truth: Truth) -> None:
    """A server answers, leaves its pages in the store, and ends."""
    async with open_shared() as store, engine_over(loaded, store) as engine:
        cold = await engine.ask(PROMPT)
        assert (cold.token_ids, cold.by_tier) == (truth(PROMPT), {})
        await engine.settle()
        assert engine.num_stored() == loaded.num_cacheable_pages(PROMPT)


async def test_a_fresh_server_has_every_page_of_a_prompt_that_only_another_has_seen(
    loaded: LoadedModel, checkpoint: Path, thread: DeviceThread, truth: Truth, open_shared: OpenShared
) -> None:
    await compute(loaded, open_shared, truth)
    fresh = LoadedModel(checkpoint, thread)
    async with open_shared() as store, engine_over(fresh, store) as engine:
        hit = await engine.ask(PROMPT)
        assert hit.token_ids == truth(PROMPT)
        assert hit.by_tier == {"storage": loaded.num_cacheable_pages(PROMPT) * loaded.page_size}


async def test_a_server_with_other_weights_has_none_of_them(
    loaded: LoadedModel, other_checkpoint: Path, thread: DeviceThread, truth: Truth, open_shared: OpenShared
) -> None:
    await compute(loaded, open_shared, truth)
    changed = LoadedModel(other_checkpoint, thread)
    (its_truth,) = greedy_by_transformers(other_checkpoint, [PROMPT], NUM_ANSWER_TOKENS)
    async with open_shared() as store, engine_over(changed, store) as engine:
        cold = await engine.ask(PROMPT)
        assert (cold.token_ids, cold.by_tier) == (its_truth, {})
        assert engine.stats().num_lookups == 1
        assert engine.outcomes() == {}


async def test_two_servers_that_answer_at_the_same_time_share_what_either_has_computed(
    loaded: LoadedModel, checkpoint: Path, thread: DeviceThread, truth: Truth, open_shared: OpenShared
) -> None:
    prompts = [prompt_of(seed, 200) for seed in range(6)]
    twin = LoadedModel(checkpoint, thread)
    async with (
        open_shared() as store,
        open_shared() as its_store,
        engine_over(loaded, store) as engine,
        engine_over(twin, its_store) as other,
    ):
        for _ in range(2):
            answers = await asyncio.gather(*map(engine.ask, prompts), *map(other.ask, prompts))
            assert [answer.token_ids for answer in answers] == 2 * [truth(prompt) for prompt in prompts]
            await engine.leave_only_in("storage")
            await other.leave_only_in("storage")
        assert engine.outcomes().keys() == {"hit"}
        assert other.outcomes().keys() == {"hit"}


async def test_a_page_that_ten_servers_write_and_delete_at_once_is_never_torn(open_shared: OpenShared) -> None:
    key, namespace = hashlib.sha256(b"key").digest(), hashlib.sha256(b"namespace").digest()
    name = Key(f"{namespace.hex()[:16]}/{key.hex()}")
    is_over = asyncio.Event()

    async def write(store: StorageBackend, byte: int) -> None:
        """Its own content, which no server would: so that what is read can be told to be one writer's."""
        page = memoryview(bytearray(HEADER_BYTES) + bytes([byte]) * PAGE_BYTES)
        page_format.seal(page, key=key, namespace=namespace)
        for _ in range(5):
            assert await store.put([PutItem(name, page)]) == [Stored()]
            await store.delete([name])
        assert await store.put([PutItem(name, page)]) == [Stored()]

    async def read(store: StorageBackend) -> int:
        """How many times it was there."""
        page, num_hits = memoryview(bytearray(HEADER_BYTES + PAGE_BYTES)), 0
        while not is_over.is_set():
            (outcome,) = await store.get([name], [page])
            assert isinstance(outcome, Hit | Miss), outcome
            if isinstance(outcome, Hit):
                assert page_format.verify(page, key=key, namespace=namespace) == Hit()
                num_hits += 1
        return num_hits

    async with AsyncExitStack() as stack:
        writers = [await stack.enter_async_context(open_shared()) for _ in range(10)]
        reader = await stack.enter_async_context(open_shared())
        reading = asyncio.create_task(read(reader))
        await asyncio.gather(*(write(store, byte) for byte, store in enumerate(writers)))
        await asyncio.sleep(0.1)
        is_over.set()
        assert await reading > 0
