"""The wrapper that fails as it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.unit.storage_backends.fake_time import FakeTime

from pagefall_storage.errors import StorageError
from pagefall_storage.memory import MemoryBackend
from pagefall_storage.protocol import Corrupt, Failed, GetOutcome, Hit, Key, Miss, PutItem, Stored
from pagefall_storage.testing import (
    BitFlip,
    Fail,
    Faulty,
    Hang,
    ShortRead,
    Slow,
    SwapWith,
    Torn,
    Vanish,
    page_keys,
    random_values,
)

pytestmark = pytest.mark.anyio

NUM_BYTES = 100
A, B, C = page_keys(3)
VALUES = dict(zip((A, B, C), random_values(3, NUM_BYTES), strict=True))


async def fill(store: Faulty) -> None:
    await store.inner.put([PutItem(key, memoryview(value)) for key, value in VALUES.items()])


@pytest.fixture
async def store() -> AsyncIterator[Faulty]:
    store = Faulty(MemoryBackend())
    await fill(store)
    yield store
    await store.aclose()


async def read(store: Faulty, *keys: Key) -> list[tuple[GetOutcome, bytes]]:
    buffers = [bytearray(NUM_BYTES) for _ in keys]
    outcomes = await store.get(keys, [memoryview(buffer) for buffer in buffers])
    return list(zip(outcomes, map(bytes, buffers), strict=True))


async def test_a_bit_flip_is_one_wrong_bit_of_a_hit_for_that_key_alone(store: Faulty) -> None:
    rule = store.inject(BitFlip(), keys={B})
    (a, b, c) = await read(store, A, B, C)
    assert (a, c) == ((Hit(), VALUES[A]), (Hit(), VALUES[C]))
    assert b[0] == Hit()
    assert (int.from_bytes(b[1]) ^ int.from_bytes(VALUES[B])).bit_count() == 1
    assert rule.num_strikes == 1


async def test_a_certain_bit_can_be_flipped(store: Faulty) -> None:
    store.inject(BitFlip(bit=9))
    ((_, content),) = await read(store, A)
    assert content == VALUES[A][:1] + bytes([VALUES[A][1] ^ 2]) + VALUES[A][2:]


async def test_half_a_value_is_noticed_or_not(store: Faulty) -> None:
    half = NUM_BYTES // 2
    store.inject(ShortRead(), keys={A})
    store.inject(Torn(), keys={B})
    (a, b) = await read(store, A, B)
    assert a[0] == Corrupt("short")
    assert b == (Hit(), VALUES[B][:half] + bytes(half))


async def test_a_value_can_be_anothers(store: Faulty) -> None:
    store.inject(SwapWith(B), keys={A})
    assert await read(store, A, B) == [(Hit(), VALUES[B])] * 2


async def test_a_value_can_vanish_after_contains(store: Faulty) -> None:
    store.inject(Vanish(), keys={A})
    assert await store.contains([A, B]) == 2
    assert [outcome for outcome, _ in await read(store, A, B)] == [Miss(), Hit()]


async def test_a_value_that_is_not_there_cannot_be_damaged(store: Faulty) -> None:
    await store.delete([A])
    for fault in (BitFlip(), ShortRead(), Torn()):
        store.inject(fault, times=1)
        assert await read(store, A) == [(Miss(), bytes(NUM_BYTES))]


async def test_an_outage_fails_everything_until_it_heals(store: Faulty) -> None:
    store.inject(Fail("timeout", "no answer"))
    failed = Failed("timeout", "no answer")
    assert [outcome for outcome, _ in await read(store, A, B)] == [failed] * 2
    assert await store.put([PutItem(A, memoryview(b"x"))]) == [failed]
    for operation in (store.contains([A]), store.delete([A]), store.usage()):
        with pytest.raises(StorageError, match="no answer"):
            await operation
    with pytest.raises(StorageError, match="no answer"):
        _ = [value async for value in store.scan()]
    store.heal()
    assert await read(store, A) == [(Hit(), VALUES[A])]
    assert await store.contains([A]) == 1


async def test_a_share_of_writes_fails_the_same_way_for_the_same_seed() -> None:
    keys = page_keys(400)

    async def failures(seed: int) -> list[bool]:
        store = Faulty(MemoryBackend(), seed=seed)
        store.inject(Fail("full"), on={"put"}, rate=0.05)
        outcomes = await store.put([PutItem(key, memoryview(b"x")) for key in keys])
        are_stored = [outcome == Stored() for outcome in outcomes]
        assert (await store.inner.usage()).num_values == sum(are_stored)
        return [not is_stored for is_stored in are_stored]

    first = await failures(1)
    assert 5 <= sum(first) <= 40
    assert first == await failures(1) != await failures(2)


async def test_a_rule_strikes_as_often_as_it_says(store: Faulty) -> None:
    store.inject(Fail(), on={"get"}, times=1)
    assert [outcome for outcome, _ in await read(store, A, B)] == [Failed("error", "injected"), Hit()]


async def test_the_rule_injected_first_strikes(store: Faulty) -> None:
    first = store.inject(Vanish())
    second = store.inject(Fail())
    await read(store, A)
    assert (first.num_strikes, second.num_strikes) == (1, 0)


async def test_a_call_that_hangs_answers_when_the_rule_is_removed(store: Faulty) -> None:
    rule = store.inject(Hang(), on={"get"})
    hanging = asyncio.create_task(read(store, A))
    await asyncio.sleep(0.01)
    assert not hanging.done()
    assert await store.contains([A]) == 1
    store.remove(rule)
    assert await hanging == [(Hit(), VALUES[A])]


async def test_a_call_that_hangs_can_be_cancelled(store: Faulty) -> None:
    store.inject(Hang())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read(store, A), 0.01)
    assert store.num_calls["get"] == 1


async def test_a_slow_call_takes_its_time() -> None:
    time = FakeTime()
    store = Faulty(MemoryBackend(), sleep=time.sleep)
    await fill(store)
    store.inject(Slow(3.5), keys={A})
    await read(store, B)
    assert time.now == 0
    assert await read(store, B, A) == [(Hit(), VALUES[B]), (Hit(), VALUES[A])]
    assert time.now == 3.5
