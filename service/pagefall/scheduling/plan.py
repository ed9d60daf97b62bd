"""What the next step computes.

Running answers come first, a token each; then prompts under way, in chunks, the most senior first; then new requests,
while there is budget, a place among the running ones, and pages. The budget (`chunked_prefill_size`) counts the tokens
of a step, which bounds how long it takes: a long prompt never stalls the answers beside it.
"""

from __future__ import annotations

from typing import Final

from pagefall.messages import SequenceStep, StepPlan
from pagefall.scheduling import fetching, loading, offloading, transitions
from pagefall.scheduling.arrivals import Arrivals
from pagefall.scheduling.policy import WINDOW, admission_order, count_overtakes, is_overdue
from pagefall.scheduling.request import Decoding, Prefilling, Request, Running, Waiting
from pagefall.scheduling.sharing import find_shared_prefill, is_under_way
from pagefall.scheduling.state import SchedulerState

MIN_PREFILL_TOKENS: Final = 64
"""What prompts get of a step at least (or `chunked_prefill_size`, if less), however many answers run."""

MAX_SCORED_TOKENS: Final = 128
"""Of a prompt whose tokens are all scored, in one step: each has a row of logits as wide as the vocabulary."""

CHUNK_ALIGNMENT: Final = 16
"""A chunk that is not the last one ends at such a position, so that whole pages are cached and tiles are full."""

RESERVE_TOKENS: Final = 128
"""A request starts only where it and all that run could each get so many tokens more (or all their answer may still
have, if less) before pages run out: preempting recomputes, so it should be rare."""


def plan_step(state: SchedulerState, *, step: int, now: float) -> StepPlan:
    """Decides the next step and takes the pages for it. Empty only if nothing waits or runs, or if all that does
    stands back for pages from lower tiers: for their arrival, or until `state.wake_at`.

    Costs O(running + `WINDOW` + those that stand back), however long the queue is.
    """
    num_preemptions = state.counters.num_preemptions
    state.wake_at = None
    state.pins.expire(now)
    offloading.keep_clean(state)
    decodes = [
        _sequence(decoding, decoding.num_computed, decoding.request.num_tokens, state.page_size)
        for decoding in _decodes_with_pages(state, now)
    ]
    budget = max(state.config.chunked_prefill_size - len(decodes), _min_prefill_tokens(state))
    chunks = _Chunks(state, budget=budget, now=now)
    for running in state.running.in_order():
        if isinstance(running, Prefilling):
            loading.advance(state, running, now=now)
            chunks.add(running)
    if state.counters.num_preemptions == num_preemptions:  # else pages are short: whoever gave them up goes first
        _admit(state, chunks, now)
    sequences = (*decodes, *chunks.sequences)
    if not sequences:  # the runner hears of what ended with the next step that there is
        return StepPlan(step=step, sequences=())
    ended, state.ended = tuple(state.ended), []
    return StepPlan(step=step, sequences=sequences, ended=ended)


class _Chunks:
    """The prompts' share of the step: each gets as much as it needs and the budget still allows."""

    def __init__(self, state: SchedulerState, *, budget: int, now: float) -> None:
        self.budget = budget
        self._half = budget // 2
        self.prefills: list[Prefilling] = []
        self.sequences: list[SequenceStep] = []
        self._state = state
        self._now = now

    def add(self, prefilling: Prefilling) -> None:
        self.prefills.append(prefilling)
        if not self.budget:
            return
        span = loading.next_span(self._state, prefilling, now=self._now)
        if span is None:
            _wake_for(self._state, prefilling.arrivals, self._now)
            return
        start, end = span
        if prefilling.request.is_scored:
            end = min(end, start + MAX_SCORED_TOKENS)
        if end - start <= self.budget:
            self.budget -= end - start
        elif self.budget < self._half:
            # A step this large is no quicker for each token than two of its parts: the prompts in it are not made to
            # wait for a part of one that will not get its first token from it.
            self.budget = 0
            return
        else:
            # The step is full now: the few tokens that alignment leaves are not worth beginning another prompt.
            end, self.budget = _aligned(start, start + self.budget), 0
        loading.planned(self._state, prefilling, end)
        self.sequences.append(_sequence(prefilling, start, end, self._state.page_size))


def _wake_for(state: SchedulerState, arrivals: Arrivals | None, now: float) -> None:
    """Someone stands back: for a copy, of which a report will come, or for the store, until a certain time."""
    if arrivals is None or not arrivals.is_waiting(now):
        return
    if state.wake_at is None or arrivals.waits_until < state.wake_at:
        state.wake_at = arrivals.waits_until


def _aligned(start: int, end: int) -> int:
    aligned = end // CHUNK_ALIGNMENT * CHUNK_ALIGNMENT
    return aligned if aligned > start else end


def _sequence(running: Running, start: int, end: int, page_size: int) -> SequenceStep:
    """Positions `[start, end)` of the request, which samples a token if they are its last ones."""
    request = running.request
    return SequenceStep(
        request_id=request.request_id,
        token_ids=request.token_ids[:end],
        start=start,
        page_ids=running.lease.page_ids[: -(-end // page_size)],
        num_prompt_tokens=request.num_prompt_tokens,
        sampling=request.submit.sampling if end == request.num_tokens and request.num_remaining_tokens else None,
        scored=request.scored(start, end),
    )


def _decodes_with_pages(state: SchedulerState, now: float) -> list[Decoding]:
    """The decoding requests, each with a slot for its next token.

    Where pages run out the least senior request gives way; but nobody does while pages are being copied down, which can
    be evicted in a moment: those without a slot sit out. Whoever is served here is more senior than those that give way
    afterwards, so nobody leaves who has been served.
    """
    decodes = []
    for running in state.running.in_order():
        if not isinstance(running, Decoding):
            continue
        while running in state.running:
            if state.cache.grow(running.lease, running.request.num_tokens, now=now):
                decodes.append(running)
                break
            if state.pins.give_way():
                continue
            if offloading.is_under_way(state):
                break
            transitions.preempt(state, _least_senior(state), now=now)
    return decodes


def _least_senior(state: SchedulerState) -> Running:
    """Who gives way. Not a request that was resumed and has no new token yet: it would never get anywhere.

    Only called when a request that decodes needs a page, so that there is one that may give way.
    """
    return next(
        running
        for running in reversed(state.running.in_order())
        if isinstance(running, Decoding) or not running.request.num_preemptions
    )


def _admit(state: SchedulerState, chunks: _Chunks, now: float) -> None:
    """Starts waiting requests. One that must wait lets those behind it pass, unless it is overdue for want of pages."""
    num_places = state.config.max_running_requests - len(state.running)
    if not num_places or not chunks.budget or not len(state.queue):
        return
    num_spare_pages = state.cache.num_available - sum(
        max(0, _num_reserved_pages(state, running.request) - running.lease.num_pages)
        for running in state.running.in_order()
    )
    window = _window(state, now)
    for waiting in window:
        fetching.ask(state, waiting, now=now)
    for waiting in admission_order(window, state.config.schedule_policy, lambda w: _num_cached_tokens(state, w)):
        if not num_places or not chunks.budget:
            return
        if waiting.arrivals is not None and waiting.arrivals.is_waiting(now):
            _wake_for(state, waiting.arrivals, now)
            continue
        if waiting.awaited is not None and is_under_way(waiting.awaited, state.running):
            continue
        request = waiting.request
        match = state.cache.match(request.root, request.matchable_token_ids)
        if state.shares_prefixes and not request.is_scored:
            waiting.awaited = find_shared_prefill(request, match.num_tokens, chunks.prefills, page_size=state.page_size)
            if waiting.awaited is not None:
                continue
        # Cached pages that nobody pins are available now and will not be once this request reads them.
        num_new_pages = _num_reserved_pages(state, request) - match.num_tokens // state.page_size
        num_needed = num_new_pages + match.num_unpinned_pages
        if num_needed > num_spare_pages:
            if not len(state.running) and state.pins.num_pages:
                state.pins.clear()  # with them it would never start
                _admit(state, chunks, now)
                return
            if is_overdue(waiting):
                return
            continue
        num_available = state.cache.num_available
        if not waiting.has_made_room and offloading.makes_room(state, num_new_pages):
            waiting.has_made_room = True
            num_spare_pages -= num_available - state.cache.num_available  # those being copied stay for now
            continue
        count_overtakes(window, waiting)
        chunks.add(transitions.start(state, waiting, now=now))
        num_places -= 1
        num_spare_pages -= num_needed


def _window(state: SchedulerState, now: float) -> list[Waiting]:
    """The head of the queue, `WINDOW` requests at most, without those that stand back for lower tiers: however many
    these are, they hold nobody up.
    """
    window = []
    for waiting in state.queue.in_order():
        if waiting.arrivals is not None and waiting.arrivals.is_waiting(now):
            _wake_for(state, waiting.arrivals, now)
            continue
        window.append(waiting)
        if len(window) == WINDOW:
            break
    return window


def _num_cached_tokens(state: SchedulerState, waiting: Waiting) -> int:
    """How much of the request was cached when last looked; it is looked again only once more has been cached."""
    if waiting.matched_at != state.cache_version:
        waiting.matched_at = state.cache_version
        match = state.cache.match(waiting.request.root, waiting.request.matchable_token_ids)
        waiting.num_matched_tokens = match.num_tokens + match.num_host_tokens
    return waiting.num_matched_tokens


def _num_reserved_pages(state: SchedulerState, request: Request) -> int:
    """Pages for all the request has and for `RESERVE_TOKENS` more."""
    return state.num_pages_for(request.num_tokens + min(request.num_remaining_tokens, RESERVE_TOKENS))


def _min_prefill_tokens(state: SchedulerState) -> int:
    return min(state.config.chunked_prefill_size, MIN_PREFILL_TOKENS)
