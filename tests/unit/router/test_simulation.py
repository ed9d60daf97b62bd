"""What the policies do to workers under load: see `tests.router_simulation`. Nothing here depends on a clock."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from tests.router_simulation import Result, SimConfig, simulate
from tests.router_workloads import Workload, hot_prefix, sessions, shared_prefix, unique_prompts

from pagefall.router.routing import PolicyName

MAKERS: dict[str, Callable[[], Workload]] = {
    "shared": shared_prefix,
    "hot": hot_prefix,
    "sessions": sessions,
    "unique": unique_prompts,
}


@cache
def workload(name: str) -> Workload:
    return MAKERS[name]()


@cache
def run(policy: PolicyName, name: str, *, has_events: bool = True, knows_speeds: bool = True) -> Result:
    return simulate(policy, workload(name), SimConfig(has_events=has_events, knows_speeds=knows_speeds))


@pytest.mark.parametrize("has_events", [True, False])
def test_shared_prefixes_are_found_again_and_the_load_stays_even(has_events: bool) -> None:
    base = run("round_robin", "shared")
    aware = run("cache_aware", "shared", has_events=has_events)
    assert aware.hit_rate >= 3.8 * base.hit_rate
    assert aware.throughput >= 1.9 * base.throughput
    assert aware.max_over_mean <= 1.4
    assert aware.median_ttft < base.median_ttft / 10


def test_shared_prefixes_are_found_more_often_than_by_consistent_hashing() -> None:
    hashed = run("consistent_hash", "shared")
    aware = run("cache_aware", "shared")
    assert aware.hit_rate > 1.5 * hashed.hit_rate
    assert aware.throughput > 1.5 * hashed.throughput


@pytest.mark.parametrize("knows_speeds", [True, False])
def test_a_hot_prefix_spreads_over_all_workers_that_its_load_needs(knows_speeds: bool) -> None:
    base = run("round_robin", "hot")
    aware = run("cache_aware", "hot", knows_speeds=knows_speeds)
    assert aware.throughput >= base.throughput
    assert aware.hit_rate >= 0.99 * base.hit_rate
    assert aware.max_over_mean <= 1.4


def test_a_hot_prefix_with_little_load_stays_on_one_worker() -> None:
    few = Workload(name="few", clients=workload("hot").clients[:1], think_seconds=1.0)
    aware = simulate("cache_aware", few)
    assert aware.hit_rate > simulate("round_robin", few).hit_rate
    assert aware.max_over_mean > 3


def test_conversations_stay_where_they_are() -> None:
    base = run("round_robin", "sessions")
    aware = run("cache_aware", "sessions")
    # Each turn but the first finds all of the turn before.
    assert aware.hit_rate > 0.8
    assert aware.hit_rate >= 3 * base.hit_rate
    assert aware.throughput >= 1.9 * base.throughput
    assert aware.max_over_mean <= 1.4


def test_prompts_that_share_nothing_are_spread_by_their_length() -> None:
    assert run("cache_aware", "unique").hit_rate == 0
    assert run("cache_aware", "unique").throughput >= run("round_robin", "unique").throughput


def test_late_events_cost_little() -> None:
    late = simulate("cache_aware", workload("shared"), SimConfig(event_seconds=0.5))
    assert late.hit_rate >= 0.9 * run("cache_aware", "shared").hit_rate
