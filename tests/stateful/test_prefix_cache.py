"""The prefix cache against a model that remembers every prefix ever committed and the content of every page."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagefall.cache.errors import LeaseError
from pagefall.cache.lease import Lease
from pagefall.cache.prefix_cache import PrefixCache
from pagefall.config import EvictionPolicyName
from pagefall.messages import PageIds, TokenIds

ROOTS = (b"tenant a", b"tenant b")
POLICIES: tuple[EvictionPolicyName, ...] = ("lru", "lfu", "slru", "fifo", "priority")

Slot = tuple[bytes, int]
"""What a token slot holds: a digest of everything up to it, as keys and values do."""


@dataclass(eq=False)
class Request:
    root: bytes
    token_ids: TokenIds
    slots: list[Slot]
    lease: Lease
    num_computed: int
    num_cached: int
    handed_out: list[tuple[PageIds, list[int]]] = field(default_factory=list)


def slots_of(root: bytes, token_ids: TokenIds) -> list[Slot]:
    slots, digest = [], hash(root)
    for token_id in token_ids.tolist():
        digest = hash((digest, token_id))
        slots.append((root, digest))
    return slots


class PrefixCacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.live: list[Request] = []
        self.sequences: list[TokenIds] = [np.empty(0, dtype=np.uint32)]
        self.content: dict[tuple[int, int], Slot] = {}  # (page, offset) -> what was written there
        self.committed: set[Slot] = set()  # the last slot of every page ever committed
        self.dropped = False  # something committed may be gone

    @initialize(
        policy=st.sampled_from(POLICIES),
        page_size=st.sampled_from((1, 4, 16)),
        num_pages=st.integers(4, 40),
        stretch=st.sampled_from((1, 130)),
        enabled=st.sampled_from((True, True, True, True, False)),
    )
    def start(self, policy: EvictionPolicyName, page_size: int, num_pages: int, stretch: int, enabled: bool) -> None:
        # Stretched: nodes reach the length at which they are cut. Only with single-token pages, to stay quick.
        self.stretch = stretch if page_size == 1 else 1
        self.page_size = page_size
        self.enabled = enabled
        self.cache = PrefixCache(
            num_pages=num_pages * self.stretch, page_size=page_size, eviction_policy=policy, enabled=enabled
        )
        self.open_prompt(ROOTS[0], np.zeros(3 * page_size * self.stretch, dtype=np.uint32), 0)

    @rule(
        data=st.data(),
        root=st.sampled_from((*ROOTS, ROOTS[0], ROOTS[0])),
        blocks=st.lists(st.integers(0, 1), max_size=5),
        leave_early=st.booleans(),
        priority=st.integers(0, 2),
    )
    def open(self, data: st.DataObject, root: bytes, blocks: list[int], leave_early: bool, priority: int) -> None:
        """A prompt that goes on behind an earlier sequence, or leaves it somewhere."""
        head = data.draw(st.sampled_from(self.sequences))
        if leave_early:
            head = head[: data.draw(st.integers(0, len(head)))]
        tail = np.repeat(np.array(blocks, dtype=np.uint32), self.page_size * self.stretch)
        last = np.array([data.draw(st.integers(0, 1))], dtype=np.uint32)
        self.open_prompt(root, np.concatenate((head, tail, last)), priority)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def open_twin(self, data: st.DataObject) -> None:
        """The prompt of a live request once more: both may compute the same pages."""
        twin = data.draw(st.sampled_from(self.live))
        self.open_prompt(twin.root, twin.token_ids, 0)

    @rule(
        root=st.sampled_from(ROOTS),
        blocks=st.lists(st.integers(0, 3), min_size=2, max_size=6),
        num_twins=st.integers(1, 2),
        stay=st.booleans(),
    )
    def serve(self, root: bytes, blocks: list[int], num_twins: int, stay: bool) -> None:
        """Whole requests at once, side by side: twins compute the same pages, and what they leave may be evicted."""
        token_ids = np.repeat(np.array(blocks, np.uint32), self.page_size * self.stretch)
        twins = [self.open_prompt(root, token_ids, 0) for _ in range(num_twins)]
        ready = [twin for twin in twins if self.grow(twin, len(token_ids))]
        for twin in ready:
            self.write(twin, len(token_ids))
        for twin in ready:
            self.commit(twin)
        for twin in twins[:-1] if stay else twins:
            self.end(twin)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), whole=st.booleans(), commit=st.sampled_from((True, True, True, False)))
    def compute(self, data: st.DataObject, whole: bool, commit: bool) -> None:
        """The rest of the prompt or a chunk of it: grow, write, and (unless the step is lost) commit."""
        request = data.draw(st.sampled_from(self.live))
        num_tokens = len(request.token_ids)
        if not whole:
            num_tokens = data.draw(st.integers(request.num_computed, num_tokens))
        if not self.grow(request, num_tokens):
            return
        self.write(request, num_tokens)
        if commit:
            self.commit(request)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), answer=st.lists(st.integers(0, 1), min_size=1, max_size=20))
    def decode(self, data: st.DataObject, answer: list[int]) -> None:
        """New tokens at the end, one step each."""
        request = data.draw(st.sampled_from(self.live))
        if request.num_computed < len(request.token_ids):
            return
        for token_id in answer:
            request.token_ids = np.append(request.token_ids, np.uint32(token_id))
            _, digest = request.slots[-1]
            request.slots.append((request.root, hash((digest, token_id))))
            if not self.grow(request, len(request.token_ids)):
                return
            self.write(request, len(request.token_ids))
            self.commit(request)
        self.sequences.append(request.token_ids)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def reserve(self, data: st.DataObject) -> None:
        """Pages taken and not written: what an abort in mid-step leaves behind, or plain pressure."""
        request = data.draw(st.sampled_from(self.live))
        self.grow(request, data.draw(st.integers(0, self.cache.stats().total + 1)) * self.page_size)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.live)))

    @rule()
    def flush(self) -> None:
        stats = self.cache.stats()
        assert self.cache.flush(self.tick()) == stats.cached - stats.pinned
        assert self.cache.stats().cached == stats.pinned
        self.dropped = True

    @invariant()
    def pages_are_conserved(self) -> None:
        self.cache.check()
        stats = self.cache.stats()
        assert self.cache.num_available == stats.free + stats.cached - stats.pinned

    @invariant()
    def no_live_page_is_handed_out_twice(self) -> None:
        private = [page for request in self.live for page in request.lease.private_page_ids.tolist()]
        shared = {
            page for request in self.live for page in request.lease.page_ids[: request.lease.num_shared_pages].tolist()
        }
        assert len(private) == len(set(private))
        assert shared.isdisjoint(private)

    @invariant()
    def every_lease_reads_its_own_content(self) -> None:
        for request in self.live:
            read = [self.content[self.place(request, position)] for position in range(request.num_computed)]
            assert read == request.slots[: request.num_computed]

    @invariant()
    def arrays_handed_out_never_change(self) -> None:
        for request in self.live:
            assert all(array.tolist() == pages for array, pages in request.handed_out)

    def open_prompt(self, root: bytes, token_ids: TokenIds, priority: int) -> Request:
        slots = slots_of(root, token_ids)
        match = self.cache.match(root, token_ids)
        self.check_match(token_ids, slots, match.num_tokens)
        available = self.cache.num_available
        lease = self.cache.open(root, token_ids, now=self.tick(), priority=priority)
        assert lease.num_cached_tokens == match.num_tokens == lease.num_pages * self.page_size
        assert self.cache.num_available == available - match.num_unpinned_pages
        self.sequences.append(token_ids)
        request = Request(root, token_ids, slots, lease, match.num_tokens, match.num_tokens)
        self.live.append(request)
        return request

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def place(self, request: Request, position: int) -> tuple[int, int]:
        page, offset = divmod(position, self.page_size)
        return int(request.lease.page_ids[page]), offset

    def grow(self, request: Request, num_tokens: int) -> bool:
        before, available, evicted = self.cache.stats(), self.cache.num_available, self.cache.num_evicted_pages
        num_new = max(0, -(-num_tokens // self.page_size) - request.lease.num_pages)
        grown = self.cache.grow(request.lease, num_tokens, now=self.tick())
        assert grown == (num_new <= available)
        if grown:
            assert request.lease.num_pages * self.page_size >= num_tokens
            assert self.cache.stats().leased == before.leased + num_new
            request.handed_out.append((request.lease.page_ids, request.lease.page_ids.tolist()))
        else:
            assert self.cache.stats() == before
        self.dropped = self.dropped or self.cache.num_evicted_pages > evicted
        return grown

    def write(self, request: Request, num_tokens: int) -> None:
        for position in range(request.num_computed, num_tokens):
            self.content[self.place(request, position)] = request.slots[position]
        request.num_computed = max(request.num_computed, num_tokens)

    def commit(self, request: Request) -> None:
        token_ids = request.token_ids[: request.num_computed]
        num_pages = request.lease.num_pages
        self.cache.commit(request.lease, token_ids, now=self.tick())
        assert request.lease.num_pages == num_pages
        if self.enabled:
            assert request.lease.num_shared_pages == len(token_ids) // self.page_size
            self.committed.update(request.slots[self.page_size - 1 : request.num_computed : self.page_size])
        else:
            assert self.cache.stats().cached == 0

    def end(self, request: Request) -> None:
        self.live.remove(request)
        self.cache.release(request.lease, now=self.tick())
        assert request.lease.num_cached_tokens == request.num_cached
        with pytest.raises(LeaseError):
            self.cache.release(request.lease, now=self.now)

    def check_match(self, token_ids: TokenIds, slots: list[Slot], num_tokens: int) -> None:
        """Only what was committed matches, all of it while nothing was dropped, and always what a lease pins."""
        most = (len(token_ids) - 1) // self.page_size * self.page_size
        assert num_tokens % self.page_size == 0
        assert num_tokens <= most
        page_ends = slots[self.page_size - 1 : most : self.page_size]
        num_known = next((i for i, slot in enumerate(page_ends) if slot not in self.committed), len(page_ends))
        assert num_tokens <= num_known * self.page_size
        if not self.dropped:
            assert num_tokens == num_known * self.page_size
        pinned = {
            slot for request in self.live for slot in request.slots[: request.lease.num_shared_pages * self.page_size]
        }
        num_pinned = next((i for i, slot in enumerate(page_ends) if slot not in pinned), len(page_ends))
        assert num_tokens >= num_pinned * self.page_size


TestPrefixCache = PrefixCacheMachine.TestCase
TestPrefixCache.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
