"""Prometheus metrics, computed from the scheduler's snapshot when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pagefall.messages import SchedulerStats

_COUNTERS: Final = {
    "num_steps": "Forward steps run",
    "num_prompt_tokens": "Prompt tokens of the requests scheduled",
    "num_cached_tokens": "Prompt tokens taken from the cache",
    "num_generated_tokens": "Tokens generated",
    "num_preemptions": "Requests preempted because pages ran out",
    "num_evicted_pages": "Device pages evicted",
    "num_conservation_breaches": "Times that free + leased + cached pages did not add up to the pool",
    "plan_seconds": "Seconds spent on planning steps",
    "forward_seconds": "Seconds spent in the model's forward",
    "sample_seconds": "Seconds spent on sampling",
}
"""The counters of `SchedulerStats`, in its own names; Prometheus appends `_total`."""


class Metrics:
    """A registry of its own, so that two servers in one process do not share numbers."""

    content_type: Final = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self, stats: Callable[[], SchedulerStats]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_StatsCollector(stats))

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _StatsCollector(Collector):
    def __init__(self, stats: Callable[[], SchedulerStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield GaugeMetricFamily("pagefall_num_running_reqs", "Requests in the running batch", stats.num_running)
        yield GaugeMetricFamily("pagefall_num_queue_reqs", "Requests waiting to run", stats.num_queued)
        pages = GaugeMetricFamily(
            "pagefall_device_pages", "Pages of the device pool; pinned ones are cached too", labels=["state"]
        )
        for state in ("free", "leased", "cached", "pinned"):
            pages.add_metric([state], getattr(stats.device_pages, state))
        yield pages
        for name, documentation in _COUNTERS.items():
            yield CounterMetricFamily(f"pagefall_{name}", documentation, getattr(stats, name))
