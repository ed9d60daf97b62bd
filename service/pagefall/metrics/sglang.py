"""Pagefall's facts under the names that SGLang gives them, for dashboards and alerts that were made for it.

Names, types and labels are those of SGLang's `metrics_collector.py`; `num_cached_tokens` is none of them, but guides to
SGLang tell their readers to look for it. Every name comes twice: SGLang's own have a colon (`sglang:token_usage`), and
what lies between a server and its dashboards often makes an underscore of it.

Where SGLang means something else than Pagefall by a word, SGLang's meaning is given: `token_usage` leaves out what is
only cached. Two differences remain: the buckets of histograms are Pagefall's, which are finer, and `cache_hit_rate`
looks back for --metrics-window seconds and is NaN without prompts in them, where SGLang gives the last batch's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pagefall.messages import ControllerStats, Direction, SchedulerStats, TransferStats
from pagefall.metrics.generation_rate import GenerationRate
from pagefall.metrics.histogram import Histogram
from pagefall.metrics.traffic import TrafficMetrics

_PREFIXES: Final = ("sglang:", "sglang_")

_RANKS: Final = {"engine_type": "unified", "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
"""Labels of SGLang's series beside `model_name`: one process that prefills and decodes, alone."""


class _Gauge(NamedTuple):
    name: str
    documentation: str
    value: float


class _Counter(NamedTuple):
    """`values` by the values of `label`; without a label, under the empty string."""

    name: str
    documentation: str
    values: Mapping[str, float]
    label: str | None = None


class _Histogram(NamedTuple):
    """`parts` have the same bounds, and are added up."""

    name: str
    documentation: str
    parts: tuple[Histogram, ...]


class SglangMetrics(Collector):
    """What `--metrics-compat sglang` adds to `/metrics`."""

    def __init__(
        self,
        stats: Callable[[], SchedulerStats],
        controller_stats: Callable[[], ControllerStats | None],
        traffic: TrafficMetrics,
        generation_rate: GenerationRate,
        *,
        model: str,
        page_size: int,
    ) -> None:
        """`controller_stats` returns None where there are no tiers below the device. `model` is the name that clients
        use.
        """
        self._stats = stats
        self._controller_stats = controller_stats
        self._traffic = traffic
        self._generation_rate = generation_rate
        self._labels = {"model_name": model, **_RANKS}
        self._page_size = page_size
        self._stored = _TokensByStore()

    def collect(self) -> Iterator[Metric]:
        stats, controller_stats = self._stats(), self._controller_stats()
        facts = [
            *self._load(stats),
            *self._pool(stats),
            *self._tokens(stats, controller_stats),
            *self._requests(stats),
            *self._transfers(controller_stats),
        ]
        for prefix in _PREFIXES:
            for fact in facts:
                yield self._family(prefix, fact)

    def _load(self, stats: SchedulerStats) -> Iterator[_Gauge]:
        yield _Gauge("num_running_reqs", "The number of running requests.", stats.num_running)
        yield _Gauge("num_queue_reqs", "The number of requests in the waiting queue.", stats.num_queued)
        yield _Gauge(
            "gen_throughput", "The generation throughput (token/s).", self._generation_rate.tokens_per_second()
        )
        yield _Gauge("cache_hit_rate", "The prefix cache hit rate.", self._traffic.hit_rate.hit_rate())

    def _pool(self, stats: SchedulerStats) -> Iterator[_Gauge]:
        pool, page_size = stats.device_pages, self._page_size
        num_used_pages = pool.leased + pool.pinned
        usage = num_used_pages / pool.total
        yield _Gauge("token_usage", "The token usage.", usage)
        yield _Gauge("full_token_usage", "The token usage for full attention layers.", usage)
        yield _Gauge("num_used_tokens", "The number of used tokens.", num_used_pages * page_size)
        yield _Gauge("kv_used_tokens", "Token slots that running requests use.", num_used_pages * page_size)
        yield _Gauge("kv_available_tokens", "Token slots that are free.", pool.free * page_size)
        yield _Gauge(
            "kv_evictable_tokens", "Token slots that are cached and unused.", (pool.cached - pool.pinned) * page_size
        )
        yield _Gauge("num_cached_tokens", "Tokens cached in device memory.", pool.cached * page_size)
        yield _Gauge("max_total_num_tokens", "Token slots of the KV cache pool.", pool.total * page_size)
        yield _Gauge("page_size", "KV cache page size in tokens.", page_size)
        yield _Gauge("num_pages", "Number of KV cache pages.", pool.total)
        host = stats.host_pages
        if host is not None:
            num_used_host_pages = host.total - host.free
            yield _Gauge("hicache_host_used_tokens", "Tokens in the host KV cache.", num_used_host_pages * page_size)
            yield _Gauge("hicache_host_total_tokens", "Capacity of the host KV cache.", host.total * page_size)

    def _tokens(self, stats: SchedulerStats, controller_stats: ControllerStats | None) -> Iterator[_Counter]:
        stored = self._stored.count(stats.num_storage_tokens, controller_stats)
        by_tier = {"device": stats.num_device_tokens, "host": stats.num_host_tokens}
        yield _counter("prompt_tokens", "Number of prefill tokens processed.", stats.num_prompt_tokens)
        yield _counter("generation_tokens", "Number of generation tokens processed.", stats.num_generated_tokens)
        yield _Counter("cached_tokens", "Number of cached prompt tokens.", by_tier | stored, "cache_source")
        yield _Counter(
            "realtime_tokens",
            "Tokens processed, by what was done.",
            {
                "prefill_compute": stats.num_computed_tokens,
                "prefill_cache": stats.num_cached_tokens,
                "decode": stats.num_generated_tokens,
            },
            "mode",
        )
        yield _Counter(
            "prefill_effective_tokens",
            "Prompt tokens by the tier that gave them; input: computed.",
            {
                "input": stats.num_computed_tokens,
                "device_hit": stats.num_device_tokens,
                "host_hit": stats.num_host_tokens,
                "storage_hit": stats.num_storage_tokens,
            },
            "mode",
        )

    def _requests(self, stats: SchedulerStats) -> Iterator[_Counter | _Histogram]:
        requests = self._traffic.requests
        num_aborted = requests.num_ended["abort_client_gone"] + requests.num_ended["abort_shutdown"]
        yield _counter("num_requests", "Number of requests processed.", sum(requests.num_ended.values()))
        yield _counter("num_aborted_requests", "Number of requests aborted.", num_aborted)
        yield _counter("num_retracted_requests", "Number of retracted requests.", stats.num_preemptions)
        yield _Histogram(
            "time_to_first_token_seconds",
            "Histogram of time to first token in seconds.",
            tuple(requests.time_to_first_token.values()),
        )
        yield _Histogram(
            "inter_token_latency_seconds",
            "Histogram of inter-token latency in seconds.",
            tuple(requests.inter_token_latency.values()),
        )
        yield _Histogram(
            "e2e_request_latency_seconds",
            "Histogram of End-to-end request latency in seconds",
            tuple(requests.request_seconds.values()),
        )
        yield _Histogram("queue_time_seconds", "Histogram of queueing time in seconds.", (requests.queue_seconds,))
        yield _counter(
            "evicted_tokens", "Token slots of the device freed by eviction.", stats.num_evicted_pages * self._page_size
        )

    def _transfers(self, stats: ControllerStats | None) -> Iterator[_Counter]:
        if stats is None:
            return

        def num_tokens(direction: Direction) -> int:
            return stats.transfers.get(direction, TransferStats()).num_pages * self._page_size

        loaded = {"kv": num_tokens("host_to_device")}
        yield _Counter("load_back_tokens", "Tokens loaded back from the host to the device.", loaded, "pool")
        yield _counter("prefetched_tokens", "Number of prefetched prompt tokens.", num_tokens("storage_to_host"))
        yield _counter("backuped_tokens", "Number of backuped tokens.", num_tokens("host_to_storage"))

    def _family(self, prefix: str, fact: _Gauge | _Counter | _Histogram) -> Metric:
        names, values = tuple(self._labels), tuple(self._labels.values())
        match fact:
            case _Gauge():
                gauge = GaugeMetricFamily(prefix + fact.name, fact.documentation, labels=names)
                gauge.add_metric(values, fact.value)
                return gauge
            case _Counter():
                more = () if fact.label is None else (fact.label,)
                counter = CounterMetricFamily(prefix + fact.name, fact.documentation, labels=(*names, *more))
                for value, count in fact.values.items():
                    counter.add_metric((*values, *(() if fact.label is None else (value,))), count)
                return counter
            case _Histogram():
                histogram = HistogramMetricFamily(prefix + fact.name, fact.documentation, labels=names)
                histogram.add_metric(values, _added(fact.parts), sum(part.sum for part in fact.parts))
                return histogram


class _TokensByStore:
    """SGLang's label has the store's name in it, Pagefall counts over all stores that a server has had: the tokens that
    came since the last look are the present store's.
    """

    def __init__(self) -> None:
        self._num_tokens: Counter[str] = Counter()
        self._label: str | None = None

    def count(self, num_tokens: int, stats: ControllerStats | None) -> dict[str, float]:
        """By SGLang's label; `num_tokens` is the sum. Empty as long as there was no store."""
        if stats is not None and stats.storage_backend is not None:
            self._label = f"storage_{stats.storage_backend}"
        if self._label is not None:
            self._num_tokens[self._label] += num_tokens - self._num_tokens.total()
        return {**self._num_tokens}


def _counter(name: str, documentation: str, value: float) -> _Counter:
    return _Counter(name, documentation, {"": value})


def _added(parts: tuple[Histogram, ...]) -> list[tuple[str, float]]:
    """The cumulated buckets of all parts together."""
    rows = zip(*(part.cumulative() for part in parts), strict=True)
    return [(row[0][0], sum(count for _, count in row)) for row in rows]
