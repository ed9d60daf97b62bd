"""What becomes of an S3 store's operations when the server fails."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest
from tests.unit.storage_backends.fake_s3 import FakeS3, Refuse, Stall, TooMuch, Truncate, fake_s3
from tests.unit.storage_backends.s3_stores import KEYS, open_on
from tests.unit.storage_backends.stores import get, put, value_of

from pagefall_storage.errors import StorageError
from pagefall_storage.protocol import Corrupt, Failed, Hit, Miss, PutItem, Stored

pytestmark = pytest.mark.anyio

NUM_BYTES = 200_000


@pytest.fixture
def server() -> Iterator[FakeS3]:
    with fake_s3() as server:
        yield server


@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        (Refuse(503, "SlowDown"), "error", "SlowDown: as told"),
        (Refuse(500, "InternalError"), "error", "InternalError: as told"),
        (Refuse(403, "ExpiredToken"), "error", "ExpiredToken: as told"),
        (Refuse(403, "AccessDenied"), "error", "AccessDenied: as told"),
        (Refuse(400, "RequestTimeout"), "timeout", "RequestTimeout: as told"),
        (Refuse(507, "XMinioStorageFull"), "full", "XMinioStorageFull: as told"),
    ],
)
async def test_a_refusal_is_an_outcome_with_its_reason_until_it_ends(
    server: FakeS3, fault: Refuse, kind: str, reason: str
) -> None:
    async with open_on(server) as store:
        await put(store, KEYS[:1])
        server.inject(fault)
        for outcomes in (await get(store, KEYS[:2]), await put(store, KEYS[1:3])):
            for outcome in outcomes:
                assert isinstance(outcome, Failed)
                assert (outcome.kind, outcome.reason) == (kind, reason)
        with pytest.raises(StorageError, match=str(fault.status)):
            await store.contains(KEYS[:1])
        with pytest.raises(StorageError, match=reason):
            await store.usage()
        server.heal()
        assert await get(store, KEYS[:2]) == [Hit(), Miss()]


async def test_a_request_is_made_once(server: FakeS3) -> None:
    async with open_on(server) as store:
        server.inject(Refuse(500, "InternalError"))
        await get(store, KEYS[:1])
        assert server.num_requests["GET"] == 1


async def test_a_store_that_asks_for_fewer_requests_gets_fewer_and_more_again_once_it_can(server: FakeS3) -> None:
    async with open_on(server, num_threads=16) as store:
        await put(store, KEYS)
        server.capacity, server.pause_seconds = 3, 0.03
        num_failed = [sum(isinstance(outcome, Failed) for outcome in await get(store, KEYS)) for _ in range(4)]
        assert num_failed[0] > 0
        assert sum(num_failed[2:]) < len(KEYS)
        server.max_at_once = 0
        await get(store, KEYS)
        assert server.max_at_once < 8
        server.capacity, server.pause_seconds = None, 0
        for _ in range(8):
            assert await get(store, KEYS) == [Hit()] * len(KEYS)
        server.max_at_once, server.pause_seconds = 0, 0.1
        await get(store, KEYS)
        assert server.max_at_once > 8


@pytest.mark.parametrize("num_bytes", [0, 1, NUM_BYTES - 1])
async def test_a_truncated_body_is_the_connections_fault_not_the_values(server: FakeS3, num_bytes: int) -> None:
    async with open_on(server) as store:
        await put(store, KEYS[:1], NUM_BYTES)
        server.inject(Truncate(num_bytes))
        (outcome,) = await get(store, KEYS[:1], NUM_BYTES)
        assert isinstance(outcome, Failed), "a corrupt value is deleted, and this one is good"
        assert f"after {num_bytes} of {NUM_BYTES} bytes" in outcome.reason
        server.heal()
        assert await get(store, KEYS[:1], NUM_BYTES) == [Hit()]


async def test_a_body_longer_than_its_length_spoils_neither_its_neighbours_nor_the_next_answer(server: FakeS3) -> None:
    async with open_on(server, num_threads=1) as store:
        await put(store, KEYS[:2], NUM_BYTES)
        server.inject(TooMuch(500))
        pool = bytearray(NUM_BYTES + 100)
        for _ in range(3):
            assert await store.get(KEYS[:1], [memoryview(pool)[:NUM_BYTES]]) == [Hit()]
            assert bytes(pool) == value_of(KEYS[0], NUM_BYTES) + bytes(100)
        server.heal()
        assert await get(store, KEYS[:2], NUM_BYTES) == [Hit(), Hit()]


@pytest.mark.parametrize(("num_stored", "reason"), [(50, "short"), (10_000_000, "long")])
async def test_an_object_of_another_length_is_told_by_its_length_without_reading_it(
    server: FakeS3, num_stored: int, reason: str
) -> None:
    async with open_on(server) as store:
        server.objects["space/00"] = b"x" * num_stored
        buffer = bytearray(NUM_BYTES)
        assert await store.get(KEYS[:1], [memoryview(buffer)]) == [Corrupt(reason)]
        assert not any(buffer)


@pytest.mark.parametrize("num_bytes", [None, 0, 1000])
async def test_a_stall_ends_in_a_timeout(server: FakeS3, num_bytes: int | None) -> None:
    async with open_on(server, read_timeout_seconds=0.1) as store:
        await put(store, KEYS[:1], NUM_BYTES)
        server.inject(Stall(num_bytes), methods="GET")
        (outcome,) = await get(store, KEYS[:1], NUM_BYTES)
        assert isinstance(outcome, Failed)
        assert outcome.kind == "timeout"


@pytest.mark.parametrize("num_bytes", [None, 0, 70_000])
async def test_a_get_cancelled_in_a_stall_returns_at_once_and_never_writes_again(
    server: FakeS3, num_bytes: int | None
) -> None:
    async with open_on(server) as store:
        await put(store, KEYS[:1], NUM_BYTES)
        server.inject(Stall(num_bytes), methods="GET")
        buffer = bytearray(NUM_BYTES)
        reading = asyncio.create_task(store.get(KEYS[:1], [memoryview(buffer)]))
        await asyncio.to_thread(server.stalled.acquire)
        await asyncio.sleep(0.05)
        while num_bytes and not any(buffer):
            await asyncio.sleep(0.01)
        started_at = time.monotonic()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert time.monotonic() - started_at < 1
        buffer[:] = bytes(NUM_BYTES)
        server.heal()
        await asyncio.sleep(0.05)
        assert not any(buffer)
        assert await get(store, KEYS[:1], NUM_BYTES) == [Hit()]


async def test_requests_that_stall_leave_the_other_threads_to_the_others(server: FakeS3) -> None:
    async with open_on(server) as store:
        await put(store, KEYS[:1])
        server.inject(Stall(), methods="HEAD")
        asking = asyncio.create_task(store.contains(KEYS[:3]))
        await asyncio.to_thread(server.stalled.acquire)
        async with asyncio.timeout(2):
            assert await get(store, KEYS[:1]) == [Hit()]
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_put_cancelled_in_a_stall_returns_soon_and_stores_what_was_there(server: FakeS3) -> None:
    async with open_on(server) as store:
        server.inject(Stall(), methods="PUT")
        value = bytearray(value_of(KEYS[0], NUM_BYTES))
        writing = asyncio.create_task(store.put([PutItem(KEYS[0], memoryview(value))]))
        await asyncio.to_thread(server.stalled.acquire)
        writing.cancel()
        started_at = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert time.monotonic() - started_at < 3
        value[:] = bytes(NUM_BYTES)
        server.heal()
        await asyncio.sleep(0.05)
        assert await get(store, KEYS[:1], NUM_BYTES) == [Hit()]


async def test_closing_in_a_stall_takes_no_longer_than_the_stall_may(server: FakeS3) -> None:
    async with open_on(server, read_timeout_seconds=0.3) as store:
        server.inject(Stall())
        reading = asyncio.create_task(get(store, KEYS))
        await asyncio.to_thread(server.stalled.acquire)
        async with asyncio.timeout(2):
            await store.aclose()
        assert all(isinstance(outcome, Failed) for outcome in await reading)


async def test_a_bucket_that_was_deleted_is_named_and_comes_back(server: FakeS3) -> None:
    async with open_on(server) as store:
        await put(store, KEYS[:1])
        server.is_bucket_there = False
        assert await store.contains(KEYS[:1]) == 0  # S3 does not say more to this question
        for outcome in (*await get(store, KEYS[:1]), *await put(store, KEYS[:1])):
            assert outcome == Failed("error", "NoSuchBucket: as told")
        with pytest.raises(StorageError, match="NoSuchBucket: pages"):
            await store.contains(KEYS[:1])
        with pytest.raises(StorageError, match="NoSuchBucket"):
            await store.usage()
        server.is_bucket_there = True
        assert await store.contains(KEYS[1:2]) == 0
        assert await get(store, KEYS[:1]) == [Hit()]


async def test_a_store_whose_name_cannot_be_resolved_opens_and_fails_in_one_line(server: FakeS3) -> None:
    async with open_on(server, endpoint_url="http://no-such-host.invalid") as store:
        (outcome,) = await get(store, KEYS[:1])
        assert isinstance(outcome, Failed)
        assert "no-such-host.invalid" in outcome.reason
        assert "\n" not in outcome.reason
        with pytest.raises(StorageError, match=r"no-such-host\.invalid"):
            await store.contains(KEYS[:1])


async def test_a_store_that_is_down_opens_and_fails(server: FakeS3) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with open_on(server, endpoint_url=f"http://127.0.0.1:{port}") as store:
        (read,), (written,) = await get(store, KEYS[:1]), await put(store, KEYS[:1])
        for outcome in (read, written):
            assert isinstance(outcome, Failed)
            assert "refused" in outcome.reason


async def test_a_server_without_conditional_writes_is_written_to_without(server: FakeS3) -> None:
    server.knows_conditions = False
    async with open_on(server, num_threads=1) as store:
        assert await put(store, KEYS[:4]) == [Stored()] * 4
        assert server.num_requests == {"PUT": 5}  # it is tried once
        assert await get(store, KEYS[:4]) == [Hit()] * 4
