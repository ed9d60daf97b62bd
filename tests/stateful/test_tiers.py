"""Random requests over pools far too small for them, with transfers that end in any order, late, or not well."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.tier_driver import TierDriver

from pagefall.config import CacheConfig, EvictionPolicyName, PrefetchPolicy, SchedulerConfig, TierConfig, WritePolicy
from pagefall.messages import Accepted, AttachStorage, DetachStorage, Tier
from pagefall.scheduling import plan

DOCUMENTS = [[int(token) for token in np.random.default_rng(seed).integers(0, 9, 40)] for seed in range(2)]
PROMPTS = st.builds(
    lambda document, length, tail: document[:length] + tail,
    st.sampled_from(DOCUMENTS),
    st.integers(0, 40),
    st.lists(st.integers(0, 1), min_size=1, max_size=4),
)


class TierMachine(RuleBasedStateMachine):
    driver: TierDriver

    @initialize(
        page_size=st.sampled_from([1, 4]),
        chunked_prefill_size=st.sampled_from([7, 16, 64]),
        max_running_requests=st.sampled_from([1, 3, 8]),
        num_host_pages=st.sampled_from([3, 20, 200]),
        write_policy=st.sampled_from(["write_through", "write_through_selective", "write_back"]),
        prefetch_policy=st.sampled_from(["auto", "best_effort", "wait_complete", "timeout"]),
        eviction_policy=st.sampled_from(["lru", "lfu", "slru", "fifo", "priority"]),
        has_storage=st.sampled_from([True, True, False]),
        reserve_tokens=st.sampled_from([0, 4, plan.RESERVE_TOKENS]),
    )
    def start(
        self,
        page_size: int,
        chunked_prefill_size: int,
        max_running_requests: int,
        num_host_pages: int,
        write_policy: WritePolicy,
        prefetch_policy: PrefetchPolicy,
        eviction_policy: EvictionPolicyName,
        has_storage: bool,
        reserve_tokens: int,
    ) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(plan, "RESERVE_TOKENS", reserve_tokens)
        self.driver = TierDriver(
            num_pages=112 // page_size,
            page_size=page_size,
            scheduler=SchedulerConfig(
                max_running_requests=max_running_requests,
                max_queued_requests=20,
                chunked_prefill_size=chunked_prefill_size,
            ),
            cache=CacheConfig(radix_eviction_policy=eviction_policy),
            tiers=TierConfig(
                enable_hierarchical_cache=True,
                hicache_write_policy=write_policy,
                hicache_storage_backend="memory" if has_storage else None,
                hicache_storage_prefetch_policy=prefetch_policy,
                hicache_prefetch_threshold=1,
            ),
            num_host_pages=num_host_pages,
        )
        self.wanted: dict[str, list[int]] = {}
        self.cancelled: set[str] = set()
        self.moves: list[tuple[int, bool, int]] = []
        self.driver.between = self.move_between

    def move_between(self) -> None:
        """What was drawn to happen while the next step is under way."""
        moves, self.moves = self.moves, []
        for which, fails, num_pages in moves:
            pending = self.driver.collect()
            if pending:
                self.driver.perform(pending[which % len(pending)], fails=fails, num_pages=num_pages)

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, 40),
        priority=st.integers(0, 1),
        tenant=st.sampled_from(["", "a"]),
    )
    def submit(self, prompt: list[int], max_tokens: int, priority: int, tenant: str) -> None:
        name = str(len(self.wanted))
        answer = self.driver.submit(name, prompt, max_tokens=max_tokens, priority=priority, cache_salt=tenant)
        if isinstance(answer, Accepted):
            self.wanted[name] = self.driver.model.answer_alone(prompt, max_tokens)

    @rule(data=st.data(), stop=st.booleans())
    @precondition(lambda self: self.wanted)
    def cancel(self, data: st.DataObject, stop: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.wanted)))
        if self.driver.cancel(name, stop=stop) is not None:
            self.cancelled.add(name)
        self.driver.state.cache.check()

    @rule(tiers=st.sets(st.sampled_from(["device", "host", "storage"]), min_size=1))
    def flush(self, tiers: set[Tier]) -> None:
        self.driver.flush(*tiers)

    @rule(key=st.integers(0, 1000))
    @precondition(lambda self: self.driver.store)
    def another_server_deletes_a_page(self, key: int) -> None:
        keys = sorted(self.driver.store)
        del self.driver.store[keys[key % len(keys)]]

    @rule(message=st.sampled_from([AttachStorage(backend="memory", extra_config={}), DetachStorage()]))
    @precondition(lambda self: not self.driver.is_changing)
    def change_storage(self, message: AttachStorage | DetachStorage) -> None:
        self.driver.change_storage(message)

    @rule(count=st.integers(1, 20))
    def step(self, count: int) -> None:
        for _ in range(count):
            sequences = self.driver.step().sequences
            assert sequences or self.driver.state.is_idle or self.driver.collect() or self.driver.state.wake_at

    @rule(which=st.integers(0, 1000), fails=st.sampled_from([False, False, True]), num_pages=st.integers(1, 6))
    def transfer(self, which: int, fails: bool, num_pages: int) -> None:
        self.moves.append((which, fails, num_pages))
        self.move_between()

    @rule(moves=st.lists(st.tuples(st.integers(0, 1000), st.sampled_from([False, False, True]), st.integers(1, 6))))
    def transfers_during_the_next_step(self, moves: list[tuple[int, bool, int]]) -> None:
        self.moves += moves

    @rule(forgotten=st.sampled_from([(), ("device",), ("device", "host"), ("device", "host")]))
    def all_transfers(self, forgotten: tuple[Tier, ...]) -> None:
        """And then the nearer tiers lose what nothing uses."""
        self.driver.settle()
        self.driver.flush(*forgotten)

    @rule(document=st.sampled_from(DOCUMENTS), length=st.integers(12, 40), num_moves=st.integers(0, 4))
    def only_the_store_is_left_and_asked(self, document: list[int], length: int, num_moves: int) -> None:
        """All is served, the nearer tiers are empty, and a prompt comes that was there before."""
        self.driver.run()
        self.driver.flush("device", "host")
        self.submit(document[:length], 3, 0, "")
        for _ in range(num_moves):
            pending = self.driver.collect()
            if pending:
                self.driver.perform(pending[0], num_pages=3)

    @invariant()
    def who_follows_the_changes_knows_what_is_where(self) -> None:
        if hasattr(self, "driver"):
            self.driver.check_changes()

    @invariant()
    def every_token_so_far_is_what_the_model_says_alone(self) -> None:
        if not hasattr(self, "driver"):
            return
        for name, answer in self.driver.answers.items():
            assert answer == self.wanted[name][: len(answer)]
            if name in self.driver.finish_reasons and name not in self.cancelled:
                assert answer == self.wanted[name]

    @invariant()
    def what_counts_as_stored_was_put_into_the_store_that_is_attached(self) -> None:
        if hasattr(self, "driver") and self.driver.tiers.has_storage and not self.driver.is_changing:
            for keys in self.driver.stored_nodes():
                assert keys <= self.driver.ever_stored

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.driver.run()
        self.patch.undo()
        self.every_token_so_far_is_what_the_model_says_alone()
        assert self.driver.finish_reasons.keys() == self.wanted.keys()
        stats = self.driver.state.stats()
        assert stats.device_pages.leased == stats.device_pages.pinned == 0
        assert stats.host_pages is not None
        assert stats.host_pages.leased == stats.host_pages.pinned == 0
        assert self.driver.tiers.is_quiet
        assert stats.num_cached_tokens == stats.num_device_tokens + stats.num_host_tokens + stats.num_storage_tokens
        self.driver.flush("device", "host")
        stats = self.driver.state.stats()
        assert stats.device_pages.cached == 0
        assert stats.host_pages is not None
        assert stats.host_pages.free == stats.host_pages.total
        assert not list(self.driver.tiers.outbox)
        assert np.all([content.dtype == np.uint32 for content in self.driver.store.values()])


TestTiers = TierMachine.TestCase
TestTiers.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
