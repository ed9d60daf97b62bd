"""When pages are copied down: from the device to the host, from the host to the store.

`write_through`: as soon as a node is complete. `write_through_selective`: once `hicache_selective_hits` requests have
used it. `write_back`: when it is among the pages that would be evicted next, early enough that eviction need not wait;
what must go before its copy is made goes without one.
"""

from __future__ import annotations

from typing import Final, assert_never

from pagefall.cache.changes import TierChange
from pagefall.cache.node import Device, Node
from pagefall.messages import BackedUp, Backup, CopyDone, Offload
from pagefall.scheduling.state import SchedulerState
from pagefall.scheduling.tiers import BackupRecord, TierState

_CLEAN_DIVISOR: Final = 8
"""`write_back` keeps so much of a pool ready to be dropped."""


def after_commit(state: SchedulerState, node: Node) -> None:
    """`node` ends pages that were just cached."""
    tiers = state.tiers
    if tiers is not None and tiers.config.hicache_write_policy == "write_through":
        _begin(tiers, node)


def after_hit(state: SchedulerState, node: Node) -> None:
    """A request uses the path to `node`: what was left out before, for want of room or of a store, is tried again."""
    tiers = state.tiers
    if tiers is None:
        return
    above = node
    while above.parent is not None and not _wants(tiers, above):
        above = above.parent
    if above.parent is None:
        return
    if isinstance(above.residence, Device):
        _begin(tiers, above)
    elif not above.is_stored:
        _queue_backup(tiers, above)


def keep_clean(state: SchedulerState) -> None:
    """`write_back`: copies down what would be evicted next, while there is time."""
    tiers = state.tiers
    if tiers is None or tiers.config.hicache_write_policy != "write_back":
        return
    host = tiers.host
    num_short = max(1, state.num_pages // _CLEAN_DIVISOR) - state.cache.stats().free
    if num_short > 0:
        for leaf in host.dirty_leaves(num_short):
            _begin(tiers, leaf)
    if tiers.has_storage and not tiers.pending_backups:
        num_short = max(1, host.num_pages // _CLEAN_DIVISOR) - host.num_free
        if num_short > 0:
            for leaf in host.unstored_leaves(num_short):
                _queue_backup(tiers, leaf)


def is_under_way(state: SchedulerState) -> bool:
    """Whether pages are pinned for their copy to the host, and may be evicted when it is over."""
    return state.tiers is not None and bool(state.tiers.offloads)


def makes_room(state: SchedulerState, num_pages: int) -> bool:
    """`write_back`: a request is about to take `num_pages` pages. True if it should wait for the copies of what it
    would evict, which are under way now: milliseconds, in which others go on.
    """
    tiers = state.tiers
    if tiers is None or tiers.config.hicache_write_policy != "write_back":
        return False
    num_short = num_pages - state.cache.stats().free
    if num_short <= 0:
        return False
    for leaf in tiers.host.dirty_leaves(num_short):
        _begin(tiers, leaf)
    return bool(tiers.offloads)


def offloaded(tiers: TierState, done: CopyDone) -> None:
    """A copy to the host is over: it goes on to the store, and what waited for it follows."""
    lease = tiers.offloads.pop(done.transfer_id)
    tiers.host.finish_offload(lease, copied=done.error is None)
    if done.error is not None:
        return
    if tiers.config.hicache_write_policy != "write_back":
        _queue_backup(tiers, lease.node)
    for child in list(lease.node.children.values()):
        if _wants(tiers, child):
            _begin(tiers, child)


def backed_up(state: SchedulerState, report: BackedUp) -> None:
    tiers = state.lower_tiers
    record = tiers.backups.pop(report.transfer_id)
    if record.store_number == tiers.store_number:
        tiers.host.mark_stored(record.pin, report.stored)
        keys = zip(tiers.host.page_keys(record.pin), report.stored, strict=True)
        stored = b"".join(key for key, is_stored in keys if is_stored)
        if stored:
            state.changes.append(TierChange("storage", stored))
    tiers.host.unpin(record.pin)
    _pump_backups(tiers)


def store_attached(tiers: TierState) -> None:
    """Nothing is in the store, as far as anyone knows. What a policy has copied to the host already goes on to it."""
    if tiers.config.hicache_write_policy != "write_back":
        tiers.pending_backups.extend(tiers.host.unstored_leaves(tiers.host.num_pages))
    _pump_backups(tiers)


def _wants(tiers: TierState, node: Node) -> bool:
    """Whether the policy wants a copy of the node now."""
    match tiers.config.hicache_write_policy:
        case "write_through":
            return True
        case "write_through_selective":
            return node.num_hits >= tiers.config.hicache_selective_hits
        case "write_back":
            return False
        case _:
            assert_never(tiers.config.hicache_write_policy)


def _begin(tiers: TierState, node: Node) -> None:
    if not isinstance(node.residence, Device):
        return
    lease = tiers.host.begin_offload(node)
    if lease is None:
        if tiers.host.num_free < node.num_pages:  # else something above is on its way, and this follows it
            tiers.counters.num_skipped_offloads += 1
        return
    transfer_id = tiers.next_id()
    tiers.offloads[transfer_id] = lease
    tiers.outbox.append(
        Offload(transfer_id=transfer_id, device_page_ids=lease.device_page_ids, host_page_ids=lease.host_page_ids)
    )


def _queue_backup(tiers: TierState, node: Node) -> None:
    if not tiers.has_storage:
        return
    if len(tiers.pending_backups) == tiers.pending_backups.maxlen:
        tiers.counters.num_skipped_backups += 1
    tiers.pending_backups.append(node)
    _pump_backups(tiers)


def _pump_backups(tiers: TierState) -> None:
    """One at a time: writing is background work. A node evicted meanwhile is given up."""
    while tiers.pending_backups and not tiers.is_backing_up:
        node = tiers.pending_backups.popleft()
        if not _is_in_tree(node) or not node.is_on_host:
            tiers.counters.num_skipped_backups += 1
            continue
        pin = tiers.host.pin_copy(node)
        if pin is None:  # stored already
            continue
        transfer_id = tiers.next_id()
        tiers.backups[transfer_id] = BackupRecord(pin, tiers.store_number)
        tiers.outbox.append(
            Backup(transfer_id=transfer_id, keys=tiers.host.page_keys(pin), host_page_ids=pin.host_page_ids)
        )


def _is_in_tree(node: Node) -> bool:
    """A node leaves the tree only after everything below it, so its parent is the one to ask."""
    return node.parent is not None and node.parent.children.get(node.key) is node
