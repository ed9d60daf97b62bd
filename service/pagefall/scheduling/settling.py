"""A prompt's account is closed: where each of its tokens came from, and why the rest did not come from the cache.

Everything is counted here, once in a request's life. Pages are judged in runs: between two neighbouring boundaries (the
end of what was known, of what the store had, a page of which something is known, ...) all pages have the same reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from msgspec import structs

from pagefall.messages import EvictionCause, MissedPages, MissReason, PrefixReport, Tier, TokenSource
from pagefall.scheduling.request import Request
from pagefall.scheduling.state import SchedulerState
from pagefall.scheduling.trace import CacheTrace, Survey

_FAILURES: Final = {"error": "it failed", "breaker_open": "it had failed before, and was not asked"}

_NOTHING_KNOWN: Final = Survey(0, (), 0, has_next=False, divergence=None)


def settle(state: SchedulerState, request: Request, *, now: float) -> PrefixReport:
    """When the first token is sampled, or when the request ends without one. Counts everything, once."""
    request.is_settled = True
    trace, page_size, num_tokens = request.trace, state.page_size, request.num_prompt_tokens
    survey = trace.survey or _NOTHING_KNOWN
    sources: dict[TokenSource, int] = {
        "device": 0,
        "host": 0,
        "storage": 0,
        "computed": request.num_reached - request.num_cached_tokens,
        "unreached": num_tokens - request.num_reached,
    }
    for span in trace.spans:
        sources[span.tier] += span.end - span.start
    misses = tuple(_misses(state, request, survey, now=now))
    num_known = min(survey.num_known_pages, (num_tokens - 1) // page_size) * page_size
    saved_seconds = sum(state.compute_seconds(span.start, span.end - span.start) or 0.0 for span in trace.spans)
    report = PrefixReport(
        page_size=page_size,
        num_prompt_tokens=num_tokens,
        num_tokens_by_source=sources,
        num_known_tokens=max(num_known, request.num_cached_tokens),
        misses=misses,
        divergence=survey.divergence,
        saved_seconds=saved_seconds,
        queue_seconds=(request.began_at if request.has_begun else now) - request.arrived_at,
    )
    _count(state, report)
    return report


def _count(state: SchedulerState, report: PrefixReport) -> None:
    counters, sources = state.counters, report.num_tokens_by_source
    counters.num_prompt_tokens += report.num_prompt_tokens
    counters.num_device_tokens += sources["device"]
    counters.num_host_tokens += sources["host"]
    counters.num_storage_tokens += sources["storage"]
    counters.num_cached_tokens += sources["device"] + sources["host"] + sources["storage"]
    counters.num_computed_tokens += sources["computed"]
    counters.num_unreached_tokens += sources["unreached"]
    counters.num_known_tokens += report.num_known_tokens
    counters.saved_seconds += report.saved_seconds
    if report.misses:
        missed = dict(counters.num_missed_tokens)  # snapshots have the former one
        for miss in report.misses:
            missed[miss.reason] = missed.get(miss.reason, 0) + miss.num_tokens
        counters.num_missed_tokens = missed


def _misses(state: SchedulerState, request: Request, survey: Survey, *, now: float) -> Iterator[MissedPages]:
    page_size, num_tokens = state.page_size, request.num_prompt_tokens
    started_at = request.began_at if request.has_begun else now
    current: MissedPages | None = None
    run = range(0)
    for first, end in _runs_not_cached(request, survey, page_size):
        judged = _judge(state, request, survey, first, started_at)
        if current == judged and run.stop == first:
            run = range(run.start, end)
            continue
        if current is not None:
            yield _at(current, run, page_size, num_tokens)
        current, run = judged, range(first, end)
    if current is not None:
        yield _at(current, run, page_size, num_tokens)


def _at(judged: MissedPages, run: range, page_size: int, num_prompt_tokens: int) -> MissedPages:
    num_tokens = min(run.stop * page_size, num_prompt_tokens) - run.start * page_size
    return structs.replace(judged, first_page=run.start, num_pages=len(run), num_tokens=num_tokens)


def _runs_not_cached(request: Request, survey: Survey, page_size: int) -> Iterator[tuple[int, int]]:
    """`[first, end)` of pages that were not cached, cut wherever the reason may change."""
    num_pages = -(-request.num_prompt_tokens // page_size)
    trace, tail = request.trace, (request.num_prompt_tokens - 1) // page_size
    cuts = {0, num_pages, tail, min(num_pages, -(-request.num_reached // page_size))}
    cuts |= {survey.num_tree_pages, survey.num_known_pages, survey.num_elsewhere_pages}
    cuts |= {
        survey.num_tree_pages + index
        for index in range(1, len(survey.evicted))
        if survey.evicted[index] is not survey.evicted[index - 1]
    }
    if trace.first_asked_page is not None:
        cuts |= {trace.first_asked_page, trace.first_asked_page + trace.num_present_pages}
    for run in (trace.declined_host_pages, trace.pages_without_room):
        cuts |= {run.start, run.stop}
    for page in (*trace.outcomes, *trace.failed_copies):
        cuts |= {page, page + 1}
    cached = sorted((span.start // page_size, span.end // page_size) for span in trace.spans if span.end > span.start)
    for first, end in cached:
        cuts |= {first, end}
    ordered = sorted(cut for cut in cuts if cut <= num_pages)
    for first, end in itertools.pairwise(ordered):
        while cached and cached[0][1] <= first:
            cached.pop(0)
        if not cached or first < cached[0][0]:
            yield first, end


def _judge(state: SchedulerState, request: Request, survey: Survey, page: int, started_at: float) -> MissedPages:
    """Why `page` was not cached; the run's place is filled in by the caller."""
    trace = request.trace
    if page * state.page_size >= request.num_reached:
        return _miss("unreached")
    if not state.shares_prefixes:
        return _miss("cache_disabled")
    if page == (request.num_prompt_tokens - 1) // state.page_size:
        return _miss("page_tail")
    if request.submit.wants_prompt_logprobs:
        return _miss("scored")
    if page in trace.failed_copies:
        return _miss("copy_failed")
    if page in trace.declined_host_pages:
        return _slower(trace.host_estimates.load_seconds, trace.host_estimates.compute_seconds, tier="host")
    if (asked := _judge_by_the_store(trace, page)) is not None:
        return asked
    if page < survey.num_tree_pages:  # it was there, and something quicker than its copy came first
        return _slower(None, None, tier="host")
    if page < survey.num_known_pages:
        return _judge_evicted(state, survey, trace, page, started_at)
    if page < survey.num_elsewhere_pages:
        return _miss("other_salt")
    # Of a prompt that has nothing in common with what this server knows, the store would have been the one to know.
    if trace.decision == "below_threshold" and not survey.num_known_pages and not survey.has_next:
        return _miss("below_threshold")
    return _miss("diverged" if survey.has_next else "never_seen")


def _judge_by_the_store(trace: CacheTrace, page: int) -> MissedPages | None:
    """None: the store was not asked for it, or answered that it does not have it."""
    if trace.first_asked_page is None or page < trace.first_asked_page:
        return None
    match trace.outcomes.get(page):
        case "miss":
            return _miss("evicted", tier="storage", cause="gone_from_store")
        case "corrupt":
            return _miss("corrupt", tier="storage")
        case "timeout":
            return _miss("timed_out", tier="storage", detail="reading it took too long")
        case "error" | "breaker_open" as outcome:
            return _miss("store_down", tier="storage", detail=_FAILURES[outcome])
    match trace.storage_answer:
        case None:
            return _miss("timed_out", tier="storage", detail="the store had not said what it has")
        case "timeout":
            return _miss("timed_out", tier="storage", detail="asking what it has took too long")
        case "error" | "breaker_open" as answer:
            return _miss("store_down", tier="storage", detail=_FAILURES[answer])
    if page >= trace.first_asked_page + trace.num_present_pages:
        return None
    estimates = trace.storage_estimates
    if trace.decision == "recompute":
        return _slower(estimates.load_seconds, estimates.compute_seconds, tier="storage")
    if page in trace.pages_without_room:
        return _miss("no_room", tier="host")
    if not trace.can_overtake:
        return _miss("timed_out", tier="storage", detail="it had not arrived when the request started")
    return _slower(estimates.load_seconds, estimates.compute_seconds, tier="storage")


def _judge_evicted(
    state: SchedulerState, survey: Survey, trace: CacheTrace, page: int, started_at: float
) -> MissedPages:
    fate = survey.evicted[page - survey.num_tree_pages]
    seconds_ago = max(0.0, started_at - fate.at)
    if fate.is_stored and state.tiers is not None and state.tiers.has_storage:
        if trace.first_asked_page is not None:
            return _miss("evicted", tier="storage", cause="gone_from_store")
        if trace.decision == "below_threshold":
            return _miss("below_threshold", tier="storage")
    return _miss("evicted", tier=fate.tier, cause=fate.cause, seconds_ago=seconds_ago)


def _slower(load_seconds: float | None, compute_seconds: float | None, *, tier: Tier) -> MissedPages:
    judged = _miss("slower_than_recompute", tier=tier)
    return structs.replace(judged, load_seconds=load_seconds, compute_seconds=compute_seconds)


def _miss(
    reason: MissReason,
    *,
    tier: Tier | None = None,
    cause: EvictionCause | None = None,
    seconds_ago: float | None = None,
    detail: str | None = None,
) -> MissedPages:
    """Without its place, which `_at` fills in."""
    return MissedPages(
        reason=reason,
        first_page=0,
        num_pages=0,
        num_tokens=0,
        tier=tier,
        cause=cause,
        seconds_ago=seconds_ago,
        detail=detail,
    )
