"""What the cache controller reports. All of it may be dealt with while a step is under way: nothing here touches pages
that a forward reads or writes.
"""

from __future__ import annotations

from typing import Final, assert_never

from pagefall.cache.changes import TierChange
from pagefall.messages import (
    BackedUp,
    CacheFlushed,
    ClearStorage,
    ControllerReport,
    CopyDone,
    DetachStorage,
    FetchEnded,
    FlushCache,
    LookedUp,
    PagesFetched,
    StorageChange,
    StorageChanged,
    StorageCleared,
    Tier,
)
from pagefall.scheduling import fetching, loading, offloading
from pagefall.scheduling.request import Prefilling
from pagefall.scheduling.state import SchedulerState
from pagefall.scheduling.tiers import FlushRecord, unknown_storage_link

_STORE_IS_EMPTY: Final = TierChange("storage", b"", "flushed")
_STORE_IS_ANOTHER: Final = TierChange("storage", b"")


def receive(state: SchedulerState, report: ControllerReport, *, now: float) -> CacheFlushed | StorageChanged | None:
    """Applies the report; returns what someone outside has been waiting for."""
    tiers = state.lower_tiers
    match report:
        case CopyDone():
            if report.transfer_id in tiers.offloads:
                offloading.offloaded(tiers, report)
            else:
                loading.loaded(state, report, now=now)
        case LookedUp():
            fetching.looked_up(state, report, now=now)
        case PagesFetched():
            record = tiers.fetches[report.transfer_id]
            fetching.pages_fetched(state, report, now=now)
            running = state.running.get(record.lookup.request_id)
            if isinstance(running, Prefilling) and running.arrivals is record.lookup.arrivals:
                loading.load_fetched(tiers, record.lookup.arrivals, running.lease)
        case FetchEnded():
            fetching.fetch_ended(state, report, now=now)
        case BackedUp():
            offloading.backed_up(state, report)
        case StorageCleared():
            return _storage_cleared(state, report)
        case StorageChanged():
            return _storage_changed(state, report)
        case _:
            assert_never(report)
    return None


def flush(state: SchedulerState, message: FlushCache, *, now: float) -> CacheFlushed | None:
    """Drops what nothing uses. None: the store has yet to answer. No step may be under way."""
    num_pages: dict[Tier, int] = {}
    tiers = state.tiers
    if "device" in message.tiers:
        num_pages["device"] = state.cache.flush(now)
    if "host" in message.tiers:
        num_pages["host"] = 0 if tiers is None else tiers.host.flush()
    if "storage" in message.tiers and tiers is not None and tiers.has_storage:
        transfer_id = tiers.next_id()
        tiers.flushes[transfer_id] = FlushRecord(message.flush_id, num_pages)
        tiers.outbox.append(ClearStorage(transfer_id=transfer_id))
        return None
    if "storage" in message.tiers:
        num_pages["storage"] = 0
    return CacheFlushed(flush_id=message.flush_id, num_pages=num_pages)


def change_storage(state: SchedulerState, message: StorageChange) -> None:
    """Has the controller change the store; its report is the answer.

    No one may be told to ask a store that is detached, so from here on there is none. A store that replaces another is
    only known when it is open: until then the old one is asked, and in between either may answer, both truly.
    """
    tiers = state.lower_tiers
    if isinstance(message, DetachStorage):
        tiers.has_storage = False
        tiers.store_number += 1
        tiers.pending_backups.clear()
    tiers.outbox.append(message)


def _storage_changed(state: SchedulerState, report: StorageChanged) -> StorageChanged:
    tiers = state.lower_tiers
    if report.error is None:
        _forget_store(state, _STORE_IS_ANOTHER)
    if report.is_attached and report.error is None:
        tiers.has_storage = True
        tiers.storage_link = unknown_storage_link()
        offloading.store_attached(tiers)
    return report


def _storage_cleared(state: SchedulerState, report: StorageCleared) -> CacheFlushed:
    tiers = state.lower_tiers
    _forget_store(state, _STORE_IS_EMPTY)
    record = tiers.flushes.pop(report.transfer_id)
    return CacheFlushed(
        flush_id=record.flush_id,
        num_pages={**record.num_pages, "storage": report.num_pages},
        storage_error=report.error,
    )


def _forget_store(state: SchedulerState, change: TierChange) -> None:
    """Nothing is in the store, as far as anyone knows; nor does what is on its way from it, or to it, say otherwise."""
    state.changes.append(change)
    state.lower_tiers.store_number += 1
    state.lower_tiers.host.forget_stored()
