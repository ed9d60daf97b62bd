"""The cache controller: moves pages between the device, host memory and the store, as the scheduler tells it.

It decides nothing about which page is where. Each message becomes a task that ends with its reports:

- copies run in the order they were sent, on one thread for each direction: loading never queues behind offloading;
- everything the store does comes back as an outcome, so no fault of it ends this actor;
- the store may be changed meanwhile: each message is for the one that is attached when it comes (`store_slot`).

How many tasks there can be is bounded by the sender: a transfer holds host pages, a lookup a waiting request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, assert_never

import msgspec

from pagefall.actors.base import Actor
from pagefall.actors.mailbox import Address, Mailbox, MailboxClosed
from pagefall.actors.store_slot import StoreSlot
from pagefall.errors import first_failure
from pagefall.messages import (
    AttachStorage,
    BackedUp,
    Backup,
    ClearStorage,
    ControllerReport,
    ControllerStats,
    CopyDone,
    DetachStorage,
    Direction,
    Fetch,
    FetchEnded,
    FetchOutcome,
    LoadBack,
    LookedUp,
    Lookup,
    Offload,
    PagesFetched,
    StopFetch,
    StorageChanged,
    StorageCleared,
    ToController,
    ToScheduler,
    TransferId,
)
from pagefall.tiers.assembly import StorageClients
from pagefall.tiers.copier import PageCopier
from pagefall.tiers.counters import TransferCounters
from pagefall.tiers.host_memory import HostMemory
from pagefall.tiers.opening import StoreRefusedError
from pagefall.tiers.storage_client import StorageClient
from pagefall_storage.errors import StorageError

_log = logging.getLogger("pagefall.cache_controller")

GRACE_SECONDS: Final = 10.0

USAGE_SECONDS: Final = 30.0
"""How long after the store has told how much it holds it is asked again."""

_USAGE_TIME_SHARE: Final = 1 / 60
"""Of the time, at most, it is busy telling: some stores have to list all that they hold."""


class CacheController(Actor[ToController]):
    def __init__(
        self,
        mailbox: Mailbox[ToController],
        scheduler: Address[ToScheduler],
        copier: PageCopier,
        memory: HostMemory,
        storage: StorageClient | None,
        *,
        clock: Callable[[], float],
        grace_seconds: float = GRACE_SECONDS,
        clients: StorageClients | None = None,
        usage_seconds: float = USAGE_SECONDS,
    ) -> None:
        """`clock` returns seconds and never goes back. Closed, it ends copies and backups within `grace_seconds`, then
        gives up what is left, and closes the store. `clients` opens others; None: there are none to attach. The store
        is asked how much it holds at once and then every `usage_seconds`, or less often if it takes long to tell.
        """
        super().__init__(mailbox)
        self._scheduler = scheduler
        self._copier = copier
        self._memory = memory
        self._store = StoreSlot(storage)
        self._clients = clients
        self._clock = clock
        self._grace_seconds = grace_seconds
        self._usage_seconds = usage_seconds
        self._threads: dict[Direction, ThreadPoolExecutor] = {
            "device_to_host": ThreadPoolExecutor(1, thread_name_prefix="offload"),
            "host_to_device": ThreadPoolExecutor(1, thread_name_prefix="load-back"),
        }
        self._counters = TransferCounters()
        self._fetches: dict[TransferId, asyncio.Event] = {}

    def stats(self) -> ControllerStats:
        """A snapshot of now. What was counted of a store stays when it is detached."""
        copies = self._counters.transfers
        if self._store.latest is None:
            return ControllerStats(transfers=copies)
        stats = self._store.latest.counts() if self._store.attached is None else self._store.attached.stats()
        return msgspec.structs.replace(stats, transfers={**copies, **stats.transfers})

    async def _run(self) -> None:
        try:
            await self._serve()
        finally:
            for thread in self._threads.values():
                thread.shutdown(cancel_futures=True)
            await self._store.aclose()

    async def _serve(self) -> None:
        """Until the mailbox is exhausted, and its transfers have ended or their grace has."""
        try:
            async with asyncio.timeout(None) as grace, asyncio.TaskGroup() as transfers:
                asking = transfers.create_task(self._keep_asking_usage())
                while not self._mailbox.is_exhausted:
                    await self._mailbox.wait()
                    for message in self._mailbox.take_all():
                        self._begin(message, transfers)
                asking.cancel()
                for stopped in self._fetches.values():
                    stopped.set()
                grace.reschedule(asyncio.get_running_loop().time() + self._grace_seconds)
        except TimeoutError:
            _log.warning("transfers under way were given up after %g s", self._grace_seconds)
        except ExceptionGroup as failures:
            raise first_failure(failures) from failures

    def _begin(self, message: ToController, transfers: asyncio.TaskGroup) -> None:
        match message:
            case Offload(transfer_id=transfer_id, device_page_ids=device, host_page_ids=host):
                copy = partial(self._copier.offload, device, host)
                transfers.create_task(self._copy(transfer_id, "device_to_host", len(host), copy))
            case LoadBack(transfer_id=transfer_id, host_page_ids=host, device_page_ids=device):
                copy = partial(self._copier.load_back, host, device)
                transfers.create_task(self._copy(transfer_id, "host_to_device", len(host), copy))
            case Lookup():
                self._store.use(partial(self._look_up, message), transfers)
            case Fetch():
                stopped = self._fetches[message.transfer_id] = asyncio.Event()
                self._store.use(partial(self._fetch, message, stopped), transfers)
            case StopFetch():
                if message.transfer_id in self._fetches:  # else it has ended by itself
                    self._fetches[message.transfer_id].set()
            case Backup():
                self._store.use(partial(self._back_up, message), transfers)
            case ClearStorage():
                self._store.use(partial(self._clear, message), transfers)
            case AttachStorage():
                transfers.create_task(self._attach(message, transfers))
            case DetachStorage():
                self._store.replace(None, transfers)
                _log.info("the store is detached")
                transfers.create_task(self._report(StorageChanged(is_attached=False)))
            case _:
                assert_never(message)

    async def _copy(
        self, transfer_id: TransferId, direction: Direction, num_pages: int, copy: Callable[[], None]
    ) -> None:
        """Waits for nothing before its turn is taken: copies of one direction keep the order of their messages."""
        try:
            seconds = await asyncio.get_running_loop().run_in_executor(self._threads[direction], self._timed, copy)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the scheduler has to know that it did
            _log.exception("%s: a copy of %d pages failed", direction, num_pages)
            report = CopyDone(transfer_id=transfer_id, seconds=0.0, error=_one_line(error))
        else:
            num_bytes = num_pages * self._memory.page_bytes
            self._counters.add(direction, num_pages=num_pages, num_bytes=num_bytes, seconds=seconds)
            report = CopyDone(transfer_id=transfer_id, seconds=seconds)
        await self._report(report)

    def _timed(self, copy: Callable[[], None]) -> float:
        started = self._clock()
        copy()
        return self._clock() - started

    async def _look_up(self, message: Lookup, storage: StorageClient) -> None:
        started = self._clock()
        num_present, answer = await storage.lookup(message.keys)
        seconds = self._clock() - started
        await self._report(
            LookedUp(transfer_id=message.transfer_id, num_present=num_present, answer=answer, seconds=seconds)
        )

    async def _fetch(self, message: Fetch, stopped: asyncio.Event, storage: StorageClient) -> None:
        started = self._clock()
        first_seconds: float | None = None
        num_hits = 0

        async def report(indices: tuple[int, ...], outcomes: tuple[FetchOutcome, ...]) -> None:
            nonlocal first_seconds, num_hits
            if first_seconds is None:
                first_seconds = self._clock() - started
            num_hits += outcomes.count("hit")
            await self._report(PagesFetched(transfer_id=message.transfer_id, indices=indices, outcomes=outcomes))

        try:
            await storage.fetch(message.keys, message.host_page_ids, report, stopped)
        finally:
            del self._fetches[message.transfer_id]
        seconds = self._clock() - started
        await self._report(
            FetchEnded(
                transfer_id=message.transfer_id,
                num_bytes=num_hits * self._memory.value_bytes,
                first_seconds=seconds if first_seconds is None else first_seconds,
                seconds=seconds,
            )
        )

    async def _back_up(self, message: Backup, storage: StorageClient) -> None:
        stored = await storage.backup(message.keys, message.host_page_ids)
        await self._report(BackedUp(transfer_id=message.transfer_id, stored=stored))

    async def _clear(self, message: ClearStorage, storage: StorageClient) -> None:
        try:
            report = StorageCleared(transfer_id=message.transfer_id, num_pages=await storage.clear())
        except StorageError as error:
            report = StorageCleared(transfer_id=message.transfer_id, num_pages=0, error=str(error))
        await self._report(report)

    async def _attach(self, message: AttachStorage, transfers: asyncio.TaskGroup) -> None:
        try:
            if self._clients is None:
                raise StoreRefusedError("the store of this engine stays as it is")
            storage = await self._clients.open(message.backend, message.extra_config)
        except StoreRefusedError as error:
            is_attached = self._store.attached is not None
            report = StorageChanged(is_attached=is_attached, error=str(error), param=error.param)
        else:
            self._store.replace(storage, transfers)
            _log.info("the store is now %s", storage.description)
            report = StorageChanged(is_attached=True)
        await self._report(report)

    async def _keep_asking_usage(self) -> None:
        """Until it is cancelled. A store that takes the place of another is asked at once."""
        while True:
            self._store.changed.clear()
            started = self._clock()
            if self._store.attached is not None:
                await self._store.attached.facts.ask()
            rest = max(self._usage_seconds, (self._clock() - started) / _USAGE_TIME_SHARE)
            with suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await self._store.changed.wait()

    async def _report(self, report: ControllerReport) -> None:
        """Waits while the scheduler's mailbox is full. Once that is closed, nobody asks for reports any more."""
        with suppress(MailboxClosed):
            await self._scheduler.send(report)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
