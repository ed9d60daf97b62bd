"""Requests come in and are called off, between two steps."""

from __future__ import annotations

from pagefall.cache.keys import root_key
from pagefall.messages import Accepted, Cancel, Rejected, RequestOutput, Submit
from pagefall.scheduling import fetching, loading, settling, transitions
from pagefall.scheduling.policy import WINDOW
from pagefall.scheduling.request import Request, Waiting
from pagefall.scheduling.state import SchedulerState


def submit(state: SchedulerState, message: Submit, *, now: float) -> Accepted | Rejected:
    """Queues the request, unless it could never have enough pages or too many wait already.

    Those that still find a place among the running ones, whose number is limited too, do not count as waiting.
    """
    request_id, num_queued = message.request_id, len(state.queue)
    num_tokens = len(message.token_ids) + message.stop.max_tokens
    if state.num_pages_for(num_tokens) > state.num_pages:
        return Rejected(
            request_id=request_id,
            num_queued=num_queued,
            reason="never_fits",
            num_pool_tokens=state.num_pages * state.page_size,
        )
    if num_queued + len(state.running) >= state.config.max_running_requests + state.config.max_queued_requests:
        return Rejected(request_id=request_id, num_queued=num_queued)
    root = root_key(state.namespace, message.cache_salt)
    waiting = Waiting(Request(message, root=root, arrival=state.num_arrivals, arrived_at=now))
    state.queue.push(waiting)
    state.num_arrivals += 1
    if num_queued < WINDOW:  # others ask when their turn is near
        fetching.ask(state, waiting, now=now)
    return Accepted(request_id=request_id)


def cancel(state: SchedulerState, message: Cancel, *, now: float) -> RequestOutput | None:
    """Ends the request and returns its last output; None if it has ended before. No step may be under way."""
    if (waiting := state.queue.remove(message.request_id)) is not None:
        request = waiting.request
        state.ended.append(message.request_id)
        if waiting.arrivals is not None and state.tiers is not None:
            loading.abandon(state.tiers, waiting.arrivals, None)
    elif (running := state.running.get(message.request_id)) is not None:
        request = running.request
        transitions.end(state, running, keep_computed=message.reason == "stop", now=now)
    else:
        return None
    prefix = None if request.is_settled else settling.settle(state, request, now=now)
    return request.output(finish_reason=message.reason, prefix=prefix)
