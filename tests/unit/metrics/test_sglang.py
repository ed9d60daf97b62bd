"""SGLang's names: its users' dashboards and alerts are a contract."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.promql import live
from tests.unit.metrics.records import record, report
from tests.unit.metrics.samples import DEVICE, HOST, metrics_of, samples

from pagefall.config import InsightConfig
from pagefall.insight.records import RequestRecord
from pagefall.messages import ControllerStats, SchedulerStats, TransferStats
from pagefall.metrics.registry import Metrics
from pagefall.metrics.traffic import TrafficMetrics

COMMON: Final = ("engine_type", "model_name", "moe_ep_rank", "pp_rank", "tp_rank")

FAMILIES: Final = {
    # The load.
    "num_running_reqs": ("gauge", ()),
    "num_queue_reqs": ("gauge", ()),
    "gen_throughput": ("gauge", ()),
    "cache_hit_rate": ("gauge", ()),
    # The device's pool.
    "token_usage": ("gauge", ()),
    "full_token_usage": ("gauge", ()),
    "num_used_tokens": ("gauge", ()),
    "kv_used_tokens": ("gauge", ()),
    "kv_available_tokens": ("gauge", ()),
    "kv_evictable_tokens": ("gauge", ()),
    "num_cached_tokens": ("gauge", ()),
    "max_total_num_tokens": ("gauge", ()),
    "page_size": ("gauge", ()),
    "num_pages": ("gauge", ()),
    # Tokens.
    "prompt_tokens": ("counter", ()),
    "generation_tokens": ("counter", ()),
    "cached_tokens": ("counter", ("cache_source",)),
    "realtime_tokens": ("counter", ("mode",)),
    "prefill_effective_tokens": ("counter", ("mode",)),
    "evicted_tokens": ("counter", ()),
    # Requests.
    "num_requests": ("counter", ()),
    "num_aborted_requests": ("counter", ()),
    "num_retracted_requests": ("counter", ()),
    "time_to_first_token_seconds": ("histogram", ()),
    "inter_token_latency_seconds": ("histogram", ()),
    "e2e_request_latency_seconds": ("histogram", ()),
    "queue_time_seconds": ("histogram", ()),
}
"""Type, and labels beside `COMMON`; the parser knows counters without their `_total`."""

FAMILIES_OF_TIERS: Final = {
    "hicache_host_used_tokens": ("gauge", ()),
    "hicache_host_total_tokens": ("gauge", ()),
    "load_back_tokens": ("counter", ("pool",)),
    "prefetched_tokens": ("counter", ()),
    "backuped_tokens": ("counter", ()),
}

STATS: Final = SchedulerStats(
    num_running=1,
    num_queued=2,
    device_pages=DEVICE,
    host_pages=HOST,
    num_prompt_tokens=1000,
    num_cached_tokens=600,
    num_device_tokens=300,
    num_host_tokens=200,
    num_storage_tokens=100,
    num_computed_tokens=390,
    num_unreached_tokens=10,
    num_generated_tokens=77,
    num_preemptions=4,
    num_evicted_pages=5,
)
MOVED: Final = ControllerStats(
    transfers={
        "host_to_device": TransferStats(num_pages=2),
        "storage_to_host": TransferStats(num_pages=3),
        "host_to_storage": TransferStats(num_pages=4),
    },
    breaker="closed",
    storage_backend="file",
)


def compatible() -> TrafficMetrics:
    return TrafficMetrics(InsightConfig(metrics_compat="sglang"))


def serve(traffic: TrafficMetrics, request: RequestRecord, *, aborted: bool = False) -> None:
    """A request of three tokens, a tenth of a second each after half a second."""
    for observer in traffic.observers:
        observer.accepted(request)
        observer.settled(request)
        request.first_token_at = 0.5
        observer.progressed(request, 1, None)
        observer.progressed(request, 2, 0.2)
        request.ended_at = 0.7
        request.finish_reason = "abort" if aborted else "length"
        observer.ended(request)


def values(metrics: Metrics, prefix: str) -> dict[str, float]:
    """By SGLang's name, and the values of the labels that are not the same for all."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if sample.name.startswith(prefix):
                more = [value for label, value in sample.labels.items() if label not in COMMON]
                found[" ".join([sample.name.removeprefix(prefix), *more])] = sample.value
    return found


@pytest.mark.parametrize("prefix", ["sglang:", "sglang_"])
@pytest.mark.parametrize("has_tiers", [False, True])
def test_every_name_type_and_label_is_the_one_that_dashboards_ask_for(prefix: str, has_tiers: bool) -> None:
    stats = STATS if has_tiers else SchedulerStats(num_running=0, num_queued=0, device_pages=DEVICE)
    text = metrics_of(lambda: stats, lambda: MOVED if has_tiers else None, compatible()).render().decode()
    found = {
        family.name.removeprefix(prefix): (
            family.type,
            tuple(sorted({label for sample in family.samples for label in sample.labels} - {*COMMON, "le"})),
        )
        for family in text_string_to_metric_families(text)
        if family.name.startswith(prefix)
    }
    assert found == (FAMILIES | FAMILIES_OF_TIERS if has_tiers else FAMILIES)


@pytest.mark.parametrize("prefix", ["sglang:", "sglang_"])
def test_every_series_is_of_the_model_and_of_the_only_rank(prefix: str) -> None:
    told = live(metrics_of(lambda: STATS, lambda: MOVED, compatible()).render().decode())
    ours = {name: labels for name, labels in told.items() if name.startswith(prefix)}
    assert len(ours) > len(FAMILIES)
    for name, labels in ours.items():
        ranks = {label: labels[label] for label in COMMON}
        assert ranks == {
            "engine_type": {"unified"},
            "model_name": {"some/model"},
            "moe_ep_rank": {"0"},
            "pp_rank": {"0"},
            "tp_rank": {"0"},
        }, name


def test_both_spellings_say_the_same() -> None:
    traffic = compatible()
    serve(traffic, record(report(device=4, computed=6)))
    metrics = metrics_of(lambda: STATS, lambda: MOVED, traffic)
    colon, underscore = values(metrics, "sglang:"), values(metrics, "sglang_")
    moving = "gen_throughput"
    assert colon.pop(moving) > 0
    assert underscore.pop(moving) > 0
    assert colon == underscore


def test_the_exposition_has_names_with_a_colon_as_they_are() -> None:
    text = metrics_of(lambda: STATS, lambda: MOVED, compatible()).render().decode()
    assert re.search(r'^sglang:num_running_reqs\{[^}]*model_name="some/model"[^}]*\} 1\.0$', text, re.MULTILINE)
    assert re.search(r"^# TYPE sglang:prompt_tokens_total counter$", text, re.MULTILINE)
    assert re.search(r"^sglang_prompt_tokens_total\{.*\} 1000\.0$", text, re.MULTILINE)


def test_pools_and_counters_are_pagefalls_own_in_sglangs_words() -> None:
    found = values(metrics_of(lambda: STATS, lambda: MOVED, compatible()), "sglang:")
    pool = {
        "token_usage": 0.5,  # 2 leased pages and 3 pinned ones of 10: what is only cached is not used
        "full_token_usage": 0.5,
        "num_used_tokens": 5 * 16,
        "kv_used_tokens": 5 * 16,
        "kv_available_tokens": 1 * 16,
        "kv_evictable_tokens": 4 * 16,
        "num_cached_tokens": 7 * 16,
        "max_total_num_tokens": 10 * 16,
        "page_size": 16,
        "num_pages": 10,
        "hicache_host_used_tokens": 9 * 16,
        "hicache_host_total_tokens": 20 * 16,
    }
    tokens = {
        "prompt_tokens_total": 1000,
        "generation_tokens_total": 77,
        "cached_tokens_total device": 300,
        "cached_tokens_total host": 200,
        "cached_tokens_total storage_file": 100,
        "realtime_tokens_total prefill_compute": 390,
        "realtime_tokens_total prefill_cache": 600,
        "realtime_tokens_total decode": 77,
        "prefill_effective_tokens_total input": 390,
        "prefill_effective_tokens_total device_hit": 300,
        "prefill_effective_tokens_total host_hit": 200,
        "prefill_effective_tokens_total storage_hit": 100,
        "evicted_tokens_total": 5 * 16,
        "load_back_tokens_total kv": 2 * 16,
        "prefetched_tokens_total": 3 * 16,
        "backuped_tokens_total": 4 * 16,
        "num_retracted_requests_total": 4,
    }
    assert {name: found[name] for name in pool | tokens} == pool | tokens
    assert (found["num_running_reqs"], found["num_queue_reqs"]) == (1, 2)


def test_requests_are_counted_and_timed_over_all_sources() -> None:
    traffic = compatible()
    serve(traffic, record(report(device=8, computed=2)))
    serve(traffic, record(report(computed=10)))
    serve(traffic, record(report(computed=10)), aborted=True)
    found = values(metrics_of(lambda: STATS, traffic=traffic), "sglang:")
    assert (found["num_requests_total"], found["num_aborted_requests_total"]) == (3, 1)
    assert found["time_to_first_token_seconds_count"] == 3
    assert found["time_to_first_token_seconds_sum"] == pytest.approx(1.5)
    assert found["time_to_first_token_seconds_bucket 0.35"] == 0
    assert found["time_to_first_token_seconds_bucket 0.5"] == 3
    assert found["inter_token_latency_seconds_count"] == 6
    assert found["e2e_request_latency_seconds_count"] == 2  # an abort says nothing about how long an answer takes
    assert found["queue_time_seconds_count"] == 3
    assert found["cache_hit_rate"] == pytest.approx(8 / 30)


def test_tokens_stay_with_the_store_that_they_came_from() -> None:
    stats, moved = STATS, MOVED
    metrics = metrics_of(lambda: stats, lambda: moved, compatible())
    assert values(metrics, "sglang:")["cached_tokens_total storage_file"] == 100
    stats = SchedulerStats(num_running=0, num_queued=0, device_pages=DEVICE, num_storage_tokens=160)
    moved = ControllerStats(breaker="closed", storage_backend="redis")
    split = {"cached_tokens_total storage_file": 100, "cached_tokens_total storage_redis": 60}
    assert values(metrics, "sglang:").items() >= split.items()
    moved = ControllerStats()  # detached
    assert values(metrics, "sglang:").items() >= split.items()


def test_the_gauge_that_guides_ask_for_is_found_as_they_ask() -> None:
    lines = metrics_of(lambda: STATS, lambda: MOVED, compatible()).render().decode().splitlines()
    for pattern in ("cache_hit_rate", "(cache_hit|num_cached|num_running)"):
        found = [line for line in lines if re.search(pattern, line) and not line.startswith("#")]
        assert any(line.startswith("sglang:") for line in found)
        assert any(line.startswith("sglang_") for line in found)


def test_nothing_of_it_is_there_unless_it_is_asked_for() -> None:
    assert not [name for name in samples(metrics_of(lambda: STATS, lambda: MOVED)) if name.startswith("sglang")]


def test_the_guide_lists_every_name() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text()
    listed = set(re.findall(r"`(\w+)(?:\{\w+\})?`", guide))
    names = {
        name + ("_total" if kind == "counter" else "") for name, (kind, _) in (FAMILIES | FAMILIES_OF_TIERS).items()
    }
    assert names <= listed
