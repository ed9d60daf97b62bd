from __future__ import annotations

import numpy as np
import pytest

from pagefall.cache.errors import LeaseError
from pagefall.cache.lease import Lease
from pagefall.cache.prefix_cache import PrefixCache
from pagefall.messages import PageIds, PoolStats, TokenIds

ROOT = b"root"
PAGE_SIZE = 4


def prompt(num_tokens: int, *, first: int = 0) -> TokenIds:
    return np.arange(first, first + num_tokens, dtype=np.uint32)


def make(num_pages: int = 15, *, enabled: bool = True) -> PrefixCache:
    """Fewer than 16 pages: no reserve, so that every page can be cached."""
    return PrefixCache(num_pages=num_pages, page_size=PAGE_SIZE, eviction_policy="lru", enabled=enabled)


def computed(cache: PrefixCache, token_ids: TokenIds, *, now: float = 0.0, root: bytes = ROOT) -> Lease:
    """A live lease that has computed all of `token_ids`."""
    lease = cache.open(root, token_ids, now=now)
    assert cache.grow(lease, len(token_ids), now=now)
    cache.commit(lease, token_ids, now=now)
    cache.check()
    return lease


def served(cache: PrefixCache, token_ids: TokenIds, *, now: float = 0.0, root: bytes = ROOT) -> None:
    cache.release(computed(cache, token_ids, now=now, root=root), now=now)
    cache.check()


def counts(stats: PoolStats) -> tuple[int, int, int, int]:
    return stats.free, stats.leased, stats.cached, stats.pinned


def test_a_new_cache_is_all_free() -> None:
    cache = make()
    assert cache.stats() == PoolStats(total=15, free=15, leased=0, cached=0, pinned=0)
    assert cache.num_available == 15
    cache.check()


def test_a_page_has_at_least_one_token() -> None:
    with pytest.raises(ValueError, match="0 tokens"):
        PrefixCache(num_pages=1, page_size=0, eviction_policy="lru")


@pytest.mark.parametrize(("num_tokens", "num_matched"), [(0, 0), (1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (13, 12)])
def test_whole_pages_match_and_the_last_token_is_always_computed(num_tokens: int, num_matched: int) -> None:
    cache = make()
    served(cache, prompt(13))
    assert cache.match(ROOT, prompt(num_tokens)).num_tokens == num_matched
    lease = cache.open(ROOT, prompt(num_tokens), now=1.0)
    assert lease.num_cached_tokens == num_matched
    assert lease.num_pages == num_matched // PAGE_SIZE


def test_a_match_tells_how_many_of_its_pages_leave_the_available_ones_when_opened() -> None:
    cache = make()
    served(cache, prompt(13))
    match = cache.match(ROOT, prompt(13))
    before = cache.num_available
    cache.open(ROOT, prompt(13), now=1.0)
    assert match.num_unpinned_pages == before - cache.num_available == 3
    assert cache.match(ROOT, prompt(13)).num_unpinned_pages == 0


def test_a_page_is_free_then_private_then_shared_then_cached() -> None:
    cache = make()
    lease = cache.open(ROOT, prompt(10), now=0.0)
    assert counts(cache.stats()) == (15, 0, 0, 0)
    assert cache.grow(lease, 10, now=0.0)
    assert counts(cache.stats()) == (12, 3, 0, 0)
    cache.commit(lease, prompt(10), now=0.0)
    assert counts(cache.stats()) == (12, 1, 2, 2)
    cache.release(lease, now=0.0)
    assert counts(cache.stats()) == (13, 0, 2, 0)
    cache.check()


def test_a_second_request_reads_the_first_one_s_pages() -> None:
    cache = make()
    first = computed(cache, prompt(10))
    second = cache.open(ROOT, prompt(12), now=1.0)
    assert second.page_ids.tolist() == first.page_ids[:2].tolist()
    assert cache.grow(second, 12, now=1.0)
    assert second.page_ids[2] not in first.page_ids
    cache.check()


def test_chunks_and_answers_are_cached_as_they_are_computed() -> None:
    cache = make()
    lease = cache.open(ROOT, prompt(9), now=0.0)
    for num_tokens in (3, 4, 9, 10, 11, 12, 13):
        assert cache.grow(lease, num_tokens, now=0.0)
        cache.commit(lease, prompt(num_tokens), now=0.0)
        cache.check()
        assert cache.match(ROOT, prompt(100)).num_tokens == num_tokens // PAGE_SIZE * PAGE_SIZE


def test_growing_never_changes_an_array_handed_out_before() -> None:
    cache = make()
    lease = cache.open(ROOT, prompt(1), now=0.0)
    handed_out: list[tuple[PageIds, list[int]]] = []
    for num_tokens in range(1, 50, 3):
        assert cache.grow(lease, num_tokens, now=0.0)
        handed_out.append((lease.page_ids, lease.page_ids.tolist()))
    assert all(array.tolist() == pages for array, pages in handed_out)
    assert lease.num_pages == 13
    assert lease.page_ids.dtype == np.int32


def test_growing_to_less_than_is_held_keeps_everything() -> None:
    cache = make()
    lease = computed(cache, prompt(10))
    pages = lease.page_ids
    assert cache.grow(lease, 2, now=0.0)
    assert lease.page_ids is pages


def test_of_two_that_computed_the_same_page_one_copy_stays() -> None:
    cache = make()
    first, second = (cache.open(ROOT, prompt(9), now=0.0) for _ in range(2))
    for lease in (first, second):
        assert cache.grow(lease, 9, now=0.0)
    cache.commit(first, prompt(9), now=0.0)
    handed_out = second.page_ids
    before = handed_out.tolist()
    cache.commit(second, prompt(9), now=0.0)
    cache.check()
    assert handed_out.tolist() == before
    assert second.page_ids.tolist() == [*first.page_ids[:2].tolist(), before[2]]
    assert second.num_cached_tokens == 0
    assert counts(cache.stats()) == (11, 2, 2, 2)
    cache.release(first, now=1.0)
    assert cache.flush(1.0) == 0  # the second one still reads them
    cache.check()


def test_a_commit_that_leaves_the_cached_path_inside_a_node_shares_what_is_equal() -> None:
    cache = make()
    served(cache, prompt(12))
    longer = np.concatenate((prompt(8), prompt(8, first=100)))
    lease = cache.open(ROOT, longer[:4], now=0.0)
    assert cache.grow(lease, 16, now=0.0)
    cache.commit(lease, longer, now=0.0)
    cache.check()
    assert counts(cache.stats()) == (10, 0, 5, 4)
    assert cache.match(ROOT, prompt(13)).num_tokens == 12


def test_unpinned_leaves_make_room_least_recently_used_first() -> None:
    cache = make(6)
    served(cache, prompt(8), now=1.0)
    served(cache, prompt(8, first=100), now=2.0)
    lease = cache.open(ROOT, prompt(12, first=200), now=3.0)
    assert cache.num_available == 6
    assert cache.grow(lease, 12, now=3.0)
    cache.check()
    assert cache.num_evicted_pages == 1
    assert cache.match(ROOT, prompt(9)).num_tokens == 4
    assert cache.match(ROOT, prompt(9, first=100)).num_tokens == 8


def test_growing_is_all_or_nothing() -> None:
    cache = make(6)
    served(cache, prompt(8))
    held = computed(cache, prompt(12, first=100))
    before, pages = cache.stats(), held.page_ids
    assert not cache.grow(held, 25, now=1.0)
    assert cache.stats() == before
    assert held.page_ids is pages
    assert cache.match(ROOT, prompt(9)).num_tokens == 8
    assert cache.grow(held, 24, now=1.0)
    assert cache.num_available == 0
    cache.check()


def test_pages_that_a_live_request_reads_are_not_evicted() -> None:
    cache = make(4)
    served(cache, prompt(8))
    reader = cache.open(ROOT, prompt(9), now=1.0)
    other = cache.open(ROOT, prompt(9, first=100), now=1.0)
    assert not cache.grow(other, 9, now=1.0)
    cache.release(reader, now=2.0)
    assert cache.grow(other, 9, now=2.0)
    cache.check()


def test_part_of_a_large_pool_is_never_left_cached() -> None:
    cache = make(64)
    for number in range(10):
        served(cache, prompt(40, first=1000 * number))
    assert counts(cache.stats()) == (4, 0, 60, 0)
    assert cache.num_available == 64


def test_the_reserve_is_there_for_leases() -> None:
    cache = make(64)
    lease = cache.open(ROOT, prompt(1), now=0.0)
    assert cache.grow(lease, 64 * PAGE_SIZE, now=0.0)
    assert cache.num_available == 0


def test_under_churn_a_sequence_still_lies_in_a_few_runs() -> None:
    cache = make(512)
    num_runs = []
    running: list[tuple[Lease, TokenIds]] = []
    for step in range(2_000):
        now = float(step)
        if step % 20 == 0:
            token_ids = prompt(200, first=1000 * step)
            running.append((cache.open(ROOT, token_ids, now=now), token_ids))
        for lease, token_ids in running:
            num_tokens = max(120, lease.num_pages * PAGE_SIZE + 1)  # a prompt, then page by page
            assert cache.grow(lease, num_tokens, now=now)
            cache.commit(lease, token_ids[:num_tokens], now=now)
        for lease, _ in [ended for ended in running if ended[0].num_pages == 50]:
            num_runs.append(1 + np.count_nonzero(np.diff(lease.page_ids) != 1))
            cache.release(lease, now=now)
        running = [live for live in running if live[0].num_pages]
    cache.check()
    assert cache.num_evicted_pages > 4_000
    assert np.mean(num_runs) < 10  # of 50 pages; 17 without the reserve


def test_a_released_lease_is_over() -> None:
    cache = make()
    lease = computed(cache, prompt(10))
    cache.release(lease, now=1.0)
    before = cache.stats()
    with pytest.raises(LeaseError):
        cache.release(lease, now=1.0)
    with pytest.raises(LeaseError):
        cache.grow(lease, 100, now=1.0)
    with pytest.raises(LeaseError):
        cache.commit(lease, prompt(10), now=1.0)
    assert cache.stats() == before
    assert lease.num_pages == 0
    cache.check()


def test_a_lease_of_another_cache_is_refused() -> None:
    cache, other = make(), make()
    lease = computed(cache, prompt(10))
    with pytest.raises(LeaseError):
        other.release(lease, now=0.0)
    cache.release(lease, now=0.0)


def test_committing_more_than_the_pages_hold_is_refused() -> None:
    cache = make()
    lease = computed(cache, prompt(8))
    with pytest.raises(LeaseError, match="9 tokens were committed to a lease of 2 pages"):
        cache.commit(lease, prompt(9), now=0.0)
    cache.check()


def test_flushing_drops_what_nobody_reads_and_does_not_count_as_eviction() -> None:
    cache = make()
    served(cache, prompt(12))
    served(cache, prompt(8, first=100))
    reader = cache.open(ROOT, prompt(5), now=1.0)
    assert cache.flush(2.0) == 4
    assert counts(cache.stats()) == (14, 0, 1, 1)
    cache.release(reader, now=3.0)
    assert cache.flush(4.0) == 1
    assert cache.num_evicted_pages == 0
    cache.check()


def test_a_lease_that_was_open_during_a_flush_can_go_on() -> None:
    cache = make()
    lease = computed(cache, prompt(10))
    cache.flush(1.0)
    assert cache.grow(lease, 16, now=1.0)
    cache.commit(lease, prompt(16), now=1.0)
    cache.check()
    assert cache.match(ROOT, prompt(17)).num_tokens == 16


def test_roots_share_nothing_and_leave_nothing_behind() -> None:
    cache = make()
    served(cache, prompt(9), root=b"tenant a")
    assert cache.match(b"tenant b", prompt(9)).num_tokens == 0
    for number in range(20):
        cache.release(cache.open(str(number).encode(), prompt(9), now=0.0), now=0.0)
    cache.flush(0.0)
    assert list(cache._tree.nodes()) == []


def test_a_disabled_cache_leases_pages_but_remembers_nothing() -> None:
    cache = make(enabled=False)
    lease = computed(cache, prompt(10))
    assert counts(cache.stats()) == (12, 3, 0, 0)
    assert cache.match(ROOT, prompt(10)).num_tokens == 0
    assert cache.open(ROOT, prompt(10), now=0.0).num_cached_tokens == 0
    cache.release(lease, now=0.0)
    assert counts(cache.stats()) == (15, 0, 0, 0)
    cache.check()


def test_priority_keeps_a_prefix_under_pressure() -> None:
    cache = PrefixCache(num_pages=6, page_size=PAGE_SIZE, eviction_policy="priority")
    for first, priority in ((0, 1), (100, 0)):
        lease = cache.open(ROOT, prompt(8, first=first), now=float(first), priority=priority)
        assert cache.grow(lease, 8, now=float(first))
        cache.commit(lease, prompt(8, first=first), now=float(first))
        cache.release(lease, now=float(first))
    newcomer = cache.open(ROOT, prompt(16, first=200), now=300.0)
    assert cache.grow(newcomer, 16, now=300.0)
    assert cache.match(ROOT, prompt(9)).num_tokens == 8
    assert cache.match(ROOT, prompt(9, first=100)).num_tokens == 0
