"""A prompt's way down to host and store, and back up."""

from __future__ import annotations

import pytest
from tests.scheduling_driver import planned, prompt
from tests.tier_driver import TierDriver

from pagefall.config import PrefetchPolicy, SchedulerConfig, TierConfig, WritePolicy
from pagefall.messages import Backup, Fetch, LoadBack, Lookup, Offload, SchedulerStats
from pagefall.scheduling.arrivals import FETCHING

DOCUMENT = prompt(1, 41)  # ten pages of four, and the token that is always computed


def make(
    *,
    write: WritePolicy = "write_through",
    prefetch: PrefetchPolicy = "auto",
    storage: bool = True,
    num_pages: int = 64,
    num_host_pages: int = 256,
    chunk: int = 16,
    threshold: int = 8,
) -> TierDriver:
    return TierDriver(
        tiers=TierConfig(
            enable_hierarchical_cache=True,
            hicache_write_policy=write,
            hicache_storage_backend="memory" if storage else None,
            hicache_storage_prefetch_policy=prefetch,
            hicache_prefetch_threshold=threshold,
        ),
        num_pages=num_pages,
        num_host_pages=num_host_pages,
        scheduler=SchedulerConfig(chunked_prefill_size=chunk),
    )


def tokens_by_tier(stats: SchedulerStats) -> tuple[int, int, int]:
    return stats.num_device_tokens, stats.num_host_tokens, stats.num_storage_tokens


def ask(driver: TierDriver, name: str, token_ids: list[int] | None = None) -> None:
    driver.submit(name, DOCUMENT if token_ids is None else token_ids, max_tokens=2)


def answer(driver: TierDriver, name: str, token_ids: list[int] | None = None) -> tuple[int, int, int]:
    """Serves one request to its end and returns what came from device, host and storage; checks the answer."""
    before = tokens_by_tier(driver.state.stats())
    wanted = DOCUMENT if token_ids is None else token_ids
    ask(driver, name, wanted)
    driver.run()
    assert driver.answers[name] == driver.model.answer_alone(wanted, 2)
    after = tokens_by_tier(driver.state.stats())
    return after[0] - before[0], after[1] - before[1], after[2] - before[2]


def test_a_prompt_is_found_in_the_nearest_tier_that_still_has_it() -> None:
    driver = make()
    assert answer(driver, "cold") == (0, 0, 0)
    assert answer(driver, "device") == (40, 0, 0)
    driver.flush("device")
    assert answer(driver, "host") == (0, 40, 0)
    driver.flush("device", "host")
    assert answer(driver, "storage") == (0, 0, 40)
    assert answer(driver, "device again") == (40, 0, 0)
    driver.flush("device", "host", "storage")
    driver.settle()
    assert answer(driver, "cold again") == (0, 0, 0)


def test_what_came_from_the_store_is_not_written_to_it_again() -> None:
    driver = make(prefetch="wait_complete")
    answer(driver, "cold")
    driver.flush("device", "host")
    ask(driver, "hit")
    backups = 0
    while driver.collect() or not driver.state.is_idle:
        for pending in list(driver.pending):
            backups += isinstance(pending.message, Backup)
            driver.perform(pending)
        driver.step()
    assert driver.state.stats().num_storage_tokens == 40
    assert backups == 0


def test_each_tier_gives_its_part_of_one_prompt() -> None:
    driver = make()
    answer(driver, "head", DOCUMENT[:17])
    answer(driver, "whole")
    driver.flush("device", "host")
    answer(driver, "a part from the store", DOCUMENT[:29])
    driver.flush("device")
    answer(driver, "a part from the host", DOCUMENT[:17])
    assert answer(driver, "all of it") == (16, 12, 12)


def test_nothing_is_asked_of_the_store_for_a_few_tokens() -> None:
    driver = make(threshold=44)
    ask(driver, "short")
    assert not driver.collect()


def pending_of(driver: TierDriver, kind: type) -> list[object]:
    return [pending.message for pending in driver.collect() if isinstance(pending.message, kind)]


def stored_elsewhere(driver: TierDriver) -> None:
    """Another server has left the document in the store."""
    other = make()
    answer(other, "cold")
    driver.store.update(other.store)


def learn(driver: TierDriver) -> None:
    """Something is computed, so that the cost model knows what that takes."""
    answer(driver, "something else", prompt(9, 60))


def begin_two_ended(driver: TierDriver) -> None:
    """A fetch of the document is under way, and the request does not stand back for it."""
    stored_elsewhere(driver)
    learn(driver)
    driver.tiers.storage_link.observe(first_seconds=0.1, seconds=1.0, num_bytes=10_000)
    ask(driver, "hit")
    lookup = next(pending for pending in driver.collect() if isinstance(pending.message, Lookup))
    driver.perform(lookup)
    assert len(pending_of(driver, Fetch)) == 1


def finish(driver: TierDriver) -> None:
    driver.run()
    assert driver.answers["hit"] == driver.model.answer_alone(DOCUMENT, 2)


def fetch_some(driver: TierDriver, num_pages: int, *, fails: bool = False) -> None:
    fetch = next(pending for pending in driver.collect() if isinstance(pending.message, Fetch))
    driver.perform(fetch, num_pages=num_pages, fails=fails)


def load_back(driver: TierDriver) -> None:
    for pending in list(driver.collect()):
        if isinstance(pending.message, LoadBack):
            driver.perform(pending)


def test_computing_from_the_front_meets_the_store_that_loads_from_the_back() -> None:
    driver = make()
    begin_two_ended(driver)
    fetch_some(driver, 4)
    assert planned(driver.step())["hit"][0] == 0
    load_back(driver)
    fetch_some(driver, 2)
    load_back(driver)
    finish(driver)
    stats = driver.state.stats()
    assert tokens_by_tier(stats)[2] == 24


def test_what_was_fetched_while_the_host_got_it_from_another_request_comes_from_the_host() -> None:
    driver = make(prefetch="wait_complete")
    stored_elsewhere(driver)
    ask(driver, "hit")
    driver.perform(driver.collect()[0])
    fetch_some(driver, 4)
    driver.submit("another", DOCUMENT, max_tokens=2, priority=1)
    while "another" not in driver.finish_reasons or pending_of(driver, Offload):
        for pending in list(driver.collect()):
            if isinstance(pending.message, Offload | Lookup):
                driver.perform(pending, fails=isinstance(pending.message, Lookup))
        driver.step()
    driver.flush("device")
    finish(driver)
    assert tokens_by_tier(driver.state.stats()) == (0, 40, 0)


def test_a_damaged_page_in_the_middle_is_computed_and_those_around_it_are_used() -> None:
    driver = make(prefetch="wait_complete")
    stored_elsewhere(driver)
    ask(driver, "hit")
    driver.perform(driver.collect()[0])
    fetch_some(driver, 3)
    fetch_some(driver, 1, fails=True)
    fetch_some(driver, 6)
    finish(driver)
    assert tokens_by_tier(driver.state.stats()) == (0, 0, 36)
    starts = [planned(plan).get("hit") for plan in driver.model.plans]
    assert starts[:2] == [(12, 16), (40, 41)]


def test_a_failed_copy_to_the_device_is_computed_instead() -> None:
    driver = make()
    answer(driver, "cold")
    driver.flush("device")
    ask(driver, "hit")
    driver.step()
    load = next(pending for pending in driver.collect() if isinstance(pending.message, LoadBack))
    driver.perform(load, fails=True)
    finish(driver)
    assert tokens_by_tier(driver.state.stats()) == (0, 0, 0)


def test_a_failed_copy_to_the_host_leaves_the_pages_on_the_device() -> None:
    driver = make()
    ask(driver, "cold")
    while not driver.state.is_idle:
        driver.step()
        for pending in list(driver.collect()):
            driver.perform(pending, fails=isinstance(pending.message, Offload))
    stats = driver.state.stats()
    assert stats.host_pages is not None
    assert stats.host_pages.cached == 0
    assert answer(driver, "device") == (40, 0, 0)


@pytest.mark.parametrize("num_turns", range(9))
def test_an_abort_at_any_point_returns_every_page(num_turns: int) -> None:
    driver = make()
    begin_two_ended(driver)
    for turn in range(num_turns):
        if turn % 3 == 0 and pending_of(driver, Fetch):
            fetch_some(driver, 2)
        elif turn % 3 == 1:
            driver.step()
        else:
            load_back(driver)
    driver.cancel("hit")
    driver.run()
    stats = driver.state.stats()
    assert (stats.device_pages.leased, stats.device_pages.pinned) == (0, 0)
    assert stats.host_pages is not None
    assert (stats.host_pages.leased, stats.host_pages.pinned) == (0, 0)


def test_best_effort_uses_what_has_arrived_and_wants_no_more() -> None:
    driver = make(prefetch="best_effort")
    stored_elsewhere(driver)
    ask(driver, "hit")
    driver.perform(driver.collect()[0])
    fetch_some(driver, 3)
    driver.step()
    assert driver.collect()
    finish(driver)
    assert tokens_by_tier(driver.state.stats()) == (0, 0, 12)


def test_best_effort_does_not_wait_for_a_store_that_has_not_answered() -> None:
    driver = make(prefetch="best_effort")
    stored_elsewhere(driver)
    ask(driver, "hit")
    assert planned(driver.step()) == {"hit": (0, 16)}


def test_wait_complete_waits_for_every_page_that_the_store_has() -> None:
    driver = make(prefetch="wait_complete")
    stored_elsewhere(driver)
    ask(driver, "hit")
    assert not driver.step().sequences
    driver.perform(driver.collect()[0])
    fetch_some(driver, 9)
    assert not driver.step().sequences
    fetch_some(driver, 1)
    finish(driver)
    assert tokens_by_tier(driver.state.stats()) == (0, 0, 40)


def test_timeout_waits_for_base_and_per_token_seconds() -> None:
    driver = make(prefetch="timeout")
    stored_elsewhere(driver)
    ask(driver, "hit")
    driver.perform(driver.collect()[0])
    fetch_some(driver, 5)
    assert not driver.step().sequences  # one second later; ten milliseconds are left
    assert driver.state.wake_at == pytest.approx(1.0 + 0.25 * 40 / 1024)
    driver.step()
    finish(driver)
    assert tokens_by_tier(driver.state.stats()) == (0, 0, 20)


def test_auto_stands_back_no_longer_than_a_tenth_of_computing() -> None:
    driver = make()
    stored_elsewhere(driver)
    learn(driver)
    ask(driver, "hit")
    asked_at = driver.now
    driver.perform(driver.collect()[0])
    compute = driver.state.prefill_cost.estimate(0, 40, chunk_size=16)
    assert compute is not None
    assert not driver.step().sequences or driver.now >= asked_at + 0.1 * compute
    waiting = driver.state.queue.first(1)
    limit = asked_at + 0.1 * compute
    assert all(w.arrivals is None or w.arrivals.waits_until <= limit for w in waiting)


def test_auto_does_not_load_what_takes_far_longer_than_computing() -> None:
    driver = make()
    stored_elsewhere(driver)
    learn(driver)
    driver.tiers.storage_link.observe(first_seconds=1.0, seconds=1000.0, num_bytes=10_000)
    ask(driver, "hit")
    driver.perform(driver.collect()[0])
    assert not pending_of(driver, Fetch)
    request = driver.state.queue.first(1)[0].request
    assert request.trace.decision == "recompute"
    assert request.trace.num_present_pages == 10
    finish(driver)


def test_a_request_without_lower_pages_is_not_held_up_by_one_that_waits_for_them() -> None:
    driver = make(prefetch="wait_complete")
    stored_elsewhere(driver)
    ask(driver, "hit")
    ask(driver, "stranger", prompt(5, 7))
    assert planned(driver.step()) == {"stranger": (0, 7)}


def test_a_store_that_never_answers_costs_the_wait_and_nothing_else() -> None:
    driver = make()
    learn(driver)
    ask(driver, "hit")
    assert pending_of(driver, Lookup)
    driver.step()
    assert "hit" in planned(driver.step())
    while not driver.state.is_idle:
        driver.step()
    assert driver.answers["hit"] == driver.model.answer_alone(DOCUMENT, 2)


def test_write_back_copies_what_would_be_evicted_next_and_nothing_before() -> None:
    driver = make(write="write_back", num_pages=24, storage=False)
    answer(driver, "first")
    assert not driver.collect()
    stats = driver.state.stats()
    assert stats.host_pages is not None
    assert stats.host_pages.cached == 0
    answer(driver, "second", prompt(2, 41))
    answer(driver, "third", prompt(3, 41))
    on_device, on_host, _ = answer(driver, "first again")
    assert on_host >= 24
    assert on_device + on_host == 40


def test_write_through_selective_copies_at_the_second_hit() -> None:
    driver = make(write="write_through_selective", storage=False)
    answer(driver, "cold")
    answer(driver, "first hit")
    stats = driver.state.stats()
    assert stats.host_pages is not None
    assert stats.host_pages.cached == 0
    answer(driver, "second hit")
    stats = driver.state.stats()
    assert stats.host_pages is not None
    assert stats.host_pages.cached == 10


def test_a_page_that_was_not_written_is_written_when_it_is_used_again() -> None:
    driver = make()
    ask(driver, "cold")
    while driver.collect() or not driver.state.is_idle:
        for pending in list(driver.pending):
            driver.perform(pending, fails=isinstance(pending.message, Backup))
        driver.step()
    assert not driver.store
    answer(driver, "again")
    assert len(driver.store) >= 10


def test_a_tiny_host_pool_is_used_as_far_as_it_goes() -> None:
    driver = make(num_host_pages=3, storage=False)
    for round_ in range(3):
        for seed in range(4):
            answer(driver, f"{round_} {seed}", prompt(seed, 41))


def test_fetching_pages_that_the_request_has_overtaken_are_not_wanted_any_more() -> None:
    driver = make(chunk=64)
    begin_two_ended(driver)
    driver.tiers.storage_link.observe(first_seconds=50.0, seconds=1000.0, num_bytes=10_000)
    while not driver.state.is_idle:
        driver.step()
    assert driver.answers["hit"] == driver.model.answer_alone(DOCUMENT, 2)
    fetch = next(pending for pending in driver.collect() if isinstance(pending.message, Fetch))
    assert fetch.is_stopped
    assert not (next(iter(driver.tiers.fetches.values())).lookup.arrivals.states == FETCHING).any()


def test_what_would_take_longer_to_load_from_the_host_is_computed() -> None:
    driver = make(storage=False)
    answer(driver, "cold")
    driver.flush("device")
    driver.tiers.host_link.observe(first_seconds=0.0, seconds=1000.0, num_bytes=10_000)
    assert answer(driver, "hit") == (0, 0, 0)


def test_pages_of_the_host_that_the_store_has_not_taken_are_written_when_they_are_used_again() -> None:
    driver = make()
    ask(driver, "cold")
    while driver.collect() or not driver.state.is_idle:
        for pending in list(driver.pending):
            driver.perform(pending, fails=isinstance(pending.message, Backup))
        driver.step()
    driver.flush("device")
    assert not driver.store
    assert answer(driver, "again") == (0, 40, 0)
    assert len(driver.store) == 10


def test_a_prompt_larger_than_the_hosts_room_comes_from_the_store_in_parts() -> None:
    driver = make(num_host_pages=8)
    stored_elsewhere(driver)
    ask(driver, "hit")
    fetches = []
    while driver.collect() or not driver.state.is_idle:
        for pending in list(driver.pending):
            if isinstance(pending.message, Fetch):
                fetches.append(len(pending.message.keys))
            driver.perform(pending)
        driver.now -= 0.999  # a step takes a millisecond
        driver.step()
    assert driver.answers["hit"] == driver.model.answer_alone(DOCUMENT, 2)
    assert max(fetches) == 4  # half of the host's pages
    assert sum(fetches) == 10
    assert tokens_by_tier(driver.state.stats()) == (0, 0, 40)
