"""What moved between tiers, and the store's health."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, get_args

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pagefall.messages import BreakerState, ControllerStats, Direction, FetchOutcome, TransferStats
from pagefall.metrics import families

_OUTCOMES: Final = (
    *(outcome for outcome in get_args(FetchOutcome) if outcome != "corrupt"),
    # What the page format itself finds. A backend may find more, whose series begin with the first case.
    *(f"corrupt:{reason}" for reason in ("bad magic", "checksum", "damaged header", "length", "other key")),
    *(f"corrupt:{reason}" for reason in ("other namespace", "short", "version")),
)
_FAILURES: Final = ("timeout", "error", "full")


class TierCollector(Collector):
    """`stats` is the cache controller's, None without lower tiers: then there is nothing here.

    Counters are the process's: they are there without a store, and stay when it is detached. Gauges are the store's.
    """

    def __init__(self, stats: Callable[[], ControllerStats | None]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        if stats is not None:
            yield from _transfers(stats)
            yield from _storage_counters(stats)
            yield from _storage_gauges(stats)


def _transfers(stats: ControllerStats) -> Iterator[Metric]:
    moved = {direction: stats.transfers.get(direction, TransferStats()) for direction in get_args(Direction)}
    num_bytes = {direction: sums.num_bytes for direction, sums in moved.items()}
    num_pages = {direction: sums.num_pages for direction, sums in moved.items()}
    seconds = {direction: sums.seconds for direction, sums in moved.items()}
    yield families.counters("transfer_bytes", "Bytes moved between tiers", "direction", num_bytes)
    yield families.counters("transfer_pages", "Pages moved between tiers", "direction", num_pages)
    yield families.counters(
        "transfer_seconds", "Seconds of transfers between tiers, of which several may overlap", "direction", seconds
    )


def _storage_counters(stats: ControllerStats) -> Iterator[Metric]:
    outcomes = {**dict.fromkeys(_OUTCOMES, 0), **stats.num_storage_outcomes}
    failures = {**dict.fromkeys(_FAILURES, 0), **stats.num_storage_failures}
    yield families.counters("storage_pages", "Pages read from the store, by what became of them", "outcome", outcomes)
    yield families.counters("storage_failures", "Operations of the store that failed", "kind", failures)


def _storage_gauges(stats: ControllerStats) -> Iterator[Metric]:
    if stats.breaker is None:
        return
    states = {(state,): float(state == stats.breaker) for state in get_args(BreakerState)}
    yield families.gauges("storage_breaker_state", "1 for the state of the store's circuit breaker", ("state",), states)
    if stats.storage_used_bytes is not None:
        yield families.gauge("storage_used_bytes", "Bytes in the store, as it last told", stats.storage_used_bytes)
    if stats.storage_limit_bytes is not None:
        yield families.gauge("storage_limit_bytes", "Bytes that the store may hold", stats.storage_limit_bytes)
