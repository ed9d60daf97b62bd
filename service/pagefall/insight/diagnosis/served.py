"""A server's own traffic as a diagnosis wants it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Final

from pagefall.insight.diagnosis.observations import Capacities, Observation, Traffic
from pagefall.insight.records import RequestRecord
from pagefall.messages import ControllerStats, SchedulerStats
from pagefall.text.requests import ChatPrompt, TextPrompt
from pagefall.text.tool_schema import as_function

_MANY_TOKENS: Final = 64
"""So many have to be computed before the time to the first token says how long one takes."""


def traffic_of(
    records: Sequence[RequestRecord],
    stats: SchedulerStats,
    controller: ControllerStats | None,
    *,
    page_size: int,
) -> Traffic:
    """`records` are settled, in any order."""
    ordered = sorted(records, key=lambda record: record.began_at)
    num_tokens = sum(record.num_prompt_tokens for record in ordered)
    return Traffic(
        observations=[
            Observation(
                token_ids=record.token_ids,
                prompt=record.prompt,
                tools=_tools(record.prompt),
                time=record.arrived_at,
                cache_salt=record.cache_salt,
                report=record.report,
            )
            for record in ordered
        ],
        page_size=page_size,
        capacities=_capacities(stats, controller),
        seconds_per_token=_seconds_per_token(ordered, stats),
        num_earlier_tokens=max(0, stats.num_prompt_tokens - num_tokens),
    )


def _tools(prompt: ChatPrompt | TextPrompt | None) -> list[dict[str, Any]] | None:
    return [as_function(tool) for tool in prompt.tools] or None if isinstance(prompt, ChatPrompt) else None


def _capacities(stats: SchedulerStats, controller: ControllerStats | None) -> Capacities:
    has_storage = controller is not None and controller.breaker is not None
    return Capacities(
        device_pages=stats.device_pages.total,
        host_pages=None if stats.host_pages is None else stats.host_pages.total,
        storage_pages=None if controller is None or not has_storage else _storage_pages(controller),
        has_storage=has_storage,
    )


def _storage_pages(controller: ControllerStats) -> int | None:
    """As many as fit if all are as large as those that are there; None where the store has no limit, or nothing."""
    limit, used, num_pages = (
        controller.storage_limit_bytes,
        controller.storage_used_bytes,
        controller.storage_num_pages,
    )
    return limit * num_pages // used if limit and used and num_pages else None


def _seconds_per_token(records: Sequence[RequestRecord], stats: SchedulerStats) -> float | None:
    """The least that one of these says: the cost model of what was saved, forwards of what was computed, times to the
    first token. None before any of them says something.

    Each is too much somewhere: short hits seem dear, forwards also decode, and prompts wait for each other.
    """
    paces = []
    if stats.num_cached_tokens and stats.saved_seconds > 0:
        paces.append(stats.saved_seconds / stats.num_cached_tokens)
    if stats.num_computed_tokens >= _MANY_TOKENS and stats.forward_seconds > 0:
        paces.append(stats.forward_seconds / stats.num_computed_tokens)
    if waited := _paces_to_first_tokens(records):
        paces.append(statistics.median(waited))
    return min(paces, default=None)


def _paces_to_first_tokens(records: Sequence[RequestRecord]) -> list[float]:
    """Seconds for each computed token, of each prompt of which many were."""
    paces = []
    for record in records:
        num_computed = 0 if record.report is None else record.report.num_tokens_by_source.get("computed", 0)
        if record.report is not None and record.ttft_seconds is not None and num_computed >= _MANY_TOKENS:
            paces.append(max(0.0, record.ttft_seconds - record.report.queue_seconds) / num_computed)
    return paces
