from __future__ import annotations

import asyncio

import pytest
from tests.fake_backend import FakeBackend

from pagefall.tiers.late_store import LateStore
from pagefall_storage.errors import StorageConfigError, StorageError
from pagefall_storage.protocol import Failed, Hit, Key, PutItem, StorageBackend, Stored

pytestmark = pytest.mark.anyio

KEY = Key("a/b")


class Opener:
    """Opens `backend` unless there is an `error`, while its gate is open."""

    def __init__(self) -> None:
        self.backend = FakeBackend()
        self.error: Exception | None = StorageError("not mounted")
        self.gate = asyncio.Event()
        self.gate.set()
        self.num_calls = 0

    async def __call__(self) -> StorageBackend:
        self.num_calls += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.backend


@pytest.fixture
def opener() -> Opener:
    return Opener()


@pytest.fixture
def store(opener: Opener) -> LateStore:
    return LateStore("slow", opener)


async def test_until_it_can_be_opened_every_operation_fails_and_tries(store: LateStore, opener: Opener) -> None:
    assert await store.get([KEY], [memoryview(bytearray(1))]) == [Failed("error", "not mounted")]
    assert await store.put([PutItem(KEY, memoryview(b"x"))]) == [Failed("error", "not mounted")]
    for operation in (store.contains([KEY]), store.delete([KEY]), store.usage()):
        with pytest.raises(StorageError, match="not mounted"):
            await operation
    with pytest.raises(StorageError, match="not mounted"):
        _ = [value async for value in store.scan()]
    assert opener.num_calls == 6
    assert store.description == 'storage backend "slow", not open yet'
    await store.aclose()


async def test_from_then_on_it_is_the_store(store: LateStore, opener: Opener) -> None:
    await store.get([KEY], [memoryview(bytearray(1))])
    opener.error = None
    assert await store.put([PutItem(KEY, memoryview(b"x"))]) == [Stored()]
    assert await store.contains([KEY]) == 1
    into = bytearray(1)
    assert await store.get([KEY], [memoryview(into)]) == [Hit()]
    assert into == b"x"
    assert [value.key async for value in store.scan()] == [KEY]
    assert (await store.usage()).num_values == 1
    assert await store.delete([KEY]) == 1
    assert store.description == opener.backend.description
    assert opener.num_calls == 2
    await store.aclose()
    assert opener.backend.is_closed


async def test_opening_goes_on_when_nobody_waits_for_it(store: LateStore, opener: Opener) -> None:
    opener.error = None
    opener.gate.clear()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(store.contains([KEY]), 0.01)
    opener.gate.set()
    assert await store.contains([KEY]) == 0
    assert opener.num_calls == 1


async def test_settings_that_turn_out_wrong_are_a_store_that_fails(store: LateStore, opener: Opener) -> None:
    opener.error = StorageConfigError("not a folder")
    with pytest.raises(StorageError, match="not a folder"):
        await store.contains([KEY])


async def test_one_that_is_closed_before_it_is_open_leaves_nothing_open(store: LateStore, opener: Opener) -> None:
    opener.error = None
    opener.gate.clear()
    asking = asyncio.create_task(store.contains([KEY]))
    await asyncio.sleep(0)
    await store.aclose()
    opener.gate.set()
    with pytest.raises(StorageError, match="closed"):
        await asking
    assert opener.backend.is_closed
    with pytest.raises(StorageError, match="closed"):
        await store.contains([KEY])
