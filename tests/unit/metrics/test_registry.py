from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from tests.unit.metrics.samples import DEVICE, HOST, metrics_of, samples

import pagefall
from pagefall.messages import ControllerStats, MissReason, PoolStats, SchedulerStats, TransferStats

COUNTERS = {
    "num_steps": "steps_total",
    "num_device_tokens": "prompt_tokens_total device",
    "num_host_tokens": "prompt_tokens_total host",
    "num_storage_tokens": "prompt_tokens_total storage",
    "num_computed_tokens": "prompt_tokens_total computed",
    "num_unreached_tokens": "prompt_tokens_total unreached",
    "num_known_tokens": "known_tokens_total",
    "saved_seconds": "saved_prefill_seconds_total",
    "num_generated_tokens": "generated_tokens_total",
    "num_preemptions": "preemptions_total",
    "num_evicted_pages": "evicted_pages_total device",
    "num_evicted_host_pages": "evicted_pages_total host",
    "num_lookups": "storage_lookups_total",
    "num_fetched_pages": "prefetched_pages_total fetched",
    "num_overtaken_pages": "prefetched_pages_total overtaken",
    "num_declined_fetches": "declined_prefetches_total",
    "num_skipped_offloads": "skipped_copies_total offload",
    "num_skipped_backups": "skipped_copies_total backup",
    "num_conservation_breaches": "conservation_breaches_total",
    "plan_seconds": "step_seconds_total plan",
    "forward_seconds": "step_seconds_total forward",
    "sample_seconds": "step_seconds_total sample",
}
SUMS = {"num_prompt_tokens", "num_cached_tokens"}
"""They are the sums of others, which Prometheus can add."""


def scheduler(host_pages: PoolStats | None = None) -> SchedulerStats:
    return SchedulerStats(num_running=1, num_queued=2, device_pages=DEVICE, host_pages=host_pages)


def test_every_counter_of_the_scheduler_is_published() -> None:
    gauges = {"num_running", "num_queued", "device_pages", "host_pages"}
    assert set(SchedulerStats.__struct_fields__) == COUNTERS.keys() | SUMS | gauges | {"num_missed_tokens"}
    numbers = {field: number for number, field in enumerate(COUNTERS, start=1)}
    missed = {reason: number for number, reason in enumerate(get_args(MissReason), start=100)}
    stats = msgspec.structs.replace(scheduler(), num_missed_tokens=missed, **numbers)
    published = samples(metrics_of(lambda: stats))
    assert {field: published[f"pagefall_{name}"] for field, name in COUNTERS.items()} == numbers
    assert {reason: published[f"pagefall_missed_tokens_total {reason}"] for reason in missed} == missed
    assert (published["pagefall_num_running_reqs"], published["pagefall_num_queue_reqs"]) == (1, 2)


def test_each_pool_has_its_pages_by_state_and_what_they_amount_to() -> None:
    published = samples(metrics_of(lambda: scheduler(HOST)))
    for tier, pool in (("device", DEVICE), ("host", HOST)):
        for state in ("free", "leased", "cached", "pinned"):
            assert published[f"pagefall_pages {state} {tier}"] == getattr(pool, state)
        assert published[f"pagefall_num_cached_tokens {tier}"] == pool.cached * 16
    assert published["pagefall_token_usage device"] == pytest.approx(0.9)
    assert published["pagefall_token_usage host"] == pytest.approx(0.45)
    assert "pagefall_num_cached_tokens storage" not in published


def test_without_tiers_there_is_nothing_of_them() -> None:
    published = samples(metrics_of(scheduler))
    assert not [name for name in published if "transfer" in name]
    assert "pagefall_pages free host" not in published
    assert not [name for name in published if name.startswith("pagefall_storage_") and "lookups" not in name]


def test_transfers_are_published_in_every_direction() -> None:
    moved = TransferStats(num_pages=3, num_bytes=3000, num_transfers=2, seconds=0.5)
    stats = ControllerStats(transfers={"device_to_host": moved})
    published = samples(metrics_of(scheduler, lambda: stats))
    assert published["pagefall_transfer_pages_total device_to_host"] == 3
    assert published["pagefall_transfer_bytes_total device_to_host"] == 3000
    assert published["pagefall_transfer_seconds_total device_to_host"] == 0.5
    for direction in ("host_to_device", "host_to_storage", "storage_to_host"):
        assert published[f"pagefall_transfer_bytes_total {direction}"] == 0


def test_the_store_is_published_with_its_faults_and_its_fill() -> None:
    stats = ControllerStats(
        num_storage_outcomes={"hit": 4, "corrupt:checksum": 1, "corrupt:odd": 2},
        num_storage_failures={"timeout": 2},
        breaker="open",
        storage_num_pages=8,
        storage_used_bytes=8000,
        storage_limit_bytes=10_000,
    )
    published = samples(metrics_of(scheduler, lambda: stats))
    assert published["pagefall_storage_pages_total hit"] == 4
    assert published["pagefall_storage_pages_total corrupt:checksum"] == 1
    assert published["pagefall_storage_pages_total corrupt:odd"] == 2
    assert published["pagefall_storage_failures_total timeout"] == 2
    assert {
        state: published[f"pagefall_storage_breaker_state {state}"] for state in ("closed", "open", "half_open")
    } == {"closed": 0, "open": 1, "half_open": 0}
    assert published["pagefall_storage_used_bytes"] == 8000
    assert published["pagefall_storage_limit_bytes"] == 10_000
    assert published["pagefall_num_cached_tokens storage"] == 8 * 16


def test_without_a_store_its_gauges_are_out_and_its_counters_stay() -> None:
    stats = ControllerStats(num_storage_outcomes={"hit": 4}, num_storage_failures={"timeout": 2})
    published = samples(metrics_of(scheduler, lambda: stats))
    assert published["pagefall_storage_pages_total hit"] == 4
    assert published["pagefall_storage_failures_total timeout"] == 2
    assert published["pagefall_storage_failures_total error"] == 0
    for name in ("breaker_state closed", "used_bytes", "limit_bytes"):
        assert f"pagefall_storage_{name}" not in published


def test_a_store_that_has_not_told_its_fill_or_has_no_limit_has_no_number_for_it() -> None:
    published = samples(metrics_of(scheduler, lambda: ControllerStats(breaker="closed")))
    assert not {"pagefall_storage_used_bytes", "pagefall_num_cached_tokens storage"} & published.keys()
    told = ControllerStats(breaker="closed", storage_num_pages=0, storage_used_bytes=0)
    published = samples(metrics_of(scheduler, lambda: told))
    assert published["pagefall_storage_used_bytes"] == published["pagefall_num_cached_tokens storage"] == 0
    assert "pagefall_storage_limit_bytes" not in published


def test_what_runs_is_told_with_the_model_it_serves() -> None:
    assert samples(metrics_of(scheduler))[f"pagefall_info some/model {pagefall.__version__}"] == 1


def test_two_servers_in_one_process_share_no_numbers() -> None:
    busy = metrics_of(lambda: SchedulerStats(num_running=7, num_queued=0, device_pages=DEVICE))
    idle = metrics_of(lambda: SchedulerStats(num_running=0, num_queued=0, device_pages=DEVICE))
    assert [samples(metrics)["pagefall_num_running_reqs"] for metrics in (busy, idle)] == [7, 0]
