from __future__ import annotations

from tests.scheduling_driver import DEFAULT_CACHE, Driver, planned, prompt

from pagefall.config import CacheConfig

NUM_REQUESTS = 6


def crowded(*, cache: CacheConfig = DEFAULT_CACHE) -> Driver:
    """All requests start, for the reserve suffices: 34 pages each. Whole answers would take 52 pages each."""
    driver = Driver(num_pages=210, cache=cache)
    for index in range(NUM_REQUESTS):
        driver.submit(str(index), prompt(index, 8), max_tokens=200)
    return driver


def test_answers_are_right_after_preemption() -> None:
    driver = crowded()
    driver.run()
    assert driver.state.counters.num_preemptions > 0
    for index in range(NUM_REQUESTS):
        assert driver.answers[str(index)] == driver.model.answer_alone(prompt(index, 8), 200)
        assert driver.finish_reasons[str(index)] == "length"


def test_answers_are_right_after_preemption_without_a_cache() -> None:
    driver = crowded(cache=CacheConfig(disable_radix_cache=True))
    driver.run()
    assert driver.state.counters.num_preemptions > 0
    for index in range(NUM_REQUESTS):
        assert driver.answers[str(index)] == driver.model.answer_alone(prompt(index, 8), 200)


def test_the_latest_of_the_lowest_priority_gives_way() -> None:
    driver = Driver(num_pages=120)
    for name, priority in [("low", 0), ("high", 1), ("low, later", 0)]:
        driver.submit(name, prompt(len(name), 4), max_tokens=300, priority=priority)
    while not driver.state.counters.num_preemptions:
        driver.step()
    assert driver.running() == ["high", "low"]
    assert [waiting.request.request_id for waiting in driver.state.queue.first(9)] == ["low, later"]


def test_a_preempted_request_is_resumed_from_the_cache_before_any_newcomer() -> None:
    driver = Driver(num_pages=80)
    driver.submit("a", prompt(0, 4), max_tokens=250)
    driver.submit("b", prompt(1, 4), max_tokens=300)
    while not driver.state.counters.num_preemptions:
        driver.step()
    driver.submit("newcomer", prompt(2, 4), max_tokens=4)
    num_steps = len(driver.model.plans)
    driver.run()
    after = [planned(plan) for plan in driver.model.plans[num_steps:]]
    resumed = next(index for index, plan in enumerate(after) if "b" in plan)
    assert resumed <= next(index for index, plan in enumerate(after) if "newcomer" in plan)
    assert after[resumed]["b"][0] > 4, "nothing of the answer so far was found in the cache"


def test_a_resumed_request_gets_new_tokens_before_it_gives_way_again() -> None:
    driver = crowded()
    num_tokens_at: dict[str, int] = {}
    while not driver.state.is_idle:
        waiting_before = {w.request.request_id for w in driver.state.queue.first(99)}
        driver.step()
        for waiting in driver.state.queue.first(99):
            name = waiting.request.request_id
            if name not in waiting_before:
                assert waiting.request.num_tokens > num_tokens_at.get(name, 0)
                num_tokens_at[name] = waiting.request.num_tokens
    assert num_tokens_at


def test_preemption_is_rare_for_requests_that_hardly_fit() -> None:
    driver = crowded()
    driver.run()
    # Every token but those of a cached head is computed once; thrashing would compute them again and again.
    computed = sum(len(s.token_ids) - s.start for plan in driver.model.plans for s in plan.sequences)
    assert driver.state.counters.num_preemptions <= 12
    assert computed <= 1.5 * NUM_REQUESTS * 208


def test_cached_tokens_stay_what_the_first_start_found() -> None:
    driver = crowded()
    driver.run()
    assert set(driver.cached_tokens.values()) == {0}
