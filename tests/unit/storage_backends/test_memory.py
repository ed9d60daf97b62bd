"""The memory backend's quota."""

from __future__ import annotations

import pytest

from pagefall_storage.errors import StorageConfigError
from pagefall_storage.memory import MemoryBackend, open_memory
from pagefall_storage.protocol import Failed, PutItem, Stored
from pagefall_storage.testing import page_keys

pytestmark = pytest.mark.anyio

A, B, C, D = page_keys(4)


async def test_the_values_used_last_are_kept() -> None:
    store = MemoryBackend(max_bytes=300)
    await store.put([PutItem(key, memoryview(bytes(100))) for key in (A, B, C)])
    await store.get([A], [memoryview(bytearray(100))])
    await store.put([PutItem(D, memoryview(bytes(150)))])
    assert [value.key async for value in store.scan()] == [A, D]
    usage = await store.usage()
    assert (usage.num_bytes, usage.max_bytes, usage.num_evicted) == (250, 300, 2)


async def test_a_value_that_is_replaced_counts_once() -> None:
    store = MemoryBackend(max_bytes=300)
    await store.put([PutItem(A, memoryview(bytes(200))), PutItem(B, memoryview(bytes(100)))])
    assert await store.put([PutItem(A, memoryview(bytes(150)))]) == [Stored()]
    usage = await store.usage()
    assert (usage.num_values, usage.num_bytes, usage.num_evicted) == (2, 250, 0)


async def test_a_value_longer_than_the_quota_is_refused_and_evicts_nothing() -> None:
    store = MemoryBackend(max_bytes=300)
    await store.put([PutItem(A, memoryview(bytes(100)))])
    (outcome,) = await store.put([PutItem(B, memoryview(bytes(301)))])
    assert isinstance(outcome, Failed)
    assert outcome.kind == "full"
    assert (await store.usage()).num_values == 1


async def test_a_quota_too_small_for_one_value_is_refused_at_once() -> None:
    with pytest.raises(StorageConfigError, match="max_bytes: 99 is less than one value, 100 bytes"):
        await open_memory({"max_bytes": 99}, value_bytes=100)
