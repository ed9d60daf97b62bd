"""What every backend must do, as tests: subclass `BackendConformance` and run pytest.

    class TestMyStore(BackendConformance):
        async def make(self, folder: Path) -> StorageBackend:
            return await open_mystore({"path": str(folder)}, value_bytes=None)

`make` gives an open and empty store; its memory or quota must hold 32 MiB. The tests close it. Needs pytest and anyio's
plugin for it, which comes with anyio. For pytest to show what was compared when a test fails, a conftest.py of yours
says `pytest.register_assert_rewrite("pagefall_storage.testing")`.

`Faulty` and its faults (`faulty`) are for tests of what *uses* a store.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from pagefall_storage.faulty import (
    BitFlip,
    Fail,
    Fault,
    Faulty,
    Hang,
    Rule,
    ShortRead,
    Slow,
    SwapWith,
    Torn,
    Vanish,
)
from pagefall_storage.identity import identify
from pagefall_storage.protocol import (
    Corrupt,
    Failed,
    Hit,
    Key,
    Miss,
    PutItem,
    StorageBackend,
    Stored,
)

__all__ = [
    "BackendConformance",
    "BitFlip",
    "Fail",
    "Fault",
    "Faulty",
    "Hang",
    "Rule",
    "ShortRead",
    "Slow",
    "SwapWith",
    "Torn",
    "Vanish",
    "page_keys",
    "random_values",
]

_NAMESPACE: Final = "ab" * 32
_NOT_KEYS: Final = ("", "/", "a//b", "/a", "a/", "A", "a b", "a.b", "../a", "a\n", "ä", "a" * 121, "a\x00")


def page_keys(num_keys: int, *, namespace: str = _NAMESPACE) -> list[Key]:
    """Keys like those of pages, the same ones each time."""
    rng = random.Random(0)
    return [Key(f"{namespace}/{rng.randbytes(27).hex()}") for _ in range(num_keys)]


def random_values(num_values: int, num_bytes: int) -> list[bytes]:
    """Values that all differ, the same ones each time."""
    rng = random.Random(num_bytes)
    return [rng.randbytes(num_bytes) for _ in range(num_values)]


class BackendConformance:
    """See the module."""

    pytestmark = pytest.mark.anyio

    async def make(self, folder: Path) -> StorageBackend:
        """An open, empty store. `folder` is empty and the test's own."""
        raise NotImplementedError

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[StorageBackend]:
        store = await self.make(tmp_path)
        yield store
        await store.aclose()

    async def test_a_value_comes_back_as_it_was_put(self, store: StorageBackend) -> None:
        keys, values = page_keys(3), [b"\x00", *random_values(1, 4096), *random_values(1, 368_768)]
        assert await _put(store, keys, values) == [Stored()] * 3
        for key, value in zip(keys, values, strict=True):
            buffer = bytearray(len(value))
            assert await store.get([key], [memoryview(buffer)]) == [Hit()]
            assert buffer == value

    async def test_a_get_fills_its_buffers_and_nothing_beside_them(self, store: StorageBackend) -> None:
        keys, values = page_keys(4), random_values(4, 1000)
        await _put(store, keys, values)
        pool = bytearray(b"\xee" * 4 * 1010)
        await store.get(keys, [memoryview(pool)[i * 1010 : i * 1010 + 1000] for i in range(4)])
        assert pool == b"".join(value + b"\xee" * 10 for value in values)

    async def test_each_key_of_a_batch_has_its_own_outcome(self, store: StorageBackend) -> None:
        keys, values = page_keys(4), random_values(4, 512)
        await _put(store, [keys[0], keys[2]], [values[0], values[2]])
        buffers = [bytearray(512) for _ in keys]
        outcomes = await store.get(keys, [memoryview(buffer) for buffer in buffers])
        assert outcomes == [Hit(), Miss(), Hit(), Miss()]
        assert bytes(buffers[0] + buffers[2]) == values[0] + values[2]

    async def test_an_empty_batch_is_no_trouble(self, store: StorageBackend) -> None:
        assert await store.get([], []) == []
        assert await store.put([]) == []
        assert await store.contains([]) == 0
        assert await store.delete([]) == 0

    @pytest.mark.parametrize("num_bytes", [0, 1, 999, 1001, 5000])
    async def test_a_value_of_another_length_is_corrupt(self, store: StorageBackend, num_bytes: int) -> None:
        (key,) = page_keys(1)
        await _put(store, [key], [bytes(num_bytes)])
        (outcome,) = await store.get([key], [memoryview(bytearray(1000))])
        assert isinstance(outcome, Corrupt)

    async def test_contains_counts_leading_keys(self, store: StorageBackend) -> None:
        keys, values = page_keys(5), random_values(5, 100)
        await _put(store, [keys[0], keys[1], keys[3]], [values[0], values[1], values[3]])
        assert await store.contains(keys) == 2
        assert await store.contains(keys[2:]) == 0
        assert await store.contains(keys[3:4]) == 1

    async def test_a_value_deleted_after_contains_is_a_miss(self, store: StorageBackend) -> None:
        keys = page_keys(2)
        await _put(store, keys, random_values(2, 100))
        assert await store.contains(keys) == 2
        assert await store.delete(keys[:1]) == 1
        outcomes = await store.get(keys, [memoryview(bytearray(100)) for _ in keys])
        assert outcomes == [Miss(), Hit()]
        assert await store.contains(keys) == 0

    async def test_put_replaces_a_value_of_another_length(self, store: StorageBackend) -> None:
        (key,) = page_keys(1)
        for num_bytes in (100, 3000, 7):
            (value,) = random_values(1, num_bytes)
            assert await _put(store, [key], [value]) == [Stored()]
            assert await _read(store, key, num_bytes) == value
        assert (await store.usage()).num_bytes == 7

    async def test_putting_a_value_again_changes_nothing(self, store: StorageBackend) -> None:
        (key,), (value,) = page_keys(1), random_values(1, 1000)
        for _ in range(2):
            assert await _put(store, [key], [value]) == [Stored()]
        assert await _read(store, key, 1000) == value
        assert (await store.usage()).num_values == 1

    async def test_a_deleted_value_can_be_put_again(self, store: StorageBackend) -> None:
        (key,), (damaged, value) = page_keys(1), random_values(2, 1000)
        await _put(store, [key], [damaged])
        assert await store.delete([key]) == 1
        assert await store.delete([key]) == 0
        await _put(store, [key], [value])
        assert await _read(store, key, 1000) == value

    async def test_keys_that_share_parts_are_different_values(self, store: StorageBackend) -> None:
        names = ("a", "aa", "a/a", "aa/a", "a/aa", "a/aaa", "a/aa/aaa", "a-a/a", "a/a/a", "-", "0/0", "a" * 120)
        keys = [Key(name) for name in names]
        values = random_values(len(keys), 64)
        assert await _put(store, keys, values) == [Stored()] * len(keys)
        assert [await _read(store, key, 64) for key in keys] == values
        assert {value.key async for value in store.scan()} == set(keys)

    async def test_scan_and_usage_tell_what_is_there(self, store: StorageBackend) -> None:
        keys = page_keys(3) + page_keys(2, namespace="cd" * 32)
        values = [bytes(100 + i) for i in range(5)]
        await _put(store, keys, values)
        await store.delete(keys[:1])
        found = {value.key: value.num_bytes async for value in store.scan()}
        assert found == {key: len(value) for key, value in zip(keys[1:], values[1:], strict=True)}
        usage = await store.usage()
        assert (usage.num_values, usage.num_bytes) == (4, sum(map(len, values[1:])))

    async def test_an_identity_stays_the_same_and_is_no_value(self, store: StorageBackend) -> None:
        identity = await identify(store)
        keys, values = page_keys(1), random_values(1, 100)
        await _put(store, keys, values)
        assert await identify(store) == identity
        assert [value.key async for value in store.scan()] == keys
        assert (await store.usage()).num_values == 1

    async def test_a_large_batch_goes_in_and_comes_out(self, store: StorageBackend) -> None:
        keys, values = page_keys(400), random_values(400, 2048)
        assert await _put(store, keys, values) == [Stored()] * 400
        assert await store.contains(keys) == 400
        buffers = [bytearray(2048) for _ in keys]
        assert await store.get(keys, [memoryview(buffer) for buffer in buffers]) == [Hit()] * 400
        assert buffers == values
        assert await store.delete(keys) == 400

    async def test_many_readers_at_once_all_read_the_same(self, store: StorageBackend) -> None:
        keys, values = page_keys(8), random_values(8, 50_000)
        await _put(store, keys, values)

        async def read() -> None:
            buffers = [bytearray(50_000) for _ in keys]
            assert await store.get(keys, [memoryview(buffer) for buffer in buffers]) == [Hit()] * 8
            assert buffers == values

        await asyncio.gather(*(read() for _ in range(8)))

    async def test_writers_of_one_key_never_leave_a_torn_value(self, store: StorageBackend) -> None:
        """Each writes its own byte over and over: what is read must be one writer's, whole."""
        (key,), num_bytes = page_keys(1), 100_000

        async def write(byte: int) -> None:
            for _ in range(10):
                await _put(store, [key], [bytes([byte]) * num_bytes])
                await store.delete([key])

        async def read() -> None:
            buffer = bytearray(num_bytes)
            for _ in range(40):
                (outcome,) = await store.get([key], [memoryview(buffer)])
                assert isinstance(outcome, Hit | Miss), outcome
                assert isinstance(outcome, Miss) or len(set(buffer)) == 1

        await asyncio.gather(*(write(byte) for byte in (1, 2, 3)), read(), read())

    async def test_a_cancelled_get_writes_no_more_to_its_buffers(self, store: StorageBackend) -> None:
        keys, num_bytes = page_keys(64), 200_000
        await _put(store, keys, [b"\xff" * num_bytes for _ in keys])
        pool = bytearray(len(keys) * num_bytes)
        views = [memoryview(pool)[i * num_bytes : (i + 1) * num_bytes] for i in range(len(keys))]
        get = asyncio.create_task(store.get(keys, views))
        await asyncio.sleep(0.001)
        get.cancel()
        with suppress(asyncio.CancelledError):
            await get
        pool[:] = bytes(len(pool))
        await asyncio.sleep(0.05)
        assert not any(pool)
        assert await store.get(keys, views) == [Hit()] * len(keys)

    async def test_a_cancelled_put_leaves_whole_values_or_none(self, store: StorageBackend) -> None:
        keys, num_bytes = page_keys(64), 100_000
        values = random_values(len(keys), num_bytes)
        put = asyncio.create_task(_put(store, keys, values))
        await asyncio.sleep(0.002)
        put.cancel()
        with suppress(asyncio.CancelledError):
            await put
        num_hits = await _num_whole(store, keys, values)
        # What was on its way to a server may still arrive there, whole, between two looks.
        async with asyncio.timeout(10):
            while num_hits != (await store.usage()).num_values:
                num_hits = await _num_whole(store, keys, values)

    @pytest.mark.parametrize("name", _NOT_KEYS)
    async def test_what_is_not_a_key_is_refused_everywhere(self, store: StorageBackend, name: str) -> None:
        key = Key(name)
        with pytest.raises(ValueError, match="key"):
            await store.get([key], [memoryview(bytearray(1))])
        with pytest.raises(ValueError, match="key"):
            await store.put([PutItem(key, memoryview(b"x"))])
        with pytest.raises(ValueError, match="key"):
            await store.contains([key])
        with pytest.raises(ValueError, match="key"):
            await store.delete([key])

    async def test_a_get_with_too_few_buffers_is_refused(self, store: StorageBackend) -> None:
        with pytest.raises(ValueError):  # noqa: PT011 - its wording is the backend's
            await store.get(page_keys(2), [memoryview(bytearray(1))])

    async def test_the_description_is_one_line(self, store: StorageBackend) -> None:
        assert store.description
        assert "\n" not in store.description

    async def test_closing_twice_is_no_trouble(self, store: StorageBackend) -> None:
        await _put(store, page_keys(1), random_values(1, 10))
        await store.aclose()
        await store.aclose()

    async def test_closing_ends_what_is_under_way(self, store: StorageBackend) -> None:
        keys, num_bytes = page_keys(64), 200_000
        await _put(store, keys, [bytes(num_bytes) for _ in keys])
        buffers = [memoryview(bytearray(num_bytes)) for _ in keys]
        reading = asyncio.create_task(store.get(keys, buffers))
        await asyncio.sleep(0)
        await store.aclose()
        outcomes = await reading
        assert all(isinstance(outcome, Hit | Miss | Failed) for outcome in outcomes)


async def _put(store: StorageBackend, keys: Sequence[Key], values: Sequence[bytes]) -> list[object]:
    return [*await store.put([PutItem(key, memoryview(value)) for key, value in zip(keys, values, strict=True)])]


async def _num_whole(store: StorageBackend, keys: Sequence[Key], values: Sequence[bytes]) -> int:
    """How many of the values are there, each of which is whole; the others are not there at all."""
    buffers = [bytearray(len(value)) for value in values]
    outcomes = await store.get(keys, [memoryview(buffer) for buffer in buffers])
    num_hits = 0
    for outcome, buffer, value in zip(outcomes, buffers, values, strict=True):
        assert isinstance(outcome, Hit | Miss), outcome
        assert isinstance(outcome, Miss) or buffer == value
        num_hits += isinstance(outcome, Hit)
    return num_hits


async def _read(store: StorageBackend, key: Key, num_bytes: int) -> bytes:
    buffer = bytearray(num_bytes)
    (outcome,) = await store.get([key], [memoryview(buffer)])
    assert outcome == Hit()
    return bytes(buffer)
