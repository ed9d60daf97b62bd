"""A prompt's account is closed: where each of its tokens came from, counted once in the request's life."""

from __future__ import annotations

from pagefall.messages import PrefixReport, TokenSource
from pagefall.scheduling.request import Request
from pagefall.scheduling.state import SchedulerState


def settle(state: SchedulerState, request: Request, *, now: float) -> PrefixReport:
    """When the first token is sampled, or when the request ends without one. Counts everything, once."""
    request.is_settled = True
    num_prompt_tokens = request.num_prompt_tokens
    by_tier = request.cached_tokens_by_tier
    num_left = num_prompt_tokens - request.num_cached_tokens
    num_computed = num_left if request.has_begun else 0
    sources: dict[TokenSource, int] = {
        "device": by_tier.get("device", 0),
        "host": by_tier.get("host", 0),
        "storage": by_tier.get("storage", 0),
        "computed": num_computed,
        "unreached": num_left - num_computed,
    }
    counters = state.counters
    counters.num_prompt_tokens += num_prompt_tokens
    counters.num_cached_tokens += request.num_cached_tokens
    counters.num_device_tokens += sources["device"]
    counters.num_host_tokens += sources["host"]
    counters.num_storage_tokens += sources["storage"]
    counters.num_computed_tokens += num_computed
    counters.num_unreached_tokens += sources["unreached"]
    return PrefixReport(
        page_size=state.page_size,
        num_prompt_tokens=num_prompt_tokens,
        num_tokens_by_source=sources,
        num_known_tokens=request.num_cached_tokens,
        misses=(),
        queue_seconds=now - request.arrived_at,
    )
