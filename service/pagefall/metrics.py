"""Prometheus metrics, computed from the snapshots of the scheduler and the cache controller when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, get_args

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pagefall.messages import BreakerState, ControllerStats, Direction, PoolStats, SchedulerStats

_COUNTERS: Final = {
    "num_steps": "Forward steps run",
    "num_prompt_tokens": "Prompt tokens of the requests scheduled",
    "num_cached_tokens": "Prompt tokens taken from the cache",
    "num_device_tokens": "Prompt tokens found in device memory",
    "num_host_tokens": "Prompt tokens loaded from host memory",
    "num_storage_tokens": "Prompt tokens loaded from the store",
    "num_generated_tokens": "Tokens generated",
    "num_preemptions": "Requests preempted because pages ran out",
    "num_evicted_pages": "Device pages evicted",
    "num_evicted_host_pages": "Host pages evicted",
    "num_lookups": "Prompts that the store was asked for",
    "num_fetched_pages": "Pages that came from the store",
    "num_overtaken_pages": "Pages asked of the store and computed before they came",
    "num_declined_fetches": "Prompts not loaded from the store because computing is far quicker",
    "num_skipped_offloads": "Offloads skipped because the host pool had no room",
    "num_skipped_backups": "Backups skipped because too many waited, or the pages were evicted first",
    "num_conservation_breaches": "Times that free + leased + cached pages did not add up to the pool",
    "plan_seconds": "Seconds spent on planning steps",
    "forward_seconds": "Seconds spent in the model's forward",
    "sample_seconds": "Seconds spent on sampling",
}
"""The counters of `SchedulerStats`, in its own names; Prometheus appends `_total`."""


class Metrics:
    """A registry of its own, so that two servers in one process do not share numbers."""

    content_type: Final = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(
        self,
        stats: Callable[[], SchedulerStats],
        controller_stats: Callable[[], ControllerStats | None] = lambda: None,
    ) -> None:
        """`controller_stats` returns None where there are no tiers below the device."""
        self._registry = CollectorRegistry()
        self._registry.register(_SchedulerCollector(stats))
        self._registry.register(_ControllerCollector(controller_stats))

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _SchedulerCollector(Collector):
    def __init__(self, stats: Callable[[], SchedulerStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield GaugeMetricFamily("pagefall_num_running_reqs", "Requests in the running batch", stats.num_running)
        yield GaugeMetricFamily("pagefall_num_queue_reqs", "Requests waiting to run", stats.num_queued)
        yield _pool_pages("device", stats.device_pages)
        if stats.host_pages is not None:
            yield _pool_pages("host", stats.host_pages)
        for name, documentation in _COUNTERS.items():
            yield CounterMetricFamily(f"pagefall_{name}", documentation, getattr(stats, name))


class _ControllerCollector(Collector):
    def __init__(self, stats: Callable[[], ControllerStats | None]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        if stats is None:
            return
        for quantity, field in (("bytes", "num_bytes"), ("pages", "num_pages"), ("seconds", "seconds")):
            moved = {direction: getattr(stats.transfers.get(direction), field, 0) for direction in get_args(Direction)}
            name, documentation = f"transfer_{quantity}", f"{quantity.capitalize()} of transfers between tiers"
            yield _labelled(name, documentation, "direction", moved)
        if stats.breaker is None:
            return
        outcomes, failures = stats.num_storage_outcomes, stats.num_storage_failures
        yield _labelled("storage_pages", "Pages read from the store, by what became of them", "outcome", outcomes)
        yield _labelled("storage_failures", "Operations of the store that failed", "kind", failures)
        breaker = GaugeMetricFamily(
            "pagefall_storage_breaker_state", "1 for the state of the store's circuit breaker", labels=["state"]
        )
        for state in get_args(BreakerState):
            breaker.add_metric([state], state == stats.breaker)
        yield breaker


def _pool_pages(tier: str, pool: PoolStats) -> Metric:
    pages = GaugeMetricFamily(
        f"pagefall_{tier}_pages", f"Pages of the {tier} pool; pinned ones are cached too", labels=["state"]
    )
    for state in ("free", "leased", "cached", "pinned"):
        pages.add_metric([state], getattr(pool, state))
    return pages


def _labelled(name: str, documentation: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"pagefall_{name}", documentation, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family
