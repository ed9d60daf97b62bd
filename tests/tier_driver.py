"""The scheduler with lower tiers: a controller whose every move the test chooses, over real page contents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from tests.scheduling_driver import DEFAULT_CACHE, DEFAULT_SCHEDULER, Driver

from pagefall.config import CacheConfig, SchedulerConfig, TierConfig
from pagefall.messages import (
    AttachStorage,
    BackedUp,
    Backup,
    ClearStorage,
    ControllerReport,
    CopyDone,
    DetachStorage,
    Fetch,
    FetchEnded,
    FetchOutcome,
    FlushCache,
    LoadBack,
    LookedUp,
    Lookup,
    Offload,
    PagesFetched,
    StopFetch,
    StorageChanged,
    StorageCleared,
    Tier,
    ToController,
    TransferId,
)
from pagefall.scheduling import reports

GARBAGE = 0xDEAD

Store = dict[bytes, npt.NDArray[np.uint32]]


@dataclass(eq=False)
class Pending:
    """A transfer that the controller was told of. `done`: positions of a fetch that were reported. `store`: the one
    that was attached then. `is_swapped`: the new store has taken its place, and the scheduler was not told yet.
    """

    message: ToController
    store: Store
    is_swapped: bool = False
    done: list[int] = field(default_factory=list)
    is_stopped: bool = False


class TierDriver(Driver):
    """Pages hold their token ids: host memory and store keep them as they are copied, and the fake model's answers
    tell when a wrong page was read. `between` runs while a step is under way.
    """

    def __init__(
        self,
        *,
        tiers: TierConfig,
        num_host_pages: int,
        num_pages: int = 64,
        page_size: int = 4,
        scheduler: SchedulerConfig = DEFAULT_SCHEDULER,
        cache: CacheConfig = DEFAULT_CACHE,
        store: Store | None = None,
    ) -> None:
        super().__init__(
            num_pages=num_pages,
            page_size=page_size,
            scheduler=scheduler,
            cache=cache,
            tiers=tiers,
            num_host_pages=num_host_pages,
        )
        assert self.state.tiers is not None
        self.tiers = self.state.tiers
        self.host = np.full((num_host_pages, page_size), GARBAGE, dtype=np.uint32)
        self.store: Store = {} if store is None else store
        self.is_attached = tiers.hicache_storage_backend is not None
        self.ever_stored: set[bytes] = set(self.store)
        """In the store that is attached."""
        self.changes: list[StorageChanged] = []
        self.pending: list[Pending] = []
        self.between: Callable[[], None] = lambda: None
        self.num_flushed: list[dict[Tier, int]] = []

    def during_step(self) -> None:
        self.between()

    def collect(self) -> list[Pending]:
        """Everything the controller has been told and has not finished, oldest first."""
        outbox, self.tiers.outbox = self.tiers.outbox, []
        for message in outbox:
            if isinstance(message, StopFetch):
                for pending in self.pending:
                    if isinstance(pending.message, Fetch) and pending.message.transfer_id == message.transfer_id:
                        pending.is_stopped = True
            else:
                asks_store = isinstance(message, Lookup | Fetch | Backup | ClearStorage)
                assert self.is_attached or not asks_store, "asked for a store, of which there is none"
                if isinstance(message, DetachStorage):
                    self.is_attached = False
                self.pending.append(Pending(message, self.store))
        return self.pending

    def report(self, report: ControllerReport) -> None:
        answer = reports.receive(self.state, report, now=self.now)
        if isinstance(answer, StorageChanged):
            self.changes.append(answer)
        elif answer is not None:
            self.num_flushed.append(answer.num_pages)
        self.state.cache.check()

    def change_storage(self, message: AttachStorage | DetachStorage) -> None:
        """One at a time."""
        assert not self.is_changing
        reports.change_storage(self.state, message)
        self.state.cache.check()

    @property
    def is_changing(self) -> bool:
        return any(isinstance(pending.message, AttachStorage | DetachStorage) for pending in self.collect())

    def stored_nodes(self) -> list[set[bytes]]:
        """The keys of each node that counts as stored."""
        return [
            {node.page_keys[start : start + 32] for start in range(0, len(node.page_keys), 32)}
            for node in self.state.cache._tree.nodes()
            if node.is_stored
        ]

    def flush(self, *tiers: Tier) -> None:
        flushed = reports.flush(self.state, FlushCache(flush_id=0, tiers=frozenset(tiers)), now=self.now)
        if flushed is not None:
            self.num_flushed.append(flushed.num_pages)
        self.state.cache.check()

    def perform(self, pending: Pending, *, fails: bool = False, num_pages: int = 1_000_000) -> None:
        """Carries out a transfer (of a fetch at most `num_pages` more); one that fails leaves garbage behind."""
        message = pending.message
        if isinstance(message, Fetch):
            self._fetch(pending, message, num_pages, "corrupt" if fails else "hit")
            return
        if isinstance(message, AttachStorage) and not (fails or pending.is_swapped):
            self._attach(pending)
            return
        self.pending.remove(pending)
        match message:
            case Offload():
                content = self.model.slots[message.device_page_ids]
                self.host[message.host_page_ids] = GARBAGE if fails else content
                self.report(_copied(message.transfer_id, fails))
            case LoadBack():
                content = self.host[message.host_page_ids]
                self.model.slots[message.device_page_ids] = GARBAGE if fails else content
                self.report(_copied(message.transfer_id, fails))
            case AttachStorage():
                has_failed = not pending.is_swapped
                self.report(StorageChanged(is_attached=self.is_attached, error="broken" if has_failed else None))
            case DetachStorage():
                self.report(StorageChanged(is_attached=False))
            case Lookup():
                store = pending.store
                present = next((i for i, key in enumerate(message.keys) if key not in store), len(message.keys))
                self.report(
                    LookedUp(
                        transfer_id=message.transfer_id,
                        num_present=0 if fails else present,
                        answer="timeout" if fails else "answered",
                        seconds=0.001,
                    )
                )
            case Backup():
                self._back_up(message, pending.store, fails)
            case ClearStorage():
                num_pages = len(pending.store)
                pending.store.clear()
                self.report(StorageCleared(transfer_id=message.transfer_id, num_pages=num_pages))
            case _:
                raise AssertionError(message)

    def settle(self) -> None:
        """Carries out all transfers, and those they lead to."""
        while self.collect():
            self.perform(self.pending[0])

    def run(self, max_steps: int = 10_000) -> None:
        """Until nothing waits, runs or is under way; transfers are carried out between steps."""
        for _ in range(max_steps):
            self.settle()
            if self.state.is_idle:
                return
            self.step()
        raise AssertionError(f"not idle after {max_steps} steps")

    def _fetch(self, pending: Pending, message: Fetch, num_pages: int, outcome: FetchOutcome) -> None:
        if not pending.is_stopped:
            positions = range(len(pending.done), min(len(message.keys), len(pending.done) + num_pages))
            outcomes: list[FetchOutcome] = []
            for position in positions:
                content = pending.store.get(message.keys[position])
                hit = content is not None and outcome == "hit"
                self.host[message.host_page_ids[position]] = GARBAGE if content is None or not hit else content
                outcomes.append("hit" if hit else ("miss" if content is None else outcome))
            pending.done.extend(positions)
            self.report(
                PagesFetched(transfer_id=message.transfer_id, indices=tuple(positions), outcomes=tuple(outcomes))
            )
        if pending.is_stopped or len(pending.done) == len(message.keys):
            # Until now unreported pages might have been written to.
            for position in range(len(pending.done), len(message.keys)):
                self.host[message.host_page_ids[position]] = GARBAGE
            self.pending.remove(pending)
            self.report(
                FetchEnded(
                    transfer_id=message.transfer_id,
                    num_bytes=len(pending.done) * self.tiers.page_bytes,
                    first_seconds=0.001,
                    seconds=0.01,
                )
            )

    def _attach(self, pending: Pending) -> None:
        """A new store, in which there is nothing; messages that come from now on are for it."""
        self.store, self.is_attached = {}, True
        self.ever_stored = set()
        pending.is_swapped = True

    def _back_up(self, message: Backup, store: Store, fails: bool) -> None:
        for key, page_id in zip(message.keys, message.host_page_ids, strict=True):
            content = self.host[page_id].copy()
            if key in store:
                assert np.array_equal(store[key], content), "two contents under one key"
            if not fails:
                store[key] = content
                if store is self.store:
                    self.ever_stored.add(key)
        self.report(BackedUp(transfer_id=message.transfer_id, stored=(not fails,) * len(message.keys)))


def _copied(transfer_id: TransferId, fails: bool) -> CopyDone:
    return CopyDone(transfer_id=transfer_id, seconds=0.001, error="broken" if fails else None)
