"""Random submissions, cancellations, flushes and steps over a pool that is far too small for them."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.scheduling_driver import Driver

from pagefall.config import CacheConfig, EvictionPolicyName, SchedulePolicy, SchedulerConfig
from pagefall.messages import Accepted
from pagefall.scheduling import plan

# Few tokens, so that prompts have heads in common.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=40)


class SchedulingMachine(RuleBasedStateMachine):
    driver: Driver

    @initialize(
        page_size=st.sampled_from([1, 4, 16]),
        chunked_prefill_size=st.sampled_from([1, 7, 16, 64]),
        max_running_requests=st.sampled_from([1, 3, 8]),
        schedule_policy=st.sampled_from(["fcfs", "lpm"]),
        eviction_policy=st.sampled_from(["lru", "lfu", "slru", "fifo", "priority"]),
        disable_radix_cache=st.sampled_from([False, False, False, True]),
        reserve_tokens=st.sampled_from([0, 4, plan.RESERVE_TOKENS]),
    )
    def start(
        self,
        page_size: int,
        chunked_prefill_size: int,
        max_running_requests: int,
        schedule_policy: SchedulePolicy,
        eviction_policy: EvictionPolicyName,
        disable_radix_cache: bool,
        reserve_tokens: int,
    ) -> None:
        # With the real reserve the small pool would start so few requests that none is ever preempted.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(plan, "RESERVE_TOKENS", reserve_tokens)
        self.driver = Driver(
            num_pages=112 // page_size,
            page_size=page_size,
            scheduler=SchedulerConfig(
                max_running_requests=max_running_requests,
                max_queued_requests=20,
                chunked_prefill_size=chunked_prefill_size,
                schedule_policy=schedule_policy,
            ),
            cache=CacheConfig(radix_eviction_policy=eviction_policy, disable_radix_cache=disable_radix_cache),
        )
        self.wanted: dict[str, list[int]] = {}
        self.cancelled: set[str] = set()

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, 60),
        priority=st.integers(0, 1),
        stop=st.frozensets(st.integers(0, 255), max_size=8),
        tenant=st.sampled_from(["", "a"]),
        pins=st.sampled_from([(), (), ((8, 5.0), (30, 50.0)), ((40, 1000.0),)]),
    )
    def submit(
        self,
        prompt: list[int],
        max_tokens: int,
        priority: int,
        stop: frozenset[int],
        tenant: str,
        pins: tuple[tuple[int, float], ...],
    ) -> None:
        name = str(len(self.wanted))
        answer = self.driver.submit(
            name, prompt, max_tokens=max_tokens, priority=priority, stop=stop, cache_salt=tenant, pins=pins
        )
        if isinstance(answer, Accepted):
            self.wanted[name] = self.driver.model.answer_alone(prompt, max_tokens, stop)

    @rule(data=st.data(), stop=st.booleans())
    @precondition(lambda self: self.wanted)
    def cancel(self, data: st.DataObject, stop: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.wanted)))
        if self.driver.cancel(name, stop=stop) is not None:
            self.cancelled.add(name)
        self.driver.state.cache.check()

    @rule()
    def flush(self) -> None:
        self.driver.state.cache.flush(self.driver.now)
        self.driver.state.cache.check()

    @rule(count=st.integers(1, 20))
    def step(self, count: int) -> None:
        for _ in range(count):
            is_idle = self.driver.state.is_idle
            assert bool(self.driver.step().sequences) is not is_idle

    @invariant()
    def who_follows_the_changes_knows_what_is_where(self) -> None:
        if hasattr(self, "driver"):
            self.driver.check_changes()

    @invariant()
    def every_token_so_far_is_what_the_model_says_alone(self) -> None:
        for name, answer in self.driver.answers.items():
            assert answer == self.wanted[name][: len(answer)]
            if name in self.driver.finish_reasons and name not in self.cancelled:
                assert answer == self.wanted[name]

    @invariant()
    def pages_are_held_only_by_requests_that_run(self) -> None:
        if hasattr(self, "driver") and not len(self.driver.state.running):
            pages = self.driver.state.stats().device_pages
            assert pages.leased == 0
            assert pages.pinned <= self.driver.state.pins.num_pages <= pages.total // 4

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        # Nobody starves: whatever was accepted ends.
        self.driver.run()
        self.patch.undo()
        self.every_token_so_far_is_what_the_model_says_alone()
        assert self.driver.finish_reasons.keys() == self.wanted.keys()


TestScheduling = SchedulingMachine.TestCase
TestScheduling.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
