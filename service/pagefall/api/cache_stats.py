"""`GET /cache/stats`: where the server stands, and its last minutes, in one document."""

from __future__ import annotations

import math
from typing import Final

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from pagefall import __version__
from pagefall.api.engine import Engine
from pagefall.api.json_response import json_response
from pagefall.errors import RequestError
from pagefall.insight.records import PrefixSource
from pagefall.insight.series import HitRate, SeriesColumns, TrafficSeries, TtftSummary
from pagefall.messages import (
    BreakerState,
    ControllerStats,
    Direction,
    MissReason,
    PoolStats,
    SchedulerStats,
    TokenSource,
    TransferStats,
)


class PoolFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change while the server runs; `*_bytes` None where nobody has said."""

    page_size: int
    device_bytes: int | None = None
    host_bytes: int | None = None


class PoolAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One pool. `num_tokens` is its size, `num_bytes` too; `num_cached_tokens` are in its cached pages."""

    pages: PoolStats
    num_tokens: int
    num_cached_tokens: int
    num_bytes: int | None
    num_evicted_pages: int


class StorageStats(msgspec.Struct, frozen=True, kw_only=True):
    """The store, as `ControllerStats` has it. `storage_used_bytes` and the like: None where the store has not said."""

    storage_backend: str | None
    storage_description: str | None
    breaker: BreakerState
    num_storage_outcomes: dict[str, int]
    num_storage_failures: dict[str, int]
    storage_used_bytes: int | None
    storage_limit_bytes: int | None
    storage_num_pages: int | None


class TiersAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`host` and `storage` are None where the server has none."""

    device: PoolAnswer
    host: PoolAnswer | None
    storage: StorageStats | None


class HitRates(msgspec.Struct, frozen=True, kw_only=True):
    window: HitRate
    since_start: HitRate


class CacheStatsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of `SchedulerStats` and `ControllerStats` have their names and meanings. `time` and `started_at` are Unix
    seconds; `redact_prompts`: whether texts of prompts are withheld.
    """

    model: str
    context_length: int
    version: str
    time: float
    started_at: float
    uptime_seconds: float
    redact_prompts: bool
    page_size: int
    num_running: int
    num_queued: int
    tiers: TiersAnswer
    hit_rate: HitRates
    num_prompt_tokens: int
    num_tokens_by_source: dict[TokenSource, int]
    num_known_tokens: int
    num_missed_tokens: dict[MissReason, int]
    num_generated_tokens: int
    saved_seconds: float
    num_preemptions: int
    transfers: dict[Direction, TransferStats]
    ttft: dict[PrefixSource, TtftSummary]
    series: SeriesColumns


class CacheStats:
    """The endpoint. It reads snapshots, and waits for nobody."""

    def __init__(self, engine: Engine, series: TrafficSeries, facts: PoolFacts, *, redact_prompts: bool) -> None:
        self._engine = engine
        self._series = series
        self._facts = facts
        self._redact_prompts = redact_prompts

    async def show(self, request: Request) -> Response:
        """`?since=TIME`: of the series, only the samples after this Unix time."""
        since = _since(request.query_params)
        return json_response(self._answer(since), headers={"cache-control": "no-store"})

    def _answer(self, since: float | None) -> CacheStatsAnswer:
        stats, controller = self._engine.stats(), self._engine.controller_stats()
        series, facts, model = self._series, self._facts, self._engine.model
        uptime = series.uptime_seconds
        return CacheStatsAnswer(
            model=model.id,
            context_length=model.context_length,
            version=__version__,
            time=round(series.started_at + uptime, 3),
            started_at=round(series.started_at, 3),
            uptime_seconds=round(uptime, 3),
            redact_prompts=self._redact_prompts,
            page_size=facts.page_size,
            num_running=stats.num_running,
            num_queued=stats.num_queued,
            tiers=_tiers(stats, controller, facts),
            hit_rate=HitRates(window=series.window(stats), since_start=series.since_start(stats)),
            num_prompt_tokens=stats.num_prompt_tokens,
            num_tokens_by_source={
                "device": stats.num_device_tokens,
                "host": stats.num_host_tokens,
                "storage": stats.num_storage_tokens,
                "computed": stats.num_computed_tokens,
                "unreached": stats.num_unreached_tokens,
            },
            num_known_tokens=stats.num_known_tokens,
            num_missed_tokens=stats.num_missed_tokens,
            num_generated_tokens=stats.num_generated_tokens,
            saved_seconds=round(stats.saved_seconds, 3),
            num_preemptions=stats.num_preemptions,
            transfers={} if controller is None else controller.transfers,
            ttft=series.ttfts(),
            series=series.columns(since=since),
        )


def _tiers(stats: SchedulerStats, controller: ControllerStats | None, facts: PoolFacts) -> TiersAnswer:
    return TiersAnswer(
        device=_pool(stats.device_pages, facts.page_size, facts.device_bytes, stats.num_evicted_pages),
        host=None
        if stats.host_pages is None
        else _pool(stats.host_pages, facts.page_size, facts.host_bytes, stats.num_evicted_host_pages),
        storage=None if controller is None or controller.breaker is None else _storage(controller, controller.breaker),
    )


def _pool(pages: PoolStats, page_size: int, num_bytes: int | None, num_evicted_pages: int) -> PoolAnswer:
    return PoolAnswer(
        pages=pages,
        num_tokens=pages.total * page_size,
        num_cached_tokens=pages.cached * page_size,
        num_bytes=num_bytes,
        num_evicted_pages=num_evicted_pages,
    )


def _storage(controller: ControllerStats, breaker: BreakerState) -> StorageStats:
    return StorageStats(
        storage_backend=controller.storage_backend,
        storage_description=controller.storage_description,
        breaker=breaker,
        num_storage_outcomes=controller.num_storage_outcomes,
        num_storage_failures=controller.num_storage_failures,
        storage_used_bytes=_plain(controller.storage_used_bytes),
        storage_limit_bytes=_plain(controller.storage_limit_bytes),
        storage_num_pages=_plain(controller.storage_num_pages),
    )


def _plain(number: int | None) -> int | None:
    """A backend may have counted in an `int` of its own, which JSON does not know."""
    return None if number is None else int(number)


def _since(query: QueryParams) -> float | None:
    """Raises `RequestError` for what is no number, and for any other parameter."""
    for name in query:
        if name != "since":
            raise RequestError(f"Unknown parameter: '{name}'. The only one is 'since'.", param=name)
    text: Final = query.get("since")
    if text is None:
        return None
    try:
        since = float(text)
    except ValueError:
        since = math.nan
    if not math.isfinite(since):
        raise RequestError(
            f"Invalid value for 'since': {text[:100]!r} is not a Unix time in seconds. Send a number, or leave it out.",
            param="since",
            code="invalid_value",
        )
    return since
