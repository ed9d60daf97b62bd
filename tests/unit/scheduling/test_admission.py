"""Who starts, who lets others pass, and for how long."""

from __future__ import annotations

from tests.scheduling_driver import Driver, planned, prompt

from pagefall.config import CacheConfig, SchedulerConfig
from pagefall.scheduling.policy import MAX_OVERTAKES

HEAD = prompt(99, 64)


def started_in_order(driver: Driver) -> list[str]:
    """Runs everything that waits."""
    waiting = {waiting.request.request_id for waiting in driver.state.queue.first(10_000)}
    started: list[str] = []
    while not driver.state.is_idle:
        started += [name for name in planned(driver.step()) if name in waiting and name not in started]
    return started


def test_the_longest_cached_prefix_starts_first() -> None:
    driver = Driver(scheduler=SchedulerConfig(max_running_requests=1))
    driver.submit("warm-up", HEAD, max_tokens=1)
    driver.run()
    driver.submit("cold", prompt(0, 64))
    driver.submit("short hit", [*HEAD[:16], *prompt(1, 48)])
    driver.submit("long hit", [*HEAD[:48], *prompt(2, 16)])
    assert started_in_order(driver) == ["long hit", "short hit", "cold"]


def test_a_cold_request_is_overtaken_by_hits_only_so_often() -> None:
    config = SchedulerConfig(max_running_requests=1, max_queued_requests=1000)
    driver = Driver(num_pages=256, scheduler=config)
    driver.submit("warm-up", HEAD, max_tokens=1)
    driver.run()
    driver.submit("cold", prompt(0, 64), max_tokens=1)
    for index in range(3 * MAX_OVERTAKES):
        driver.submit(f"hit {index}", [*HEAD, index], max_tokens=1)
    assert started_in_order(driver).index("cold") == MAX_OVERTAKES


def test_higher_priority_starts_before_earlier_arrival() -> None:
    driver = Driver(scheduler=SchedulerConfig(max_running_requests=1))
    driver.submit("low", prompt(0, 4), priority=-1)
    driver.submit("normal", prompt(1, 4))
    driver.submit("high", prompt(2, 4), priority=1)
    driver.run()
    assert list(driver.finish_reasons) == ["high", "normal", "low"]


def test_a_request_that_lacks_pages_lets_smaller_ones_pass() -> None:
    driver = Driver(num_pages=32, scheduler=SchedulerConfig(schedule_policy="fcfs"))
    driver.submit("running", prompt(0, 60), max_tokens=20)
    driver.step()
    driver.submit("big", prompt(1, 64), max_tokens=20)
    driver.submit("small", prompt(2, 4), max_tokens=4)
    assert list(planned(driver.step())) == ["running", "small"]
    driver.run()
    assert driver.answers["big"] == driver.model.answer_alone(prompt(1, 64), 20)


def test_small_requests_pass_a_big_one_only_so_often() -> None:
    config = SchedulerConfig(schedule_policy="fcfs", max_running_requests=2, max_queued_requests=1000)
    driver = Driver(num_pages=40, scheduler=config)
    driver.submit("running", prompt(0, 4), max_tokens=100)
    driver.step()
    driver.submit("big", prompt(1, 100), max_tokens=4)
    for index in range(3 * MAX_OVERTAKES):
        driver.submit(f"small {index}", prompt(2 + index, 4), max_tokens=1)
    assert started_in_order(driver).index("big") == MAX_OVERTAKES


def test_the_common_head_of_queued_requests_is_computed_once() -> None:
    driver = Driver(scheduler=SchedulerConfig(chunked_prefill_size=32))
    for index in range(8):
        driver.submit(str(index), [*HEAD, index], max_tokens=3)
    driver.run()
    computed = [
        (sequence.start, len(sequence.token_ids))
        for plan in driver.model.plans
        for sequence in plan.sequences
        if sequence.start < len(HEAD)
    ]
    assert computed == [(0, 32), (32, 64)]
    assert [driver.cached_tokens[str(index)] for index in range(8)] == [0, *[64] * 7]
    for index in range(8):
        assert driver.answers[str(index)] == driver.model.answer_alone([*HEAD, index], 3)


def test_a_request_that_awaits_a_head_starts_when_that_head_is_cached_not_when_the_other_is_done() -> None:
    driver = Driver(scheduler=SchedulerConfig(chunked_prefill_size=32))
    driver.submit("long", [*HEAD, *prompt(0, 64)])
    driver.submit("short", [*HEAD[:16], 1, 2])
    assert planned(driver.step()) == {"long": (0, 32)}
    driver.submit("stranger", prompt(5, 4))
    driver.cancel("long")
    assert planned(driver.step()) == {"short": (16, 18), "stranger": (0, 4)}


def test_a_request_whose_head_is_not_coming_after_all_computes_it_itself() -> None:
    driver = Driver(scheduler=SchedulerConfig(chunked_prefill_size=32))
    driver.submit("first", HEAD)
    driver.submit("second", [*HEAD, 1])
    driver.step()
    driver.cancel("first")
    driver.run()
    assert driver.cached_tokens["second"] == 32
    assert driver.answers["second"] == driver.model.answer_alone([*HEAD, 1], 4)


def test_without_a_cache_nobody_waits_for_a_head() -> None:
    driver = Driver(cache=CacheConfig(disable_radix_cache=True))
    driver.submit("a", HEAD)
    driver.submit("b", HEAD)
    assert planned(driver.step()) == {"a": (0, 64), "b": (0, 64)}


def test_tenants_with_different_salts_share_nothing() -> None:
    driver = Driver()
    driver.submit("a", HEAD, cache_salt="a")
    driver.submit("b", HEAD, cache_salt="b")
    assert planned(driver.step()) == {"a": (0, 64), "b": (0, 64)}
    driver.run()
    driver.submit("c", HEAD, cache_salt="a")
    driver.run()
    assert driver.cached_tokens == {"a": 0, "b": 0, "c": 60}
