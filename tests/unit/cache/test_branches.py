"""The tree's largest branches."""

from __future__ import annotations

import numpy as np

from pagefall.cache.prefix_cache import PrefixCache

ROOT = b"r" * 32


def cached(*sequences: list[int], num_pages: int = 1000) -> PrefixCache:
    cache = PrefixCache(num_pages=num_pages, page_size=2, eviction_policy="lru")
    for now, tokens in enumerate(sequences):
        token_ids = np.array(tokens, dtype=np.uint32)
        lease = cache.open(ROOT, token_ids, now=float(now))
        assert cache.grow(lease, len(tokens), now=float(now))
        cache.commit(lease, token_ids, now=float(now))
        cache.release(lease, now=float(now))
    return cache


def test_a_common_head_is_the_branch_and_its_tails_hang_on_it() -> None:
    head = list(range(10, 20))
    described = cached([*head, 1, 1], [*head, 2, 2, 2, 2], [9, 9]).describe(max_branches=10, now=5.0)
    shapes = [
        (branch.parent_id, branch.start_token, branch.num_own_tokens, branch.num_device_pages, branch.head_token_ids[0])
        for branch in described.branches
    ]
    assert shapes == [(None, 0, 10, 8, 10), (0, 10, 4, 2, 2), (None, 0, 2, 1, 9), (0, 10, 2, 1, 1)]
    assert described.is_complete
    assert [branch.idle_seconds for branch in described.branches] == [4.0, 4.0, 3.0, 5.0]


def test_a_path_without_forks_is_one_branch_however_many_nodes_it_has() -> None:
    tokens = list(range(1200))
    [branch] = cached(tokens).describe(max_branches=10, now=1.0).branches
    assert (branch.num_own_tokens, branch.num_device_pages) == (1200, 600)
    assert branch.num_nodes > 1
    assert len(branch.head_token_ids) == 64


def test_no_more_branches_are_told_than_asked_for() -> None:
    cache = cached(*([index, index] for index in range(30)))
    described = cache.describe(max_branches=7, now=0.0)
    assert len(described.branches) == 7
    assert described.num_nodes == 31


def test_an_empty_tree_has_none() -> None:
    assert cached().describe(max_branches=3, now=0.0).branches == ()
