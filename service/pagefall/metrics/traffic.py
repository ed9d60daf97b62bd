"""What is counted while it happens, and is there before the engine, which tells it."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client.registry import Collector

from pagefall.config import InsightConfig
from pagefall.insight.records import TrafficObserver
from pagefall.metrics.generation_rate import GenerationRate
from pagefall.metrics.hit_rate import HitRateWindow
from pagefall.metrics.loop_lag import LoopLag
from pagefall.metrics.requests import RequestMetrics


class TrafficMetrics:
    """One server's. `observers` are for its traffic log; `loop_lag` samples as long as its `sampled` is open.

    `generation_rate` is None where nobody asks for it: only SGLang's names have a gauge of it.
    """

    def __init__(self, config: InsightConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.requests = RequestMetrics()
        self.hit_rate = HitRateWindow(config.metrics_window, clock=clock)
        self.loop_lag = LoopLag()
        self.generation_rate = GenerationRate(clock=clock) if config.metrics_compat == "sglang" else None

    @property
    def observers(self) -> tuple[TrafficObserver, ...]:
        rate = () if self.generation_rate is None else (self.generation_rate,)
        return (self.requests, self.hit_rate, *rate)

    @property
    def collectors(self) -> tuple[Collector, ...]:
        return (self.requests, self.hit_rate, self.loop_lag)
