"""What a scrape would see."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from pagefall.config import InsightConfig
from pagefall.messages import ControllerStats, PoolStats, SchedulerStats
from pagefall.metrics.registry import Metrics
from pagefall.metrics.traffic import TrafficMetrics

DEVICE = PoolStats(total=10, free=1, leased=2, cached=7, pinned=3)
HOST = PoolStats(total=20, free=11, leased=0, cached=9, pinned=4)


def metrics_of(
    stats: Callable[[], SchedulerStats],
    controller_stats: Callable[[], ControllerStats | None] = lambda: None,
    traffic: TrafficMetrics | None = None,
) -> Metrics:
    return Metrics(
        stats, controller_stats, traffic or TrafficMetrics(InsightConfig()), model="some/model", page_size=16
    )


def samples(metrics: Metrics) -> dict[str, float]:
    """By name and label values in the order of the labels' names, as in `pagefall_pages free device`."""
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }
