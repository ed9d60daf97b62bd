"""The ready-made hit rate: over the last minutes, for whoever has no Prometheus to ask."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pagefall.insight.records import RefusalReason, RequestRecord
from pagefall.metrics import families

_NUM_BUCKETS: Final = 60


@dataclass(slots=True)
class _Bucket:
    """Tokens of the prompts settled in one sixtieth of the window, the `number`-th since the clock's zero."""

    number: int = -1
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_known_tokens: int = 0


class HitRateWindow(Collector):
    """A `TrafficObserver` with a ring of buckets: its memory does not grow with the traffic. It looks back for the
    window, less a part of one bucket.
    """

    def __init__(self, window_seconds: float, *, clock: Callable[[], float]) -> None:
        """`clock` returns seconds, and never goes back."""
        self._bucket_seconds = window_seconds / _NUM_BUCKETS
        self._clock = clock
        self._ring = [_Bucket() for _ in range(_NUM_BUCKETS)]

    def settled(self, record: RequestRecord) -> None:
        if record.report is None:
            return
        number = self._now()
        bucket = self._ring[number % _NUM_BUCKETS]
        if bucket.number != number:
            bucket = self._ring[number % _NUM_BUCKETS] = _Bucket(number)
        sources = record.report.num_tokens_by_source
        bucket.num_prompt_tokens += record.report.num_prompt_tokens
        bucket.num_cached_tokens += sources["device"] + sources["host"] + sources["storage"]
        bucket.num_known_tokens += record.report.num_known_tokens

    def refused(self, reason: RefusalReason) -> None:
        """It has no account."""

    def accepted(self, record: RequestRecord) -> None:
        """It is settled later."""

    def progressed(self, record: RequestRecord, num_tokens: int, gap_seconds: float | None) -> None:
        """The prompt alone matters."""

    def ended(self, record: RequestRecord) -> None:
        """It was settled."""

    def hit_rate(self) -> float:
        """The share of prompt tokens that came from the cache; NaN while no prompt was settled in the window."""
        return self._share([bucket.num_cached_tokens for bucket in self._recent()])

    def ceiling(self) -> float:
        """What the share would have been with a cache of unlimited size; NaN as above."""
        return self._share([bucket.num_known_tokens for bucket in self._recent()])

    def collect(self) -> Iterator[Metric]:
        yield families.gauge(
            "cache_hit_rate", "Share of prompt tokens from the cache, over --metrics-window", self.hit_rate()
        )
        yield families.gauge(
            "cache_hit_rate_ceiling",
            "The same share with a cache of unlimited size, over --metrics-window",
            self.ceiling(),
        )

    def _share(self, num_tokens: list[int]) -> float:
        num_prompt_tokens = sum(bucket.num_prompt_tokens for bucket in self._recent())
        return sum(num_tokens) / num_prompt_tokens if num_prompt_tokens else math.nan

    def _recent(self) -> list[_Bucket]:
        oldest = self._now() - _NUM_BUCKETS
        return [bucket for bucket in self._ring if bucket.number > oldest]

    def _now(self) -> int:
        return int(self._clock() / self._bucket_seconds)
