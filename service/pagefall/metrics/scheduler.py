"""The scheduler's counters: where prompt tokens came from, why the others were computed, and what steps cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pagefall.messages import MissReason, SchedulerStats
from pagefall.metrics import families


class SchedulerCollector(Collector):
    """`stats` is the scheduler's latest snapshot. Pools have a collector of their own."""

    def __init__(self, stats: Callable[[], SchedulerStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield from _requests(stats)
        yield from _prompt_tokens(stats)
        yield from _steps(stats)
        yield from _pages(stats)


def _requests(stats: SchedulerStats) -> Iterator[Metric]:
    yield families.gauge("num_running_reqs", "Requests in the running batch", stats.num_running)
    yield families.gauge("num_queue_reqs", "Requests waiting to run", stats.num_queued)


def _prompt_tokens(stats: SchedulerStats) -> Iterator[Metric]:
    sources = {
        "device": stats.num_device_tokens,
        "host": stats.num_host_tokens,
        "storage": stats.num_storage_tokens,
        "computed": stats.num_computed_tokens,
        "unreached": stats.num_unreached_tokens,
    }
    yield families.counters("prompt_tokens", "Tokens of settled prompts, by where they came from", "source", sources)
    yield families.counter(
        "known_tokens", "Prompt tokens that a cache of unlimited size would have had", stats.num_known_tokens
    )
    missed = {reason: stats.num_missed_tokens.get(reason, 0) for reason in get_args(MissReason)}
    yield families.counters("missed_tokens", "Prompt tokens not taken from the cache, by why", "reason", missed)
    yield families.counter(
        "saved_prefill_seconds", "Estimated seconds of computing that the cache has spared", stats.saved_seconds
    )


def _steps(stats: SchedulerStats) -> Iterator[Metric]:
    seconds = {"plan": stats.plan_seconds, "forward": stats.forward_seconds, "sample": stats.sample_seconds}
    yield families.counter("generated_tokens", "Tokens generated", stats.num_generated_tokens)
    yield families.counter("steps", "Forward steps run", stats.num_steps)
    yield families.counters("step_seconds", "Seconds of steps, by part", "part", seconds)
    yield families.counter("preemptions", "Requests preempted because pages ran out", stats.num_preemptions)


def _pages(stats: SchedulerStats) -> Iterator[Metric]:
    evicted = {"device": stats.num_evicted_pages, "host": stats.num_evicted_host_pages}
    prefetched = {"fetched": stats.num_fetched_pages, "overtaken": stats.num_overtaken_pages}
    skipped = {"offload": stats.num_skipped_offloads, "backup": stats.num_skipped_backups}
    yield families.counters("evicted_pages", "Pages evicted because others needed the room", "tier", evicted)
    yield families.counter("storage_lookups", "Prompts that the store was asked for", stats.num_lookups)
    yield families.counters(
        "prefetched_pages", "Pages asked of the store: come, or overtaken by computing", "outcome", prefetched
    )
    yield families.counter(
        "declined_prefetches", "Prompts not loaded because computing is far quicker", stats.num_declined_fetches
    )
    yield families.counters("skipped_copies", "Copies to a lower tier that were not made", "kind", skipped)
    yield families.counter(
        "conservation_breaches",
        "Times that free, leased and cached pages did not add up to the pool: a bug",
        stats.num_conservation_breaches,
    )
