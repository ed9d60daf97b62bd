"""From the host pool to the device, into the pages of a request that has started; and what part of it to compute.

A request owns device pages for its whole prompt from its start. Pages that come from lower tiers are copied into these
and are nobody else's until the prompt's computed part reaches them: then they are cached like any others.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pagefall.cache.host_tier import HostPin
from pagefall.cache.lease import Lease
from pagefall.messages import CopyDone, LoadBack, PageIds
from pagefall.scheduling import fetching, offloading, survey
from pagefall.scheduling.arrivals import ABSENT, COPYING, FETCHED, FETCHING, READY, Arrivals
from pagefall.scheduling.request import Prefilling, Waiting
from pagefall.scheduling.state import SchedulerState
from pagefall.scheduling.tiers import LoadRecord, TierState
from pagefall.scheduling.trace import Estimates

MIN_CHUNK_TOKENS: Final = 64
"""What is computed at a time at least while the store loads towards it."""


PageIndices = npt.NDArray[np.int64]


class Span(NamedTuple):
    """Positions to compute next."""

    start: int
    end: int


def begin(state: SchedulerState, waiting: Waiting, lease: Lease, *, now: float) -> Arrivals | None:
    """The request has started on `lease`, which covers its prompt: what lower tiers have of it begins to come."""
    tiers = state.tiers
    if tiers is None:
        return None
    request, arrivals = waiting.request, waiting.arrivals
    waiting.arrivals = None
    pin = state.cache.pin_host_match(request.root, request.matchable_token_ids)
    if pin is not None and not _is_quicker_than_computing(state, lease.num_shared_pages, pin.num_pages):
        trace = request.trace
        trace.declined_host_pages = range(lease.num_shared_pages, lease.num_shared_pages + pin.num_pages)
        trace.host_estimates = _estimates(state, lease.num_shared_pages, pin.num_pages)
        tiers.host.unpin(pin)
        pin = None
    if arrivals is None and pin is None:
        return None
    if arrivals is None:
        arrivals = Arrivals((request.num_tokens - 1) // state.page_size, request.trace, now=now)
    arrivals.has_started = True
    if arrivals.pin is not None:
        tiers.host.unpin(arrivals.pin)
        arrivals.pin = None
    first = lease.num_shared_pages
    end = first + (0 if pin is None else pin.num_pages)
    _drop(tiers, arrivals, np.flatnonzero(arrivals.states[:end] == FETCHED))
    fetching.overtake(tiers, arrivals, 0, end)
    if pin is not None:
        tiers.host.record_hit(pin, now=now)
        offloading.after_hit(state, pin.node)
        _load(tiers, arrivals, lease, np.arange(first, end), pin.host_page_ids, pin)
    if tiers.config.hicache_storage_prefetch_policy != "auto":
        fetching.stop(tiers, arrivals)
    load_fetched(tiers, arrivals, lease)
    return arrivals


def load_fetched(tiers: TierState, arrivals: Arrivals, lease: Lease) -> None:
    """Pages that have come from the store go on to the device."""
    pages = np.flatnonzero(arrivals.states == FETCHED)
    if len(pages):
        held = np.array([arrivals.held[page] for page in pages.tolist()], dtype=np.int32)
        _load(tiers, arrivals, lease, pages, held, None)


def loaded(state: SchedulerState, report: CopyDone, *, now: float) -> None:
    """Pages are on the device, unless the copy failed: then they are computed."""
    tiers = state.lower_tiers
    record = tiers.loads.pop(report.transfer_id)
    arrivals = record.arrivals
    if record.pin is not None:
        tiers.host.unpin(record.pin)
    if report.error is None:
        arrivals.states[record.pages] = READY
        num_bytes = len(record.pages) * tiers.page_bytes
        tiers.host_link.observe(first_seconds=0.0, seconds=report.seconds, num_bytes=num_bytes)
    else:
        arrivals.states[record.pages] = ABSENT
        arrivals.trace.failed_copies.update(record.pages.tolist())
    if arrivals.is_abandoned or report.error is not None:
        _drop(tiers, arrivals, record.pages)
    if arrivals.lease is not None and not arrivals.is_copying:
        state.cache.release(arrivals.lease, now=now)
        arrivals.lease = None


def advance(state: SchedulerState, prefilling: Prefilling, *, now: float) -> None:
    """Jumps over the pages that are ready where the computed part ends. No step of the request may be under way."""
    arrivals = prefilling.arrivals
    if arrivals is None or prefilling.num_computed % state.page_size:
        return
    tiers, request, lease = state.lower_tiers, prefilling.request, prefilling.lease
    page = prefilling.num_computed // state.page_size
    while page < len(arrivals.states) and arrivals.states[page] == READY:
        end = arrivals.run_of(page, READY)
        others = np.flatnonzero(arrivals.from_storage[page:end] != arrivals.from_storage[page])
        end = page + int(others[0]) if len(others) else end
        is_from_storage = bool(arrivals.from_storage[page])
        prefilling.num_computed = end * state.page_size
        state.cache.commit(lease, request.token_ids[: prefilling.num_computed], now=now)
        state.cache_version += 1
        arrivals.states[page:end] = ABSENT
        if is_from_storage:
            held = np.array([arrivals.held.pop(index) for index in range(page, end)], dtype=np.int32)
            is_stored = arrivals.store_number == tiers.store_number
            num_attached = tiers.host.attach(lease.node, held, is_stored=is_stored)
            tiers.host.give_back(held[: len(held) - num_attached])
        request.reach(prefilling.num_computed, "storage" if is_from_storage else "host", page * state.page_size)
        survey.absorb(state, request, now=now)
        offloading.after_commit(state, lease.node)
        page = end
    arrivals.low_page = max(arrivals.low_page, page)
    fetching.resume(state, arrivals, now=now)


def next_span(state: SchedulerState, prefilling: Prefilling, *, now: float) -> Span | None:
    """What to compute of the prompt next; None while it stands back for pages that are coming."""
    start, end = prefilling.num_computed, prefilling.request.num_tokens
    arrivals, page_size = prefilling.arrivals, state.page_size
    if arrivals is None:
        return Span(start, end)
    page = start // page_size
    if start % page_size == 0 and page < len(arrivals.states):
        if arrivals.states[page] == COPYING:
            return None
        if arrivals.states[page] == FETCHING and arrivals.is_waiting(now):
            return None
    certain = arrivals.next_in(page + (start % page_size > 0), (COPYING, READY))
    if certain < len(arrivals.states):
        end = certain * page_size
    first_fetching = arrivals.next_in(page, (FETCHING,))
    if first_fetching * page_size < end and first_fetching < len(arrivals.states):
        end = _meeting_point(state, arrivals, start, first_fetching, end, now)
    return Span(start, end)


def planned(state: SchedulerState, prefilling: Prefilling, end: int) -> None:
    """Positions up to `end` are computed in the coming step."""
    if prefilling.arrivals is not None:
        end_page = -(-end // state.page_size)
        fetching.overtake(state.lower_tiers, prefilling.arrivals, prefilling.num_computed // state.page_size, end_page)


def abandon(tiers: TierState, arrivals: Arrivals, lease: Lease | None) -> bool:
    """The request is gone, or starts anew. True: `lease` must outlive it until the copies under way are over, and is
    released then.
    """
    arrivals.is_abandoned = True
    fetching.stop(tiers, arrivals)
    if arrivals.pin is not None:
        tiers.host.unpin(arrivals.pin)
        arrivals.pin = None
    _drop(tiers, arrivals, np.flatnonzero((arrivals.states == FETCHED) | (arrivals.states == READY)))
    if lease is None or not arrivals.is_copying:
        return False
    arrivals.lease = lease
    return True


def _meeting_point(
    state: SchedulerState, arrivals: Arrivals, start: int, first_fetching: int, end: int, now: float
) -> int:
    """Where computing from `start` meets the store, which loads towards it from `end`."""
    page_size = state.page_size
    last_fetching = int(np.flatnonzero(arrivals.states == FETCHING)[-1])
    gap_start, gap_end = max(start, first_fetching * page_size), min(end, (last_fetching + 1) * page_size)
    compute = state.compute_seconds(start, gap_end - start)
    pace = arrivals.fetch_seconds_a_page(now)
    if compute is None or pace == float("inf"):
        return end
    compute_pace = compute / max(1, (gap_end - start) // page_size)
    num_pages = int((gap_end - gap_start) / page_size * pace / max(pace + compute_pace, 1e-9))
    num_tokens = max(gap_start - start + num_pages * page_size, MIN_CHUNK_TOKENS)
    return min(end, -(-(start + num_tokens) // page_size) * page_size)


def _is_quicker_than_computing(state: SchedulerState, first_page: int, num_pages: int) -> bool:
    """Whether the host's pages come sooner than they could be computed. Where nothing was measured yet they do."""
    load, compute = _estimates(state, first_page, num_pages)
    return load is None or compute is None or load < compute


def _estimates(state: SchedulerState, first_page: int, num_pages: int) -> Estimates:
    tiers = state.lower_tiers
    compute = state.compute_seconds(first_page * state.page_size, num_pages * state.page_size)
    return Estimates(tiers.host_link.estimate(num_pages * tiers.page_bytes), compute)


def _load(
    tiers: TierState,
    arrivals: Arrivals,
    lease: Lease,
    pages: PageIndices,
    host_page_ids: PageIds,
    pin: HostPin | None,
) -> None:
    """Begins to copy `host_page_ids` into the lease's device pages for `pages` of the prompt."""
    arrivals.states[pages] = COPYING
    transfer_id = tiers.next_id()
    tiers.loads[transfer_id] = LoadRecord(arrivals, lease, pages, pin)
    tiers.outbox.append(
        LoadBack(transfer_id=transfer_id, host_page_ids=host_page_ids, device_page_ids=lease.page_ids[pages])
    )


def _drop(tiers: TierState, arrivals: Arrivals, pages: PageIndices) -> None:
    """Gives back the host pages held for `pages`, as far as there are any; copies of them are over or never began."""
    held = [arrivals.held.pop(page) for page in pages.tolist() if page in arrivals.held]
    tiers.host.give_back(np.array(held, dtype=np.int32))
    arrivals.from_storage[pages] = False  # should they come after all, it is from the host
    states = arrivals.states[pages]
    arrivals.states[pages[states != COPYING]] = ABSENT
