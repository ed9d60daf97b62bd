from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest
from tests.fake_backend import FakeBackend, Operation

from pagefall.messages import FetchOutcome, PageIds
from pagefall.tiers.breaker import CircuitBreaker
from pagefall.tiers.host_memory import HostMemory
from pagefall.tiers.manifest import manifest_key
from pagefall.tiers.storage_client import StorageClient
from pagefall_storage.errors import StorageError
from pagefall_storage.page_format import HEADER_BYTES
from pagefall_storage.protocol import Failed, Key

pytestmark = pytest.mark.anyio

NAMESPACE, OTHER_NAMESPACE = b"n" * 32, b"o" * 32
NUM_PAGES = 100
KEYS = tuple(hashlib.sha256(b"%d" % page).digest() for page in range(NUM_PAGES))
NAMES = tuple(Key(f"{NAMESPACE.hex()[:16]}/{key.hex()}") for key in KEYS)
DEADLINE_SECONDS = 0.05
OPEN_SECONDS = 10.0

Rig = tuple[FakeBackend, HostMemory, StorageClient]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Reports:
    """What a fetch reported."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, ...]] = []
        self.outcomes: dict[int, FetchOutcome] = {}
        self.when_told: Callable[[], object] = lambda: None

    async def __call__(self, indices: tuple[int, ...], outcomes: tuple[FetchOutcome, ...]) -> None:
        assert not self.outcomes.keys() & set(indices), "a page is reported at most once"
        self.batches.append(indices)
        self.outcomes.update(zip(indices, outcomes, strict=True))
        self.when_told()

    def ordered(self) -> list[FetchOutcome]:
        return [self.outcomes[index] for index in sorted(self.outcomes)]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_client(backend: FakeBackend, memory: HostMemory, clock: Clock, namespace: bytes = NAMESPACE) -> StorageClient:
    return StorageClient(
        backend,
        namespace=namespace,
        memory=memory,
        deadline_seconds=DEADLINE_SECONDS,
        breaker=CircuitBreaker(open_seconds=OPEN_SECONDS, max_open_seconds=OPEN_SECONDS, random=lambda: 1.0),
        clock=clock,
    )


@pytest.fixture
async def rig(clock: Clock) -> AsyncIterator[Rig]:
    """A store without anything in it, and host pages each full of its own number."""
    backend, memory = FakeBackend(), HostMemory(1000, NUM_PAGES, pinned=False)
    memory.payloads[:] = np.arange(NUM_PAGES)[:, None]
    client = make_client(backend, memory, clock)
    yield backend, memory, client
    await client.aclose()


def ids(num_pages: int) -> PageIds:
    return np.arange(num_pages, dtype=np.int32)


async def filled(rig: Rig, num_pages: int) -> None:
    """The first pages are in the store, and no more in host memory."""
    backend, memory, client = rig
    assert all(await client.backup(KEYS[:num_pages], ids(num_pages)))
    for page in range(num_pages):
        memory.value(page)[:] = bytes(memory.value_bytes)
    backend.calls.clear()


async def fetched(client: StorageClient, num_pages: int, reports: Reports | None = None) -> list[FetchOutcome]:
    reports = reports or Reports()
    await client.fetch(KEYS[:num_pages], ids(num_pages), reports, asyncio.Event())
    return reports.ordered()


async def settle() -> None:
    """Lets every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_was_written_comes_back_as_it_was(rig: Rig) -> None:
    await filled(rig, 20)
    _, memory, client = rig
    assert await client.lookup(KEYS[:30]) == (20, "answered")
    assert await fetched(client, 21) == ["hit"] * 20 + ["miss"]
    assert (memory.payloads == np.arange(NUM_PAGES)[:, None]).all()
    stats = client.stats()
    assert stats.num_storage_outcomes == {"hit": 20, "miss": 1}
    for direction in ("host_to_storage", "storage_to_host"):
        moved = stats.transfers[direction]
        assert (moved.num_pages, moved.num_bytes, moved.num_transfers) == (20, 20 * memory.value_bytes, 2)


async def test_a_fetch_reads_in_its_order_a_few_small_batches_at_a_time(rig: Rig) -> None:
    await filled(rig, NUM_PAGES)
    backend, _, client = rig
    gate = backend.gates["get"] = asyncio.Event()
    fetching = asyncio.create_task(fetched(client, NUM_PAGES))
    await settle()
    assert [keys for _, keys in backend.calls] == [list(NAMES[first : first + 16]) for first in (0, 16)]
    gate.set()
    assert await fetching == ["hit"] * NUM_PAGES
    assert [key for _, keys in backend.calls for key in keys] == list(NAMES)


async def test_fetches_share_a_limit_of_reads(rig: Rig) -> None:
    await filled(rig, NUM_PAGES)
    backend, _, client = rig
    gate = backend.gates["get"] = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        fetching = [tasks.create_task(fetched(client, NUM_PAGES)) for _ in range(3)]
        await settle()
        assert backend.num_calls("get") == 4
        gate.set()
    assert all(task.result() == ["hit"] * NUM_PAGES for task in fetching)


async def test_a_stopped_fetch_begins_no_more_reads(rig: Rig) -> None:
    await filled(rig, NUM_PAGES)
    backend, _, client = rig
    stopped, reports = asyncio.Event(), Reports()
    reports.when_told = stopped.set
    await client.fetch(KEYS, ids(NUM_PAGES), reports, stopped)
    assert backend.num_calls("get") == len(reports.batches) <= 3
    assert set(reports.ordered()) == {"hit"}


def flip(value: bytes, position: int) -> bytes:
    return value[:position] + bytes([value[position] ^ 1]) + value[position + 1 :]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda value, _: flip(value, HEADER_BYTES + 500), "checksum"),
        (lambda value, _: flip(value, 20), "damaged header"),
        (lambda value, _: b"", "short"),
        (lambda value, _: value[:-1], "short"),
        (lambda value, _: value + b"!", "long"),
        (lambda _, other: other, "other key"),
        (lambda value, _: bytes(len(value)), "bad magic"),
    ],
)
async def test_a_damaged_value_is_a_miss_with_a_reason_and_is_deleted(
    rig: Rig, damage: Callable[[bytes, bytes], bytes], reason: str
) -> None:
    await filled(rig, 12)
    backend, _, client = rig
    backend.values[NAMES[3]] = damage(backend.values[NAMES[3]], backend.values[NAMES[4]])
    assert await fetched(client, 12) == ["hit"] * 3 + ["corrupt"] + ["hit"] * 8
    assert client.stats().num_storage_outcomes == {"hit": 11, f"corrupt:{reason}": 1}
    assert NAMES[3] not in backend.values
    assert await fetched(client, 12) == ["hit"] * 3 + ["miss"] + ["hit"] * 8


async def test_a_value_of_another_namespace_under_our_name_is_not_ours(rig: Rig, clock: Clock) -> None:
    backend, memory, client = rig
    twin = NAMESPACE[:8] + OTHER_NAMESPACE[8:]  # the same in its name, not in full
    await make_client(backend, memory, clock, twin).backup(KEYS[:1], ids(1))
    assert list(backend.values) == [NAMES[0]]
    assert await fetched(client, 1) == ["corrupt"]
    assert client.stats().num_storage_outcomes == {"corrupt:other namespace": 1}


async def test_a_store_that_never_answers_costs_one_deadline_and_then_nothing(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(rig, NUM_PAGES)
    backend, _, client = rig
    backend.gates = {"contains": asyncio.Event(), "get": asyncio.Event()}
    outcomes = await fetched(client, NUM_PAGES)
    assert outcomes == ["timeout"] * 32 + ["breaker_open"] * (NUM_PAGES - 32)
    num_calls = len(backend.calls)
    assert await fetched(client, 40) == ["breaker_open"] * 40
    assert await client.lookup(KEYS) == (0, "breaker_open")
    assert await client.backup(KEYS[:3], ids(3)) == (False,) * 3
    assert len(backend.calls) == num_calls
    stats = client.stats()
    assert (stats.breaker, stats.num_storage_failures) == ("open", {"timeout": 2})
    assert stats.num_storage_outcomes == {"timeout": 32, "breaker_open": NUM_PAGES - 32 + 40}
    assert [record.getMessage() for record in caplog.records] == [
        "the store is left alone for a while, a fake store: no answer within 0.05 s"
    ]


async def test_pages_are_not_reported_while_a_read_that_was_given_up_may_still_write_them(rig: Rig) -> None:
    await filled(rig, 8)
    backend, _, client = rig
    gate = backend.gates["get"] = asyncio.Event()
    backend.is_stubborn = True
    reports = Reports()
    fetching = asyncio.create_task(fetched(client, 8, reports))
    await asyncio.sleep(3 * DEADLINE_SECONDS)
    assert client.stats().breaker == "open", "though others learn of it at once"
    assert not reports.batches
    assert not fetching.done()
    gate.set()
    assert await fetching == ["timeout"] * 8


async def test_pages_of_a_backup_are_read_until_the_write_has_ended(rig: Rig) -> None:
    backend, _, client = rig
    gate = backend.gates["put"] = asyncio.Event()
    backend.is_stubborn = True
    backing_up = asyncio.create_task(client.backup(KEYS[:3], ids(3)))
    await asyncio.sleep(3 * DEADLINE_SECONDS)
    assert not backing_up.done()
    gate.set()
    assert await backing_up == (False,) * 3


async def test_the_store_is_tried_without_any_request_waiting_for_it(
    rig: Rig, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(rig, 8)
    backend, _, client = rig
    backend.gates["get"] = asyncio.Event()
    await fetched(client, 8)
    caplog.set_level(logging.INFO, "pagefall")
    caplog.clear()
    clock.now = OPEN_SECONDS
    backend.calls.clear()
    assert await fetched(client, 8) == ["breaker_open"] * 8
    assert client.stats().breaker == "half_open"
    await asyncio.sleep(2 * DEADLINE_SECONDS)
    assert backend.calls == [("contains", [NAMES[0]]), ("get", [NAMES[0]])]
    assert client.stats().breaker == "open", "the probe was not answered"
    assert not caplog.records
    backend.gates.clear()
    clock.now = 3 * OPEN_SECONDS
    assert await client.lookup(KEYS[:8]) == (0, "breaker_open")
    await settle()
    assert await client.lookup(KEYS[:8]) == (8, "answered")
    assert await fetched(client, 8) == ["hit"] * 8
    assert [record.getMessage() for record in caplog.records] == ["the store answers again: a fake store"]


async def test_errors_in_a_row_open_the_breaker(rig: Rig) -> None:
    backend, _, client = rig
    backend.errors["contains"] = StorageError("connection refused")
    assert [await client.lookup(KEYS) for _ in range(4)] == [(0, "error")] * 3 + [(0, "breaker_open")]
    assert client.stats().num_storage_failures == {"error": 3}


async def test_the_error_of_one_page_is_that_pages_alone(rig: Rig) -> None:
    await filled(rig, 8)
    backend, _, client = rig
    backend.get_failures = {NAMES[2]: Failed("error", "input/output error"), NAMES[5]: Failed("timeout", "late")}
    for _ in range(5):
        assert await fetched(client, 8) == ["hit", "hit", "error", "hit", "hit", "timeout", "hit", "hit"]
    stats = client.stats()
    assert (stats.breaker, stats.num_storage_failures) == ("closed", {"error": 5, "timeout": 5})


async def test_a_read_of_which_all_pages_failed_counts_for_the_breaker(rig: Rig) -> None:
    await filled(rig, 8)
    backend, _, client = rig
    backend.get_failures = dict.fromkeys(NAMES, Failed("error", "input/output error"))
    assert [(await fetched(client, 8))[0] for _ in range(4)] == ["error"] * 3 + ["breaker_open"]


async def test_a_bug_of_the_backend_is_logged_and_an_error(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await filled(rig, 2)
    backend, _, client = rig
    backend.errors["get"] = ZeroDivisionError("oops")
    assert await fetched(client, 2) == ["error"] * 2
    assert "ZeroDivisionError: oops" in caplog.text
    assert "Traceback" in caplog.text


async def test_a_backend_that_counts_wrong_is_an_error_too(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, _, client = rig

    async def nonsense(*_: object) -> object:
        return 7

    async def too_few(*_: object) -> object:
        return []

    monkeypatch.setattr(backend, "contains", nonsense)
    monkeypatch.setattr(backend, "get", too_few)
    assert await client.lookup(KEYS[:3]) == (0, "error")
    assert await fetched(client, 2) == ["error"] * 2


async def test_what_the_store_has_is_not_written_again(rig: Rig) -> None:
    await filled(rig, 10)
    backend, memory, client = rig
    memory.payloads[:] = 1
    assert await client.backup(KEYS[:15], ids(15)) == (True,) * 15
    assert [keys for operation, keys in backend.calls if operation == "put"] == [list(NAMES[10:15])]


async def test_a_full_store_takes_no_more_but_is_still_read(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await filled(rig, 8)
    backend, memory, client = rig
    for _ in range(5):
        backend.put_failures = [Failed("full", "no space left on device")] * 16
        assert await client.backup(KEYS[8:40], ids(32)) == (False,) * 32
        assert len(backend.put_failures) == 0, "it gives up after the first batch"
    assert client.stats().num_storage_failures == {"full": 5}
    assert await fetched(client, 8) == ["hit"] * 8
    memory.payloads[:] = 1
    caplog.set_level(logging.INFO, "pagefall")
    assert all(await client.backup(KEYS[8:40], ids(32)))
    assert [record.getMessage() for record in caplog.records] == [
        "the store does not take pages, a fake store: no space left on device",
        "the store takes pages again: a fake store",
    ]


async def test_a_backup_says_which_pages_were_stored(rig: Rig) -> None:
    backend, _, client = rig
    backend.put_failures = [Failed("error", "input/output error")]
    assert await client.backup(KEYS[:20], ids(20)) == (False,) + (True,) * 19
    assert set(backend.values) == set(NAMES[1:20])


async def test_clearing_deletes_the_pages_of_the_namespace_alone(rig: Rig, clock: Clock) -> None:
    await filled(rig, 20)
    backend, memory, client = rig
    await make_client(backend, memory, clock, OTHER_NAMESPACE).backup(KEYS[:3], ids(3))
    kept = {manifest_key(NAMESPACE), Key("someone/elses"), *(k for k in backend.values if k not in NAMES)}
    for key in kept:
        backend.values.setdefault(key, b"")
    assert await client.clear() == 20
    assert set(backend.values) == kept


@pytest.mark.parametrize("operation", ["scan", "delete"])
@pytest.mark.parametrize("fault", ["silence", "error", "bug"])
async def test_a_store_that_cannot_be_cleared_says_why(rig: Rig, operation: Operation, fault: str) -> None:
    await filled(rig, 1)
    backend, _, client = rig
    if fault == "silence":
        backend.gates[operation] = asyncio.Event()
    else:
        backend.errors[operation] = StorageError("connection lost") if fault == "error" else KeyError("k")
    said = {"silence": "no answer within 0.05 s", "error": "connection lost", "bug": "KeyError: 'k'"}[fault]
    with pytest.raises(StorageError, match=f"^{said}$"):
        await client.clear()


async def test_closing_closes_the_backend(rig: Rig) -> None:
    backend, _, client = rig
    await client.aclose()
    assert backend.is_closed


async def test_what_the_store_does_not_keep_now_is_left_when_it_takes_pages(rig: Rig) -> None:
    backend, _, client = rig
    name = manifest_key(NAMESPACE)
    backend.errors["get"] = StorageError("down")
    assert not await client.leave(name, b"manifest")
    backend.put_failures = [Failed("error", "down")] * 16
    assert not any(await client.backup(KEYS[:3], ids(3)))
    assert name not in backend.values
    del backend.errors["get"]
    backend.put_failures = []
    assert all(await client.backup(KEYS[:3], ids(3)))
    assert backend.values[name] == b"manifest"
    backend.calls.clear()
    assert all(await client.backup(KEYS[:6], ids(6)))
    assert backend.num_calls("get") == 0, "once is enough"


async def test_what_is_left_later_is_not_asked_for_now(rig: Rig) -> None:
    backend, _, client = rig
    client.leave_later(manifest_key(NAMESPACE), b"manifest")
    assert not backend.calls
    await client.backup(KEYS[:1], ids(1))
    assert backend.values[manifest_key(NAMESPACE)] == b"manifest"


async def test_a_retired_client_reads_and_writes_no_more(rig: Rig) -> None:
    await filled(rig, 3)
    backend, _, client = rig
    gate = backend.gates["put"] = asyncio.Event()
    writing = asyncio.create_task(client.backup(KEYS, ids(NUM_PAGES)))
    waiting = asyncio.create_task(client.backup(KEYS[:5], ids(5)))
    await settle()
    client.retire()
    gate.set()
    assert sum(await writing) == 3 + 16, "the batch under way"
    assert await waiting == (False,) * 5
    assert backend.num_calls("put") == 1
    assert await fetched(client, 3) == ["hit"] * 3


async def test_one_backup_is_written_after_the_other(rig: Rig) -> None:
    backend, _, client = rig
    gate = backend.gates["put"] = asyncio.Event()
    writing = [asyncio.create_task(client.backup(KEYS[first : first + 2], ids(2))) for first in (0, 2)]
    await settle()
    assert backend.num_calls("put") == 1
    gate.set()
    assert await asyncio.gather(*writing) == [(True, True)] * 2


async def test_operations_that_fail_for_writes_leave_reads_alone(rig: Rig) -> None:
    await filled(rig, 3)
    backend, _, client = rig
    backend.errors["delete"] = StorageError("read-only")
    for _ in range(5):
        assert not await client.leave(manifest_key(NAMESPACE), b"manifest")
    assert client.stats().breaker == "closed"
    assert await fetched(client, 3) == ["hit"] * 3


async def test_lookups_that_succeed_do_not_keep_a_store_in_use_that_gives_nothing(rig: Rig) -> None:
    await filled(rig, 3)
    backend, _, client = rig
    backend.errors["get"] = StorageError("the data node is gone")
    for _ in range(3):
        assert await client.lookup(KEYS[:3]) == (3, "answered")
        assert await fetched(client, 3) == ["error"] * 3
    assert client.stats().breaker == "open"


def told(client: StorageClient) -> tuple[int | None, int | None, int | None]:
    stats = client.stats()
    return stats.storage_num_pages, stats.storage_used_bytes, stats.storage_limit_bytes


async def test_the_store_tells_how_much_it_holds_when_it_is_asked(rig: Rig) -> None:
    await filled(rig, 3)
    _, memory, client = rig
    assert told(client) == (None, None, None)
    await client.facts.ask_usage()
    assert told(client) == (3, 3 * memory.value_bytes, None)


@pytest.mark.parametrize("fault", [StorageError("down"), TypeError("a bug")])
async def test_which_store_it_is_stays_known_while_it_does_not_say(
    rig: Rig, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    caplog.set_level(logging.INFO, "pagefall")
    backend, _, client = rig
    assert client.stats().storage_identity is None
    backend.errors["identify"] = fault
    for _ in range(3):
        await client.facts.ask_identity()
    assert client.stats().storage_identity is None
    assert len([record for record in caplog.records if "which one it is" in record.getMessage()]) == 1
    del backend.errors["identify"]
    await client.facts.ask_identity()
    identity = client.stats().storage_identity
    assert identity is not None
    backend.errors["identify"] = fault
    await client.facts.ask_identity()
    assert client.stats().storage_identity == identity


@pytest.mark.parametrize("fault", [StorageError("down"), TypeError("a bug"), None])
async def test_a_store_that_does_not_tell_loses_nothing_by_it(
    rig: Rig, caplog: pytest.LogCaptureFixture, fault: Exception | None
) -> None:
    await filled(rig, 3)
    backend, memory, client = rig
    await client.facts.ask_usage()
    if fault is None:
        backend.gates["usage"] = asyncio.Event()
    else:
        backend.errors["usage"] = fault
    with caplog.at_level(logging.INFO, "pagefall.storage"):
        for _ in range(5):
            await client.facts.ask_usage()
    assert told(client) == (3, 3 * memory.value_bytes, None), "what it told last"
    assert (client.stats().breaker, client.stats().num_storage_failures) == ("closed", {})
    assert await client.lookup(KEYS[:3]) == (3, "answered")
    [record] = caplog.records
    assert "does not tell how much it holds, a fake store: " in record.message


async def test_a_store_that_is_left_alone_is_not_asked_how_much_it_holds(rig: Rig) -> None:
    backend, _, client = rig
    backend.errors["contains"] = TimeoutError()
    for _ in range(3):
        await client.lookup(KEYS)
    assert client.stats().breaker == "open"
    await client.facts.ask_usage()
    assert backend.num_calls("usage") == 0
    assert client.stats().breaker == "open"


async def test_a_store_that_does_not_let_go_of_the_question_is_not_asked_another(rig: Rig) -> None:
    backend, _, client = rig
    backend.is_stubborn = True
    gate = backend.gates["usage"] = asyncio.Event()
    await client.facts.ask_usage()
    await client.facts.ask_usage()
    assert backend.num_calls("usage") == 1
    gate.set()
    await settle()
    await client.facts.ask_usage()
    assert backend.num_calls("usage") == 2
    assert told(client) == (0, 0, None)
