"""However many requests wait for the store, the others go on as if they were not there."""

from __future__ import annotations

import pytest
from tests.scheduling_driver import planned, prompt
from tests.tier_driver import TierDriver

from pagefall.config import SchedulerConfig, TierConfig
from pagefall.scheduling.policy import WINDOW

DEADLINE = 5.0
NUM_WAITING = 3 * WINDOW


@pytest.fixture
def driver() -> TierDriver:
    """Its store says nothing, and many prompts wait for it."""
    driver = TierDriver(
        tiers=TierConfig(
            enable_hierarchical_cache=True,
            hicache_storage_backend="memory",
            hicache_storage_prefetch_policy="wait_complete",
            hicache_prefetch_threshold=8,
            hicache_storage_deadline=DEADLINE,
        ),
        num_host_pages=256,
        num_pages=256,
        scheduler=SchedulerConfig(max_running_requests=4, chunked_prefill_size=64),
    )
    for number in range(NUM_WAITING):
        driver.submit(f"waiting {number}", prompt(number, 9), max_tokens=1)
    while len(driver.collect()) < NUM_WAITING:
        assert not driver.step().sequences
        driver.now -= 1.0  # no time passes
    return driver


def test_a_request_behind_any_number_that_wait_for_the_store_starts_in_the_next_step(driver: TierDriver) -> None:
    driver.submit("stranger", prompt(1000, 7), max_tokens=1)
    assert planned(driver.step()) == {"stranger": (0, 7)}


def test_those_that_wait_for_the_store_start_when_their_time_is_over(driver: TierDriver) -> None:
    assert not driver.step().sequences
    assert driver.state.wake_at == pytest.approx(2 * DEADLINE)
    driver.now = 2 * DEADLINE
    assert len(planned(driver.step())) == 4
    while not driver.state.is_idle:
        driver.step()
    assert len(driver.finish_reasons) == NUM_WAITING
    driver.settle()
    driver.state.cache.check()


def test_those_that_the_store_has_answered_start_while_the_others_wait(driver: TierDriver) -> None:
    for pending in driver.collect()[40:42]:
        driver.perform(pending)
    assert planned(driver.step()).keys() == {"waiting 40", "waiting 41"}
