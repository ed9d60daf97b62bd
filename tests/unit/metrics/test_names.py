"""Dashboards and alerts rely on these names: what changes here breaks them."""

from __future__ import annotations

from collections import defaultdict

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.metrics.fresh_server import fresh_metrics

import pagefall

pytestmark = pytest.mark.anyio

SOURCES = "device|host|none|storage"
DIRECTIONS = "device_to_host|host_to_device|host_to_storage|storage_to_host"
# Values of labels with a bar in between, in the order of the alphabet.
NAMES = {
    "pagefall_info": ("gauge", {"model": "some/model", "version": pagefall.__version__}),
    "pagefall_requests_total": ("counter", {"outcome": "abort_client_gone|abort_shutdown|length|stop"}),
    "pagefall_refused_requests_total": (
        "counter",
        {"reason": "bad_prompt|never_fits|queue_full|shutting_down|too_long"},
    ),
    "pagefall_time_to_first_token_seconds": ("histogram", {"source": SOURCES}),
    "pagefall_inter_token_latency_seconds": ("histogram", {"source": SOURCES}),
    "pagefall_request_seconds": ("histogram", {"source": SOURCES}),
    "pagefall_queue_seconds": ("histogram", {}),
    "pagefall_cache_hit_rate": ("gauge", {}),
    "pagefall_cache_hit_rate_ceiling": ("gauge", {}),
    "pagefall_event_loop_lag_seconds": ("histogram", {}),
    "pagefall_num_running_reqs": ("gauge", {}),
    "pagefall_num_queue_reqs": ("gauge", {}),
    "pagefall_prompt_tokens_total": ("counter", {"source": "computed|device|host|storage|unreached"}),
    "pagefall_known_tokens_total": ("counter", {}),
    "pagefall_missed_tokens_total": (
        "counter",
        {
            "reason": "below_threshold|cache_disabled|copy_failed|corrupt|diverged|evicted|never_seen|no_room|"
            "other_namespace|other_salt|page_tail|scored|slower_than_recompute|store_down|timed_out|unreached"
        },
    ),
    "pagefall_saved_prefill_seconds_total": ("counter", {}),
    "pagefall_generated_tokens_total": ("counter", {}),
    "pagefall_steps_total": ("counter", {}),
    "pagefall_step_seconds_total": ("counter", {"part": "forward|plan|sample"}),
    "pagefall_preemptions_total": ("counter", {}),
    "pagefall_evicted_pages_total": ("counter", {"tier": "device|host"}),
    "pagefall_storage_lookups_total": ("counter", {}),
    "pagefall_prefetched_pages_total": ("counter", {"outcome": "fetched|overtaken"}),
    "pagefall_declined_prefetches_total": ("counter", {}),
    "pagefall_skipped_copies_total": ("counter", {"kind": "backup|offload"}),
    "pagefall_conservation_breaches_total": ("counter", {}),
    "pagefall_pages": ("gauge", {"state": "cached|free|leased|pinned", "tier": "device|host"}),
    "pagefall_num_cached_tokens": ("gauge", {"tier": "device|host|storage"}),
    "pagefall_token_usage": ("gauge", {"tier": "device|host"}),
    "pagefall_transfer_bytes_total": ("counter", {"direction": DIRECTIONS}),
    "pagefall_transfer_pages_total": ("counter", {"direction": DIRECTIONS}),
    "pagefall_transfer_seconds_total": ("counter", {"direction": DIRECTIONS}),
    "pagefall_storage_pages_total": (
        "counter",
        {
            "outcome": "breaker_open|corrupt:bad magic|corrupt:checksum|corrupt:damaged header|corrupt:length|"
            "corrupt:other key|corrupt:other namespace|corrupt:short|corrupt:version|error|hit|miss|timeout"
        },
    ),
    "pagefall_storage_failures_total": ("counter", {"kind": "error|full|timeout"}),
    "pagefall_storage_breaker_state": ("gauge", {"state": "closed|half_open|open"}),
    "pagefall_storage_used_bytes": ("gauge", {}),
    "pagefall_storage_limit_bytes": ("gauge", {}),
}


async def test_a_fresh_server_has_every_name_type_and_label_of_the_contract() -> None:
    text = await fresh_metrics()
    types = dict(line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE"))
    labels = {name: defaultdict[str, set[str]](set) for name in types}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = family.name if family.name in types else sample.name
            for label in sample.labels.keys() - {"le"}:
                labels[name][label].add(sample.labels[label])
    assert {
        name: (types[name], {label: "|".join(sorted(values)) for label, values in labels[name].items()})
        for name in types
    } == NAMES


async def test_nothing_has_been_counted_yet_and_the_hit_rate_is_no_number() -> None:
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(await fresh_metrics())
        if family.type in ("counter", "histogram")
        for sample in family.samples
        if sample.value
    }
    assert values == {}
    assert "\npagefall_cache_hit_rate NaN\n" in await fresh_metrics()
