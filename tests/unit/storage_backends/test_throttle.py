"""A link of a fixed bandwidth and latency in front of a backend, in fake time."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.storage_backends.fake_time import FakeTime

from pagefall_storage.memory import MemoryBackend
from pagefall_storage.protocol import Hit, Key, Miss, PutItem, Stored
from pagefall_storage.testing import page_keys
from pagefall_storage.throttle import ThrottleConfig, Throttled

pytestmark = pytest.mark.anyio

KEYS = page_keys(4)
NUM_BYTES = 1000


async def throttled(time: FakeTime, config: ThrottleConfig, inner: MemoryBackend | None = None) -> Throttled:
    """A store that has values of 1000 bytes under the first three of `KEYS`."""
    inner = inner or MemoryBackend()
    await inner.put([PutItem(key, memoryview(bytes(NUM_BYTES))) for key in KEYS[:3]])
    return Throttled(inner, config, clock=time.clock, sleep=time.sleep)


async def get(store: Throttled, keys: list[Key]) -> list[object]:
    return [*await store.get(keys, [memoryview(bytearray(NUM_BYTES)) for _ in keys])]


async def test_a_get_takes_the_latency_and_the_time_of_its_hits() -> None:
    time = FakeTime()
    store = await throttled(time, ThrottleConfig(bytes_per_second=1000, latency_seconds=0.5))
    assert await get(store, KEYS) == [Hit(), Hit(), Hit(), Miss()]
    assert time.now == pytest.approx(0.5 + 3)


async def test_a_put_takes_the_latency_and_the_time_of_its_values_before_it_is_visible() -> None:
    time = FakeTime()
    inner = MemoryBackend()
    store = await throttled(time, ThrottleConfig(bytes_per_second=1000, latency_seconds=0.5), inner)
    put = asyncio.create_task(store.put([PutItem(KEYS[3], memoryview(bytes(2000)))]))
    await time.sleep(2.4)
    assert not put.done()
    assert (await inner.usage()).num_values == 3
    assert await put == [Stored()]
    assert time.now == pytest.approx(2.5)


async def test_operations_at_once_share_one_link() -> None:
    time = FakeTime()
    store = await throttled(time, ThrottleConfig(bytes_per_second=1000))
    await asyncio.gather(get(store, KEYS[:2]), get(store, KEYS[:1]), get(store, KEYS[:2]))
    assert time.now == pytest.approx(5)


async def test_a_short_get_need_not_wait_for_all_of_a_long_one() -> None:
    time = FakeTime()
    store = await throttled(time, ThrottleConfig(bytes_per_second=1000))
    long = asyncio.create_task(get(store, KEYS[:3]))
    await asyncio.sleep(0)
    await get(store, KEYS[:1])
    assert time.now == pytest.approx(2)
    await long
    assert time.now == pytest.approx(4)


async def test_an_idle_link_saves_nothing_up() -> None:
    time = FakeTime()
    store = await throttled(time, ThrottleConfig(bytes_per_second=1000))
    await time.sleep(100)
    await get(store, KEYS[:3])
    assert time.now == pytest.approx(103)


async def test_late_wake_ups_do_not_add_up() -> None:
    time = FakeTime()

    async def oversleep(seconds: float) -> None:
        await time.sleep(seconds + 0.25)

    inner = MemoryBackend()
    await inner.put([PutItem(key, memoryview(bytes(NUM_BYTES))) for key in KEYS])
    store = Throttled(inner, ThrottleConfig(bytes_per_second=1000), clock=time.clock, sleep=oversleep)
    await get(store, KEYS)
    assert time.now == pytest.approx(4.25)


async def test_a_cancelled_get_leaves_the_link_to_others() -> None:
    time = FakeTime()
    store = await throttled(time, ThrottleConfig(bytes_per_second=1000))
    cancelled = asyncio.create_task(get(store, KEYS[:3]))
    await time.sleep(0.5)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    await get(store, KEYS[:1])
    assert time.now == pytest.approx(1.5)


async def test_a_link_without_a_bandwidth_only_has_latency() -> None:
    time = FakeTime()
    store = await throttled(time, ThrottleConfig(latency_seconds=0.2))
    await get(store, KEYS)
    await store.contains(KEYS)
    await store.delete(KEYS)
    await store.usage()
    assert [value async for value in store.scan()] == []
    assert time.now == pytest.approx(1.0)
