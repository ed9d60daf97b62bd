"""All metrics of one server, printed when someone asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pagefall import __version__
from pagefall.messages import ControllerStats, SchedulerStats
from pagefall.metrics import families
from pagefall.metrics.pools import PoolCollector
from pagefall.metrics.scheduler import SchedulerCollector
from pagefall.metrics.sglang import SglangMetrics
from pagefall.metrics.tiers import TierCollector
from pagefall.metrics.traffic import TrafficMetrics


class Metrics:
    """A registry of its own, so that two servers in one process do not share numbers. Belongs to the loop's thread."""

    content_type: Final = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(
        self,
        stats: Callable[[], SchedulerStats],
        controller_stats: Callable[[], ControllerStats | None],
        traffic: TrafficMetrics,
        *,
        model: str,
        page_size: int,
    ) -> None:
        """`controller_stats` returns None where there are no tiers below the device. `model` is the name that clients
        use. SGLang's names are there too where `traffic` was made for them.
        """
        self._registry = CollectorRegistry()
        for collector in (
            _Info(model),
            *traffic.collectors,
            SchedulerCollector(stats),
            PoolCollector(stats, controller_stats, page_size=page_size),
            TierCollector(controller_stats),
        ):
            self._registry.register(collector)
        if traffic.generation_rate is not None:
            self._registry.register(
                SglangMetrics(
                    stats, controller_stats, traffic, traffic.generation_rate, model=model, page_size=page_size
                )
            )

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _Info(Collector):
    def __init__(self, model: str) -> None:
        self._model = model

    def collect(self) -> Iterator[Metric]:
        yield families.gauges(
            "info", "1; what runs, and which model it serves", ("version", "model"), {(__version__, self._model): 1}
        )
