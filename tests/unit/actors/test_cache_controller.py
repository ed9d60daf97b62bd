from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
import pytest
from tests.fake_backend import FakeBackend
from tests.filled_store import NAMESPACE

from pagefall.actors.base import ActorCrash
from pagefall.actors.cache_controller import CacheController
from pagefall.actors.mailbox import Mailbox, MailboxClosed
from pagefall.config import TierConfig
from pagefall.messages import (
    AttachStorage,
    BackedUp,
    Backup,
    ClearStorage,
    CopyDone,
    DetachStorage,
    Fetch,
    FetchEnded,
    LoadBack,
    LookedUp,
    Lookup,
    Offload,
    PageIds,
    PagesFetched,
    StopFetch,
    StorageChanged,
    StorageCleared,
    ToController,
    ToScheduler,
    TransferId,
)
from pagefall.tiers.assembly import StorageClients
from pagefall.tiers.breaker import CircuitBreaker
from pagefall.tiers.host_memory import HostMemory
from pagefall.tiers.opening import StoreRefusedError
from pagefall.tiers.storage_client import StorageClient
from pagefall_storage.errors import StorageError

pytestmark = pytest.mark.anyio

NUM_PAGES = 64
DEADLINE_SECONDS = 0.05
KEYS = tuple(hashlib.sha256(b"%d" % page).digest() for page in range(NUM_PAGES))


class FakeCopier:
    """Each copy waits for its direction's gate; its first host page is written down."""

    def __init__(self) -> None:
        self.offloading, self.loading = threading.Event(), threading.Event()
        self.offloading.set()
        self.loading.set()
        self.done: list[tuple[str, int]] = []
        self.threads = set[str]()
        self.error: Exception | None = None

    def offload(self, device_page_ids: PageIds, host_page_ids: PageIds) -> None:
        self._copy("offload", self.offloading, host_page_ids)

    def load_back(self, host_page_ids: PageIds, device_page_ids: PageIds) -> None:
        self._copy("load back", self.loading, host_page_ids)

    def _copy(self, name: str, gate: threading.Event, host_page_ids: PageIds) -> None:
        self.threads.add(threading.current_thread().name)
        assert gate.wait(timeout=10)
        if self.error is not None:
            raise self.error
        self.done.append((name, int(host_page_ids[0])))


class FakeClients(StorageClients):
    """Opens stores made here, once the gate is open."""

    def __init__(self, memory: HostMemory) -> None:
        super().__init__(TierConfig(hicache_storage_deadline=DEADLINE_SECONDS), memory, NAMESPACE)
        self.gate = asyncio.Event()
        self.gate.set()
        self.opened: list[FakeBackend] = []

    async def open(self, name: str, extra_config: Mapping[str, Any]) -> StorageClient:
        await self.gate.wait()
        if name != "fake":
            raise StoreRefusedError("no such backend", "backend")
        backend = FakeBackend()
        self.opened.append(backend)
        return await self.of(backend, name=name)


class Rig:
    """A controller between two mailboxes, of which the test is both ends."""

    def __init__(
        self,
        *,
        has_store: bool = True,
        report_capacity: int = 100,
        grace_seconds: float = 10.0,
        usage_seconds: float = 1000.0,
    ) -> None:
        self.copier, self.backend = FakeCopier(), FakeBackend()
        self.memory = HostMemory(1000, NUM_PAGES, pinned=False)
        self.memory.payloads[:] = np.arange(NUM_PAGES)[:, None]
        self.reports = Mailbox[ToScheduler](report_capacity)
        self.mailbox = Mailbox[ToController](4)
        storage = StorageClient(
            self.backend,
            namespace=b"n" * 32,
            memory=self.memory,
            deadline_seconds=DEADLINE_SECONDS,
            breaker=CircuitBreaker(open_seconds=1000.0),
            clock=time.monotonic,
        )
        self.clients = FakeClients(self.memory)
        self.controller = CacheController(
            self.mailbox,
            self.reports.address,
            self.copier,
            self.memory,
            storage if has_store else None,
            clock=time.monotonic,
            grace_seconds=grace_seconds,
            clients=self.clients,
            usage_seconds=usage_seconds,
        )
        self.running = asyncio.create_task(self.controller.run())

    async def send(self, *messages: ToController) -> None:
        for message in messages:
            await self.mailbox.address.send(message)

    async def next_reports(self) -> list[ToScheduler]:
        await self.reports.wait()
        return self.reports.take_all()

    async def ask(self, message: ToController) -> ToScheduler:
        await self.send(message)
        (report,) = await self.next_reports()
        return report

    async def fill(self, num_pages: int) -> None:
        assert await self.ask(backup(99, num_pages)) == BackedUp(transfer_id=TransferId(99), stored=(True,) * num_pages)
        for page in range(num_pages):
            self.memory.value(page)[:] = bytes(self.memory.value_bytes)

    async def end(self) -> None:
        self.copier.offloading.set()
        self.copier.loading.set()
        self.running.cancel()
        await asyncio.wait({self.running})


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.end()


def ids(*pages: int) -> PageIds:
    return np.array(pages, dtype=np.int32)


def offload(number: int) -> Offload:
    return Offload(transfer_id=TransferId(number), device_page_ids=ids(0), host_page_ids=ids(number))


def load_back(number: int) -> LoadBack:
    return LoadBack(transfer_id=TransferId(number), host_page_ids=ids(number), device_page_ids=ids(0))


def backup(number: int, num_pages: int) -> Backup:
    return Backup(transfer_id=TransferId(number), keys=KEYS[:num_pages], host_page_ids=ids(*range(num_pages)))


def fetch(number: int, num_pages: int) -> Fetch:
    return Fetch(transfer_id=TransferId(number), keys=KEYS[:num_pages], host_page_ids=ids(*range(num_pages)))


def lookup(number: int, num_pages: int = NUM_PAGES) -> Lookup:
    return Lookup(transfer_id=TransferId(number), keys=KEYS[:num_pages])


async def settle() -> None:
    """Lets every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_copies_of_one_direction_keep_their_order_and_are_reported(rig: Rig) -> None:
    await rig.send(*map(offload, range(4)))
    reports: list[ToScheduler] = []
    while len(reports) < 4:
        reports += await rig.next_reports()
    assert [report.transfer_id for report in reports if isinstance(report, CopyDone)] == [0, 1, 2, 3]
    assert rig.copier.done == [("offload", number) for number in range(4)]
    moved = rig.controller.stats().transfers["device_to_host"]
    assert (moved.num_pages, moved.num_bytes, moved.num_transfers) == (4, 4000, 4)


async def test_loading_does_not_queue_behind_offloading(rig: Rig) -> None:
    rig.copier.offloading.clear()
    await rig.send(offload(0), offload(1), load_back(2))
    (report,) = await rig.next_reports()
    assert isinstance(report, CopyDone)
    assert report.transfer_id == 2
    assert rig.copier.done == [("load back", 2)]
    assert {name.rsplit("_", 1)[0] for name in rig.copier.threads} == {"offload", "load-back"}


async def test_the_loop_goes_on_while_a_copy_is_made(rig: Rig) -> None:
    rig.copier.offloading.clear()
    await rig.send(offload(0))
    assert await rig.ask(lookup(1)) is not None
    assert rig.copier.done == []


async def test_a_copy_that_fails_says_so_and_the_next_is_made(rig: Rig) -> None:
    rig.copier.error = RuntimeError("out of\nmemory")
    report = await rig.ask(offload(0))
    assert report == CopyDone(transfer_id=TransferId(0), seconds=0.0, error="RuntimeError: out of")
    rig.copier.error = None
    report = await rig.ask(offload(1))
    assert isinstance(report, CopyDone)
    assert report.error is None
    assert rig.controller.stats().transfers["device_to_host"].num_transfers == 1


async def test_pages_go_to_the_store_and_come_back(rig: Rig) -> None:
    await rig.fill(20)
    found = await rig.ask(lookup(1))
    assert isinstance(found, LookedUp)
    assert (found.num_present, found.answer) == (20, "answered")
    await rig.send(fetch(2, 20))
    reports: list[ToScheduler] = []
    while not reports or not isinstance(reports[-1], FetchEnded):
        reports += await rig.next_reports()
    fetched = [report for report in reports if isinstance(report, PagesFetched)]
    assert sorted(index for report in fetched for index in report.indices) == list(range(20))
    assert {outcome for report in fetched for outcome in report.outcomes} == {"hit"}
    ended = reports[-1]
    assert isinstance(ended, FetchEnded)
    assert ended.num_bytes == 20 * rig.memory.value_bytes
    assert 0 < ended.first_seconds <= ended.seconds
    assert (rig.memory.payloads == np.arange(NUM_PAGES)[:, None]).all()
    stats = rig.controller.stats()
    assert stats.transfers.keys() == {"host_to_storage", "storage_to_host"}
    assert (stats.num_storage_outcomes, stats.breaker) == ({"hit": 20}, "closed")


async def test_a_stopped_fetch_ends_with_what_was_under_way(rig: Rig) -> None:
    await rig.fill(NUM_PAGES)
    gate = rig.backend.gates["get"] = asyncio.Event()
    await rig.send(fetch(1, NUM_PAGES))
    await settle()
    await rig.send(StopFetch(transfer_id=TransferId(1)), StopFetch(transfer_id=TransferId(7)))
    await settle()
    gate.set()
    reports: list[ToScheduler] = []
    while not reports or not isinstance(reports[-1], FetchEnded):
        reports += await rig.next_reports()
    assert sum(len(report.indices) for report in reports if isinstance(report, PagesFetched)) == 32


async def test_one_backup_is_written_at_a_time(rig: Rig) -> None:
    gate = rig.backend.gates["put"] = asyncio.Event()
    first = Backup(transfer_id=TransferId(1), keys=KEYS[:2], host_page_ids=ids(0, 1))
    second = Backup(transfer_id=TransferId(2), keys=KEYS[2:4], host_page_ids=ids(2, 3))
    await rig.send(first, second)
    await asyncio.sleep(DEADLINE_SECONDS / 2)
    assert rig.backend.num_calls("put") == 1
    gate.set()
    reports: list[ToScheduler] = []
    while len(reports) < 2:
        reports += await rig.next_reports()
    assert reports == [BackedUp(transfer_id=TransferId(number), stored=(True, True)) for number in (1, 2)]


async def test_the_store_is_cleared_or_the_reason_why_not_comes_back(rig: Rig) -> None:
    await rig.fill(3)
    clear = ClearStorage(transfer_id=TransferId(5))
    assert await rig.ask(clear) == StorageCleared(transfer_id=TransferId(5), num_pages=3)
    rig.backend.errors["scan"] = StorageError("connection lost")
    assert await rig.ask(clear) == StorageCleared(transfer_id=TransferId(5), num_pages=0, error="connection lost")


async def test_no_fault_of_the_store_ends_the_actor(rig: Rig) -> None:
    await rig.fill(3)
    for fault in (StorageError("down"), TypeError("a bug"), TimeoutError(), OSError("input/output error")):
        for operation in ("contains", "get", "put", "delete", "scan"):
            rig.backend.errors[operation] = fault
        await rig.send(lookup(1), fetch(2, 3), backup(3, 3), ClearStorage(transfer_id=TransferId(4)))
        reports: list[ToScheduler] = []
        while len(reports) < 5:
            reports += await rig.next_reports()
        assert {type(report) for report in reports} == {LookedUp, PagesFetched, FetchEnded, BackedUp, StorageCleared}
    assert isinstance(await rig.ask(offload(0)), CopyDone)
    assert not rig.running.done()


async def test_reports_wait_for_room_and_none_is_lost() -> None:
    rig = Rig(report_capacity=1)
    await rig.send(*map(offload, range(3)))
    await asyncio.sleep(0.02)
    await rig.send(lookup(3))  # it takes messages while it waits to report
    reports: list[ToScheduler] = []
    while len(reports) < 4:
        reports += await rig.next_reports()
    assert sum(isinstance(report, CopyDone) for report in reports) == 3
    await rig.end()


async def test_a_full_mailbox_takes_messages_again_when_the_controller_has_taken_its(rig: Rig) -> None:
    address = rig.mailbox.address
    assert [address.try_send(offload(number)) for number in range(6)] == [True] * 4 + [False] * 2
    await rig.next_reports()
    assert address.try_send(offload(5))


async def test_a_scheduler_that_has_ended_hears_no_reports_and_nothing_breaks(rig: Rig) -> None:
    rig.reports.close()
    await rig.send(offload(0))
    rig.controller.close()
    await rig.running
    assert rig.copier.done == [("offload", 0)]


async def test_a_drained_controller_ends_copies_and_backups_and_closes_the_store(rig: Rig) -> None:
    rig.copier.offloading.clear()
    await rig.send(offload(0), offload(1), backup(2, 20))
    rig.controller.close()
    await asyncio.sleep(0.02)
    assert not rig.running.done()
    rig.copier.offloading.set()
    await rig.running
    assert rig.copier.done == [("offload", 0), ("offload", 1)]
    assert len(rig.backend.values) == 20
    assert len(await rig.next_reports()) == 3
    assert rig.backend.is_closed


async def test_a_drained_controller_begins_no_more_reads(rig: Rig) -> None:
    await rig.fill(NUM_PAGES)
    gate = rig.backend.gates["get"] = asyncio.Event()
    await rig.send(fetch(1, NUM_PAGES))
    await settle()
    rig.controller.close()
    await settle()
    gate.set()
    await rig.running
    assert rig.backend.num_calls("get") == 2


async def test_what_does_not_end_within_the_grace_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(grace_seconds=0.02)
    rig.backend.is_stubborn = True
    gate = rig.backend.gates["put"] = asyncio.Event()
    await rig.send(backup(0, 3))
    rig.controller.close()
    await rig.running
    assert rig.backend.is_closed
    assert "given up after 0.02 s" in caplog.text
    gate.set()
    await rig.end()


async def test_a_store_that_does_not_close_keeps_nobody_waiting(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.backend, "aclose", asyncio.Event().wait)
    rig.controller.close()
    async with asyncio.timeout(1):
        await rig.running


async def test_a_cancelled_controller_waits_for_the_copy_under_way_and_makes_no_other(rig: Rig) -> None:
    rig.copier.offloading.clear()
    await rig.send(offload(0), offload(1))
    await settle()
    rig.running.cancel()
    threading.Timer(0.02, rig.copier.offloading.set).start()
    with pytest.raises(asyncio.CancelledError):
        await rig.running
    assert rig.copier.done == [("offload", 0)]
    assert rig.backend.is_closed
    with pytest.raises(MailboxClosed):
        rig.mailbox.address.try_send(offload(2))


async def test_a_bug_ends_the_actor_and_names_itself(rig: Rig) -> None:
    await rig.send(Backup(transfer_id=TransferId(0), keys=KEYS[:1], host_page_ids=ids(0, 1)))
    with pytest.raises(ActorCrash, match=r"^CacheController crashed: ValueError: zip\(\) argument 3 is longer"):
        await rig.running
    assert rig.backend.is_closed


@pytest.mark.parametrize("message", [lookup(0), fetch(0, 1), backup(0, 1), ClearStorage(transfer_id=TransferId(0))])
async def test_to_ask_for_a_store_where_there_is_none_is_a_bug(message: ToController) -> None:
    rig = Rig(has_store=False)
    assert rig.controller.stats().breaker is None
    await rig.send(message)
    with pytest.raises(ActorCrash, match="RuntimeError: asked for a store, of which there is none"):
        await rig.running


ATTACH = AttachStorage(backend="fake", extra_config={})
ATTACHED, DETACHED = StorageChanged(is_attached=True), StorageChanged(is_attached=False)


async def test_a_store_that_is_attached_is_the_one_that_is_asked() -> None:
    rig = Rig(has_store=False)
    assert await rig.ask(ATTACH) == ATTACHED
    await rig.fill(3)
    assert len(rig.clients.opened[0].values) == 3 + 1, "with the manifest"
    stats = rig.controller.stats()
    assert (stats.breaker, stats.storage_backend, stats.storage_description) == ("closed", "fake", "a fake store")
    await rig.end()
    assert rig.clients.opened[0].is_closed


async def test_a_store_is_open_before_it_takes_the_place_of_another(rig: Rig) -> None:
    await rig.fill(3)
    rig.clients.gate.clear()
    await rig.send(ATTACH)
    await settle()
    found = await rig.ask(lookup(1, 3))
    assert isinstance(found, LookedUp)
    assert found.num_present == 3
    rig.clients.gate.set()
    assert await rig.next_reports() == [ATTACHED]
    await settle()
    assert rig.backend.is_closed
    found = await rig.ask(lookup(2, 3))
    assert isinstance(found, LookedUp)
    assert found.num_present == 0


async def test_a_store_that_cannot_be_opened_leaves_the_other(rig: Rig) -> None:
    refused = await rig.ask(AttachStorage(backend="unheard of", extra_config={}))
    assert refused == StorageChanged(is_attached=True, error="no such backend", param="backend")
    await rig.fill(3)
    assert not rig.backend.is_closed


async def test_a_fetch_goes_on_with_its_store_which_is_closed_after_it(rig: Rig) -> None:
    await rig.fill(NUM_PAGES)
    gate = rig.backend.gates["get"] = asyncio.Event()
    await rig.send(fetch(1, NUM_PAGES), DetachStorage())
    assert await rig.next_reports() == [DETACHED]
    assert rig.controller.stats().breaker is None
    await settle()
    assert not rig.backend.is_closed
    gate.set()
    reports: list[ToScheduler] = []
    while not reports or not isinstance(reports[-1], FetchEnded):
        reports += await rig.next_reports()
    outcomes = [outcome for report in reports if isinstance(report, PagesFetched) for outcome in report.outcomes]
    assert outcomes == ["hit"] * NUM_PAGES
    await settle()
    assert rig.backend.is_closed


async def test_a_backup_ends_early_with_its_store_and_holds_up_none_to_the_next(rig: Rig) -> None:
    gate = rig.backend.gates["put"] = asyncio.Event()
    rig.backend.is_stubborn = True
    await rig.send(backup(1, NUM_PAGES))
    await settle()
    assert await rig.ask(ATTACH) == ATTACHED
    assert await rig.ask(backup(2, 3)) == BackedUp(transfer_id=TransferId(2), stored=(True,) * 3)
    gate.set()
    (late,) = await rig.next_reports()
    assert isinstance(late, BackedUp)
    assert rig.backend.num_calls("put") == 1
    await settle()
    assert rig.backend.is_closed


async def test_what_moved_to_and_from_all_stores_adds_up() -> None:
    rig = Rig(has_store=False)
    for number in range(3):
        assert await rig.ask(ATTACH) == ATTACHED
        await rig.fill(2 + number)
    stats = rig.controller.stats()
    assert stats.transfers["host_to_storage"].num_pages == 2 + 3 + 4
    await rig.end()


async def test_a_store_whose_call_never_ends_does_not_keep_a_drained_controller() -> None:
    rig = Rig(grace_seconds=0.02)
    rig.backend.is_stubborn = True
    gate = rig.backend.gates["put"] = asyncio.Event()
    await rig.send(backup(1, 3))
    await settle()
    assert await rig.ask(ATTACH) == ATTACHED
    rig.controller.close()
    async with asyncio.timeout(5):
        await rig.running
    assert rig.backend.is_closed
    assert rig.clients.opened[0].is_closed
    gate.set()


async def test_a_store_is_asked_at_once_how_much_it_holds_and_so_is_the_one_after_it(rig: Rig) -> None:
    await settle()
    stats = rig.controller.stats()
    assert (stats.storage_num_pages, stats.storage_used_bytes, stats.storage_limit_bytes) == (0, 0, None)
    assert await rig.ask(ATTACH) == ATTACHED
    await settle()
    stats = rig.controller.stats()
    [manifest] = rig.clients.opened[0].values.values()
    assert (stats.storage_num_pages, stats.storage_used_bytes) == (0, len(manifest))


async def test_it_is_asked_again_and_again() -> None:
    rig = Rig(usage_seconds=0.001)
    await rig.fill(3)
    num_calls = rig.backend.num_calls("usage")
    while rig.backend.num_calls("usage") < num_calls + 2:
        await asyncio.sleep(0.001)
    assert rig.controller.stats().storage_num_pages == 3
    await rig.end()


async def test_without_a_store_nobody_is_asked_and_what_was_counted_stays(rig: Rig) -> None:
    await rig.fill(3)
    rig.backend.errors["contains"] = StorageError("down")
    await rig.ask(lookup(1))
    before = rig.controller.stats()
    assert await rig.ask(DetachStorage()) == DETACHED
    await settle()
    stats = rig.controller.stats()
    assert (stats.transfers, stats.num_storage_failures) == (before.transfers, before.num_storage_failures)
    assert stats.transfers["host_to_storage"].num_pages == 3
    assert stats.num_storage_failures == {"error": 1}
    told = (stats.breaker, stats.storage_backend, stats.storage_num_pages, stats.storage_used_bytes)
    assert told == (None, None, None, None)
    assert rig.backend.num_calls("usage") == 1


async def test_a_drained_controller_waits_for_no_answer_about_how_much_there_is(rig: Rig) -> None:
    rig.backend.gates["usage"] = asyncio.Event()
    await settle()
    rig.controller.close()
    await rig.running
    assert rig.backend.is_closed


async def test_a_fault_in_telling_how_much_there_is_ends_no_actor() -> None:
    rig = Rig(usage_seconds=0.001)
    for fault in (StorageError("down"), TypeError("a bug"), TimeoutError()):
        rig.backend.errors["usage"] = fault
        num_calls = rig.backend.num_calls("usage")
        while rig.backend.num_calls("usage") < num_calls + 2:
            await asyncio.sleep(0.001)
    assert rig.controller.stats().breaker == "closed"
    assert rig.controller.stats().num_storage_failures == {}
    assert not rig.running.done()
    await rig.end()
