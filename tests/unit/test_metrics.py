from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from pagefall.messages import ControllerStats, PoolStats, SchedulerStats, TransferStats
from pagefall.metrics import Metrics

DEVICE = PoolStats(total=10, free=1, leased=2, cached=7, pinned=3)
HOST = PoolStats(total=20, free=11, leased=0, cached=9, pinned=4)


def samples(metrics: Metrics) -> dict[str, float]:
    """By name and label values, as in `pagefall_device_pages free`."""
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def scheduler(host_pages: PoolStats | None = None) -> SchedulerStats:
    return SchedulerStats(num_running=1, num_queued=2, device_pages=DEVICE, host_pages=host_pages, num_lookups=5)


def test_every_counter_of_the_scheduler_is_published() -> None:
    published = samples(Metrics(scheduler))
    counters = set(SchedulerStats.__struct_fields__) - {"num_running", "num_queued", "device_pages", "host_pages"}
    assert {f"pagefall_{name}_total" for name in counters} <= published.keys()
    assert published["pagefall_num_lookups_total"] == 5
    assert (published["pagefall_num_running_reqs"], published["pagefall_num_queue_reqs"]) == (1, 2)


def test_each_pool_has_its_pages_by_state() -> None:
    published = samples(Metrics(lambda: scheduler(HOST)))
    for tier, pool in (("device", DEVICE), ("host", HOST)):
        for state in ("free", "leased", "cached", "pinned"):
            assert published[f"pagefall_{tier}_pages {state}"] == getattr(pool, state)


def test_without_tiers_there_is_nothing_of_them() -> None:
    assert not [name for name in samples(Metrics(scheduler)) if "host_pages " in name or "transfer" in name]


def test_transfers_are_published_in_every_direction() -> None:
    moved = TransferStats(num_pages=3, num_bytes=3000, num_transfers=2, seconds=0.5)
    stats = ControllerStats(transfers={"device_to_host": moved})
    published = samples(Metrics(scheduler, lambda: stats))
    assert published["pagefall_transfer_pages_total device_to_host"] == 3
    assert published["pagefall_transfer_bytes_total device_to_host"] == 3000
    assert published["pagefall_transfer_seconds_total device_to_host"] == 0.5
    for direction in ("host_to_device", "host_to_storage", "storage_to_host"):
        assert published[f"pagefall_transfer_bytes_total {direction}"] == 0
    assert not [name for name in published if name.startswith("pagefall_storage")], "there is no store"


def test_the_store_is_published_with_its_faults() -> None:
    stats = ControllerStats(
        num_storage_outcomes={"hit": 4, "corrupt:checksum": 1}, num_storage_failures={"timeout": 2}, breaker="open"
    )
    published = samples(Metrics(scheduler, lambda: stats))
    assert published["pagefall_storage_pages_total hit"] == 4
    assert published["pagefall_storage_pages_total corrupt:checksum"] == 1
    assert published["pagefall_storage_failures_total timeout"] == 2
    assert {
        state: published[f"pagefall_storage_breaker_state {state}"] for state in ("closed", "open", "half_open")
    } == {"closed": 0, "open": 1, "half_open": 0}
