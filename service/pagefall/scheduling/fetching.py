"""From the store into the host pool, for a request that wants its pages: asking, deciding, receiving.

How long a request stands back for what it asked for, by `hicache_storage_prefetch_policy`:

- `best_effort`: not at all; it uses what has arrived when it is scheduled.
- `wait_complete`: until every page the store has is here, unless the store falls silent.
- `timeout`: until all is here, at most base + per-1k-token seconds.
- `auto`: as long as that cannot cost more than a tenth of computing the pages. It then computes from the front while
  the store loads from the back, until they meet; where loading is much slower than computing it does not load at all.
"""

from __future__ import annotations

from typing import Final, assert_never

import numpy as np

from pagefall.cache.keys import page_keys
from pagefall.config import TierConfig
from pagefall.messages import Fetch, FetchEnded, LookedUp, Lookup, PagesFetched, StopFetch
from pagefall.scheduling.arrivals import ABSENT, FETCHED, FETCHING, Arrivals, LookupRecord
from pagefall.scheduling.request import Request, Waiting
from pagefall.scheduling.state import SchedulerState
from pagefall.scheduling.tiers import FetchRecord, TierState
from pagefall.scheduling.trace import Estimates

_RISKED_SHARE: Final = 0.1
"""`auto` waits at most for this share of the time that computing would take."""

_LOOKUP_SHARE: Final = 0.04
_UNKNOWN_COST_SECONDS: Final = 0.5
"""How long `auto` waits while it does not know yet what computing costs."""

_SHORTEST_WAIT_SECONDS: Final = 0.02
_HOPELESS: Final = 8.0
"""Loading that takes so many times as long as computing saves less than it disturbs..."""

_TRY_AGAIN_EVERY: Final = 16
"""... but so often it is tried all the same: the store may have become faster."""


def ask(state: SchedulerState, waiting: Waiting, *, now: float) -> None:
    """A request is near its start: keeps what the host has of it, and asks the store for the rest if that is worth it.

    Does so once in the request's life; later calls do nothing.
    """
    if waiting.has_asked:
        return
    waiting.has_asked = True
    tiers = state.tiers
    if tiers is None or not state.shares_prefixes or waiting.request.is_scored:
        return
    request = waiting.request
    num_usable = (request.num_tokens - 1) // state.page_size
    match = state.cache.match(request.root, request.token_ids)
    first_page = (match.num_tokens + match.num_host_tokens) // state.page_size
    num_wanted = (num_usable - first_page) * state.page_size
    asks = tiers.has_storage and num_wanted >= max(1, tiers.config.hicache_prefetch_threshold)
    if tiers.has_storage and num_wanted > 0 and not asks:
        request.trace.decision = "below_threshold"
    if not match.num_host_tokens and not asks:
        return
    arrivals = waiting.arrivals = Arrivals(num_usable, request.trace, now=now)
    arrivals.low_page = match.num_tokens // state.page_size
    if match.num_host_tokens:
        arrivals.pin = state.cache.pin_host_match(request.root, request.token_ids)
    if not asks:
        return
    keys = tuple(page_keys(request.root, request.token_ids[: num_usable * state.page_size], state.page_size))
    arrivals.store_number = tiers.store_number
    transfer_id = arrivals.lookup = tiers.next_id()
    tiers.lookups[transfer_id] = LookupRecord(arrivals, request.request_id, first_page, keys[first_page:])
    tiers.outbox.append(Lookup(transfer_id=transfer_id, keys=keys[first_page:]))
    tiers.counters.num_lookups += 1
    request.trace.first_asked_page = first_page
    request.trace.can_overtake = tiers.config.hicache_storage_prefetch_policy == "auto"
    arrivals.waits_until = now + _lookup_wait(state, tiers, first_page, num_wanted)


def looked_up(state: SchedulerState, report: LookedUp, *, now: float) -> None:
    """The store has said how much it has: decides whether and how to load it."""
    tiers = state.lower_tiers
    record = tiers.lookups.pop(report.transfer_id)
    arrivals = record.arrivals
    arrivals.lookup = None
    request = state.request(record.request_id)
    if arrivals.store_number != tiers.store_number:
        return
    if report.answer == "answered":
        tiers.storage_link.observe_latency(report.seconds)
    if arrivals.is_abandoned or request is None:
        return
    trace = arrivals.trace
    trace.storage_answer, trace.num_present_pages = report.answer, report.num_present
    first = max(record.first_page, arrivals.low_page)
    end = record.first_page + report.num_present
    if end <= first or (arrivals.has_started and tiers.config.hicache_storage_prefetch_policy != "auto"):
        return
    if _is_worth_loading(state, tiers, request, first, end - first):
        _fetch(state, tiers, record, range(first, end), waiting_since=arrivals.asked_at, now=now)


def _fetch(
    state: SchedulerState, tiers: TierState, record: LookupRecord, wanted: range, *, waiting_since: float, now: float
) -> None:
    """Begins to read the pages `wanted` of the prompt, as many as there is room for; the others follow."""
    first, end = wanted.start, wanted.stop
    arrivals = record.arrivals
    host_page_ids = tiers.host.reserve(min(end - first, tiers.num_fetchable_pages))
    arrivals.trace.pages_without_room = range(first + len(host_page_ids), end)
    if not len(host_page_ids):
        arrivals.rest = (record, wanted)
        return
    pages = np.arange(first, first + len(host_page_ids))
    if tiers.config.hicache_storage_prefetch_policy == "auto":
        pages = pages[::-1].copy()
    transfer_id = arrivals.fetch = tiers.next_id()
    tiers.fetches[transfer_id] = FetchRecord(
        record, pages, host_page_ids, np.zeros(len(pages), dtype=np.bool_), rest=range(first + len(pages), end)
    )
    arrivals.is_fetch_stopped = False
    arrivals.states[pages] = FETCHING
    arrivals.fetch_began_at = now
    num_bytes = len(pages) * tiers.page_bytes
    load_seconds = tiers.storage_link.estimate(num_bytes)
    arrivals.first_seconds = tiers.storage_link.estimate(0)
    arrivals.seconds_a_page = load_seconds / len(pages)
    compute_seconds = state.compute_seconds(first * state.page_size, len(pages) * state.page_size)
    arrivals.num_fetched = 0
    arrivals.waits_until = _fetch_wait(
        tiers.config, len(pages) * state.page_size, load_seconds, compute_seconds, waiting_since, now
    )
    tiers.outbox.append(
        Fetch(
            transfer_id=transfer_id,
            keys=tuple(record.keys[page - record.first_page] for page in pages.tolist()),
            host_page_ids=host_page_ids,
        )
    )


def pages_fetched(state: SchedulerState, report: PagesFetched, *, now: float) -> None:
    """Some pages are in host memory, or will not be."""
    tiers = state.lower_tiers
    record = tiers.fetches[report.transfer_id]
    arrivals = record.lookup.arrivals
    trace = arrivals.trace
    for index, outcome in zip(report.indices, report.outcomes, strict=True):
        record.reported[index] = True
        page, host_page_id = int(record.pages[index]), record.host_page_ids[index : index + 1]
        if outcome != "hit":
            trace.outcomes[page] = outcome
        if outcome == "hit":
            arrivals.num_fetched += 1
            tiers.counters.num_fetched_pages += 1
        if outcome == "hit" and not arrivals.is_abandoned and arrivals.states[page] == FETCHING:
            arrivals.states[page] = FETCHED
            arrivals.from_storage[page] = True
            arrivals.held[page] = int(host_page_id[0])
            continue
        tiers.host.give_back(host_page_id)
        if arrivals.states[page] == FETCHING:
            arrivals.states[page] = ABSENT
    if tiers.config.hicache_storage_prefetch_policy == "wait_complete":
        arrivals.waits_until = now + 2 * tiers.config.hicache_storage_deadline


def fetch_ended(state: SchedulerState, report: FetchEnded, *, now: float) -> None:
    """Nothing of it is written any more: what was not reported is free. What had no room before is read now."""
    tiers = state.lower_tiers
    record = tiers.fetches.pop(report.transfer_id)
    arrivals = record.lookup.arrivals
    arrivals.fetch = None
    states = arrivals.states
    unread = record.pages[~record.reported]
    states[unread[states[unread] == FETCHING]] = ABSENT
    tiers.host.give_back(record.host_page_ids[~record.reported])
    if arrivals.store_number == tiers.store_number:
        tiers.storage_link.observe(
            first_seconds=report.first_seconds, seconds=report.seconds, num_bytes=report.num_bytes
        )
    if record.rest and record.reported.all():
        arrivals.rest = (record.lookup, record.rest)
        resume(state, arrivals, now=now)


def resume(state: SchedulerState, arrivals: Arrivals, *, now: float) -> None:
    """Reads on where the host had no room for all that the store has, if it has now."""
    tiers = state.lower_tiers
    if arrivals.rest is None or arrivals.fetch is not None or not tiers.num_fetchable_pages:
        return
    if arrivals.is_abandoned or tiers.config.hicache_storage_prefetch_policy != "auto":
        return
    if arrivals.store_number != tiers.store_number:
        return
    (lookup, rest), arrivals.rest = arrivals.rest, None
    first = max(rest.start, arrivals.low_page)
    if first < rest.stop:
        _fetch(state, tiers, lookup, range(first, rest.stop), waiting_since=now, now=now)


def stop(tiers: TierState, arrivals: Arrivals) -> None:
    """What is still being fetched is not wanted any more."""
    if arrivals.fetch is not None and not arrivals.is_fetch_stopped:
        arrivals.is_fetch_stopped = True
        tiers.outbox.append(StopFetch(transfer_id=arrivals.fetch))
    fetching = arrivals.states == FETCHING
    tiers.counters.num_overtaken_pages += int(fetching.sum())
    arrivals.states[fetching] = ABSENT


def overtake(tiers: TierState, arrivals: Arrivals, first: int, end: int) -> None:
    """Pages `[first, end)` are computed now, whatever the store sends."""
    arrivals.low_page = max(arrivals.low_page, end)
    part = arrivals.states[first:end]
    fetching = part == FETCHING
    if fetching.any():
        part[fetching] = ABSENT
        tiers.counters.num_overtaken_pages += int(fetching.sum())
        if arrivals.fetch is not None and not (arrivals.states == FETCHING).any():
            stop(tiers, arrivals)


def _lookup_wait(state: SchedulerState, tiers: TierState, first_page: int, num_wanted: int) -> float:
    """Seconds a request stands back until the store has said what it has."""
    config = tiers.config
    match config.hicache_storage_prefetch_policy:
        case "best_effort":
            return 0.0
        case "wait_complete":
            return 2 * config.hicache_storage_deadline
        case "timeout":
            return _timeout(config, num_wanted)
        case "auto":
            compute = state.compute_seconds(first_page * state.page_size, num_wanted)
            wait = _UNKNOWN_COST_SECONDS if compute is None else max(_SHORTEST_WAIT_SECONDS, _LOOKUP_SHARE * compute)
            return min(wait, config.hicache_storage_deadline)
        case _:
            assert_never(config.hicache_storage_prefetch_policy)


def _fetch_wait(
    config: TierConfig,
    num_tokens: int,
    load_seconds: float,
    compute_seconds: float | None,
    waiting_since: float,
    now: float,
) -> float:
    """The time until which a request stands back for `num_tokens` that are on their way."""
    match config.hicache_storage_prefetch_policy:
        case "best_effort":
            return now
        case "wait_complete":
            return now + 2 * config.hicache_storage_deadline
        case "timeout":
            return waiting_since + _timeout(config, num_tokens)
        case "auto":
            if compute_seconds is None:
                return waiting_since + _UNKNOWN_COST_SECONDS
            if load_seconds > compute_seconds / 3:
                return now  # two ends at once are quicker than either
            return min(now + 2 * load_seconds + _SHORTEST_WAIT_SECONDS, waiting_since + _RISKED_SHARE * compute_seconds)
        case _:
            assert_never(config.hicache_storage_prefetch_policy)


def _timeout(config: TierConfig, num_tokens: int) -> float:
    return config.hicache_prefetch_timeout_base + config.hicache_prefetch_timeout_per_ki_token * num_tokens / 1024


def _is_worth_loading(state: SchedulerState, tiers: TierState, request: Request, first: int, num_pages: int) -> bool:
    """The cost model's word, with its inputs left in the request's trace. Only `auto` asks for it."""
    load = tiers.storage_link.estimate(num_pages * tiers.page_bytes)
    compute = state.compute_seconds(first * state.page_size, num_pages * state.page_size)
    trace = request.trace
    trace.storage_estimates = Estimates(load, compute)
    trace.decision = "load"
    if tiers.config.hicache_storage_prefetch_policy != "auto" or compute is None:
        return True
    if load > compute / 3:
        trace.decision = "two_ended"
    if load <= _HOPELESS * compute:
        return True
    tiers.counters.num_declined_fetches += 1
    if tiers.counters.num_declined_fetches % _TRY_AGAIN_EVERY == 0:
        return True
    trace.decision = "recompute"
    return False
