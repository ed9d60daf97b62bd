"""The scheduler with lower tiers: a controller whose every move the test chooses, over real page contents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from tests.scheduling_driver import DEFAULT_CACHE, DEFAULT_SCHEDULER, Driver

from pagefall.config import CacheConfig, SchedulerConfig, TierConfig
from pagefall.messages import (
    BackedUp,
    Backup,
    ClearStorage,
    ControllerReport,
    CopyDone,
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
    StorageCleared,
    Tier,
    ToController,
    TransferId,
)
from pagefall.scheduling import reports

GARBAGE = 0xDEAD


@dataclass(eq=False)
class Pending:
    """A transfer that the controller was told of. `done`: positions of a fetch that were reported."""

    message: ToController
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
        store: dict[bytes, npt.NDArray[np.uint32]] | None = None,
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
        self.store: dict[bytes, npt.NDArray[np.uint32]] = {} if store is None else store
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
                self.pending.append(Pending(message))
        return self.pending

    def report(self, report: ControllerReport) -> None:
        flushed = reports.receive(self.state, report, now=self.now)
        if flushed is not None:
            self.num_flushed.append(flushed.num_pages)
        self.state.cache.check()

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
            case Lookup():
                present = next((i for i, key in enumerate(message.keys) if key not in self.store), len(message.keys))
                self.report(
                    LookedUp(
                        transfer_id=message.transfer_id,
                        num_present=0 if fails else present,
                        answer="timeout" if fails else "answered",
                        seconds=0.001,
                    )
                )
            case Backup():
                self._back_up(message, fails)
            case ClearStorage():
                num_pages = len(self.store)
                self.store.clear()
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
                content = self.store.get(message.keys[position])
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

    def _back_up(self, message: Backup, fails: bool) -> None:
        for key, page_id in zip(message.keys, message.host_page_ids, strict=True):
            content = self.host[page_id].copy()
            if key in self.store:
                assert np.array_equal(self.store[key], content), "two contents under one key"
            if not fails:
                self.store[key] = content
        self.report(BackedUp(transfer_id=message.transfer_id, stored=(not fails,) * len(message.keys)))


def _copied(transfer_id: TransferId, fails: bool) -> CopyDone:
    return CopyDone(transfer_id=transfer_id, seconds=0.001, error="broken" if fails else None)
