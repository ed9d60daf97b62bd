"""How full the tiers are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pagefall.messages import ControllerStats, PoolStats, SchedulerStats, Tier
from pagefall.metrics import families


class PoolCollector(Collector):
    """The host has samples where there is a host tier, the store where one is attached that has told how much it holds.

    That counts all that is in the store, of other models too, as pages of this one.
    """

    def __init__(
        self,
        stats: Callable[[], SchedulerStats],
        controller_stats: Callable[[], ControllerStats | None],
        *,
        page_size: int,
    ) -> None:
        self._stats = stats
        self._controller_stats = controller_stats
        self._page_size = page_size

    def collect(self) -> Iterator[Metric]:
        stats, controller_stats = self._stats(), self._controller_stats()
        pools: dict[Tier, PoolStats] = {"device": stats.device_pages}
        if stats.host_pages is not None:
            pools["host"] = stats.host_pages
        num_pages: dict[Tier, int] = {tier: pool.cached for tier, pool in pools.items()}
        if controller_stats is not None and controller_stats.storage_num_pages is not None:
            num_pages["storage"] = controller_stats.storage_num_pages
        yield families.gauges(
            "pages",
            "Pages of the pools by state; pinned ones are cached too",
            ("tier", "state"),
            {(tier, state): number for tier, pool in pools.items() for state, number in _states(pool).items()},
        )
        yield families.gauges(
            "num_cached_tokens",
            "Tokens that could be found in each tier; many are in several",
            ("tier",),
            {(tier,): number * self._page_size for tier, number in num_pages.items()},
        )
        yield families.gauges(
            "token_usage",
            "Share of each pool that is not free, from 0 to 1",
            ("tier",),
            {(tier,): 1 - pool.free / pool.total for tier, pool in pools.items()},
        )


def _states(pool: PoolStats) -> dict[str, int]:
    return {"free": pool.free, "leased": pool.leased, "cached": pool.cached, "pinned": pool.pinned}
