"""A request's steps from phase to phase, with its pages. No step may be under way: its forward reads them.

(submit) -> Waiting --start--> Prefilling --decode--> Decoding --end--> (gone)
^                  |                      |
+-----preempt------+----------------------+
"""

from __future__ import annotations

from pagefall.cache.errors import ConservationError
from pagefall.scheduling import loading, offloading, survey
from pagefall.scheduling.request import Decoding, Prefilling, Running, Waiting
from pagefall.scheduling.state import SchedulerState


def start(state: SchedulerState, waiting: Waiting, *, now: float) -> Prefilling:
    """Takes the request out of the queue and leases pages for all its tokens, the cached ones first.

    The caller has seen that there are enough.
    """
    request = waiting.request
    state.queue.remove(request.request_id)
    lease = state.cache.open(request.root, request.matchable_token_ids, now=now, priority=request.submit.priority)
    if not state.cache.grow(lease, request.num_tokens, now=now):
        raise ConservationError(f"no pages for {request.num_tokens} tokens, {state.cache.num_available} are available")
    if not request.has_begun:
        request.begin(now=now)
        survey.survey(state, request, now=now)
    request.reach(lease.num_cached_tokens, "device")
    offloading.after_hit(state, lease.node)
    arrivals = loading.begin(state, waiting, lease, now=now)
    prefilling = Prefilling(request, lease, num_computed=lease.num_cached_tokens, arrivals=arrivals)
    state.running.put(prefilling)
    return prefilling


def decode(state: SchedulerState, prefilling: Prefilling) -> Decoding:
    """Its tokens are computed and the next one is sampled."""
    if prefilling.arrivals is not None and state.tiers is not None:
        loading.abandon(state.tiers, prefilling.arrivals, None)
    decoding = Decoding(prefilling.request, prefilling.lease)
    state.running.put(decoding)
    return decoding


def preempt(state: SchedulerState, running: Running, *, now: float) -> None:
    """Back to the head of the queue, without pages. What is computed is cached, and a hit if it is still there then."""
    _leave(state, running, keep_computed=True, now=now)
    running.request.num_preemptions += 1
    running.request.lose_partial_page(state.page_size)
    state.counters.num_preemptions += 1
    state.queue.push_front(Waiting(running.request))


def end(state: SchedulerState, running: Running, *, keep_computed: bool, now: float) -> None:
    """The request is over. `keep_computed`: the answer is cached too, for the next turn of the conversation."""
    _leave(state, running, keep_computed=keep_computed, now=now)
    state.ended.append(running.request.request_id)


def _leave(state: SchedulerState, running: Running, *, keep_computed: bool, now: float) -> None:
    if keep_computed:
        state.cache.commit(running.lease, running.request.token_ids[: running.num_computed], now=now)
        state.cache_version += 1
        offloading.after_commit(state, running.lease.node)
        survey.remember_answer(state, running.request)
        survey.absorb(state, running.request, now=now)
    state.running.remove(running)
    arrivals = running.arrivals if isinstance(running, Prefilling) else None
    if arrivals is not None and state.tiers is not None and loading.abandon(state.tiers, arrivals, running.lease):
        return  # copies are still writing to its pages; the last of them releases the lease
    state.cache.release(running.lease, now=now)
