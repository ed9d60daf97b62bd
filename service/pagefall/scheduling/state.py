"""Everything the scheduler owns. Each part looks after itself; the functions beside this file move requests between
them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pagefall.cache.changes import TierChange
from pagefall.cache.history import PrefixHistory
from pagefall.cache.prefix_cache import PrefixCache
from pagefall.config import CacheConfig, SchedulerConfig, TierConfig
from pagefall.messages import MissReason, RequestId, SchedulerStats
from pagefall.scheduling.cost_model import PrefillCost
from pagefall.scheduling.pins import Pins
from pagefall.scheduling.queue import WaitingQueue
from pagefall.scheduling.request import Request
from pagefall.scheduling.running import RunningTable
from pagefall.scheduling.tiers import TierState

_PINNED_DIVISOR: Final = 4
"""Clients may have one page in so many kept for them."""


class Counters(msgspec.Struct):
    """They only rise; `SchedulerStats` publishes them under the same names."""

    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_device_tokens: int = 0
    num_host_tokens: int = 0
    num_storage_tokens: int = 0
    num_computed_tokens: int = 0
    num_unreached_tokens: int = 0
    num_known_tokens: int = 0
    num_missed_tokens: dict[MissReason, int] = {}
    saved_seconds: float = 0.0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_conservation_breaches: int = 0
    plan_seconds: float = 0.0
    forward_seconds: float = 0.0
    sample_seconds: float = 0.0


class SchedulerState:
    """The queue, the running requests, the cache with all pages, and the limits they are kept in."""

    def __init__(
        self,
        *,
        scheduler: SchedulerConfig,
        cache: CacheConfig,
        page_size: int,
        num_pages: int,
        namespace: bytes,
        tiers: TierConfig | None = None,
        num_host_pages: int = 0,
        page_bytes: int = 0,
        history_tokens: int = 0,
    ) -> None:
        """`namespace` is the digest of the model's `Namespace`. `num_host_pages` 0: there are no lower tiers; else
        `tiers` says how they are used, and a page of the host takes `page_bytes`. `history_tokens`: how much is
        remembered of what was cached, for explanations; 0: nothing.
        """
        self.config = scheduler
        self.page_size = page_size
        self.num_pages = num_pages
        self.namespace = namespace
        self.shares_prefixes = not cache.disable_radix_cache
        self.queue = WaitingQueue()
        self.running = RunningTable()
        self.cache = PrefixCache(
            num_pages=num_pages,
            page_size=page_size,
            eviction_policy=cache.radix_eviction_policy,
            enabled=self.shares_prefixes,
            num_host_pages=num_host_pages,
            records_changes=True,
        )
        self.changes: list[TierChange] = []
        """What entered and left the tiers and was not published yet."""
        self.history: PrefixHistory | None = None
        """What was cached once; None where nothing is remembered."""
        if history_tokens:
            self.history = PrefixHistory(page_size=page_size, max_tokens=history_tokens)
        self.pins = Pins(self.cache, max_pages=num_pages // _PINNED_DIVISOR)
        self.tiers: TierState | None = None
        if self.cache.host is not None and tiers is not None:
            has_storage = tiers.hicache_storage_backend is not None
            self.tiers = TierState(tiers, self.cache.host, page_bytes=page_bytes, has_storage=has_storage)
        self.prefill_cost = PrefillCost()
        self.wake_at: float | None = None
        """When a request that stands back now may go on without what it waits for; None if none does."""
        self.cache_version = 0
        """Rises whenever new prefixes were cached: what a match found before may have become longer."""
        self.num_arrivals = 0
        self.ended: list[RequestId] = []
        """Requests that ended since the last plan, which tells the model runner."""
        self.counters = Counters()

    @property
    def is_idle(self) -> bool:
        return not len(self.queue) and not len(self.running)

    def request(self, request_id: RequestId) -> Request | None:
        """The request, waiting or running; None if it has ended."""
        holder = self.running.get(request_id) or self.queue.get(request_id)
        return None if holder is None else holder.request

    @property
    def lower_tiers(self) -> TierState:
        """`tiers`, for what only happens where there are some. Raises `RuntimeError` where there are none."""
        if self.tiers is None:
            raise RuntimeError("pages come from lower tiers, but there are none")
        return self.tiers

    def compute_seconds(self, start: int, num_tokens: int) -> float | None:
        """What computing positions `[start, start + num_tokens)` would take; None before anything was observed."""
        return self.prefill_cost.estimate(start, num_tokens, chunk_size=self.config.chunked_prefill_size)

    def num_pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def stats(self) -> SchedulerStats:
        """A snapshot, O(1)."""
        return SchedulerStats(
            num_running=len(self.running),
            num_queued=len(self.queue),
            device_pages=self.cache.stats(),
            num_evicted_pages=self.cache.num_evicted_pages,
            host_pages=None if self.tiers is None else self.tiers.host.stats(),
            num_evicted_host_pages=0 if self.tiers is None else self.tiers.host.num_evicted_pages,
            **({} if self.tiers is None else msgspec.structs.asdict(self.tiers.counters)),
            **msgspec.structs.asdict(self.counters),
        )
