from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefall.insight.diagnosis.ceiling import Keys, PrefixHasher, num_usable_tokens, prompt_keys
from pagefall.insight.diagnosis.reuse import reuse_distances


def hits_of_an_lru(keys: Sequence[Keys], num_usable: Sequence[int], num_pages: int) -> int:
    """Page by page: find the longest leading run, then touch all, the head last."""
    cache: OrderedDict[int, None] = OrderedDict()
    num_hits = 0
    for pages, usable in zip(keys, num_usable, strict=True):
        for page in pages.tolist()[:usable]:
            if page not in cache:
                break
            num_hits += 1
        for page in reversed(pages.tolist()):
            cache[page] = None
            cache.move_to_end(page)
        while len(cache) > num_pages:
            cache.popitem(last=False)
    return num_hits


def keys_of(sequences: Sequence[Sequence[int]]) -> tuple[list[Keys], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    keys = prompt_keys(PrefixHasher(), ((np.array(each, dtype=np.uint32), 0) for each in sequences), 1)
    return keys, num_usable_tokens(keys, np.array([len(each) for each in sequences]), 1)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=1, max_size=16), st.integers(1, 40))
def test_distances_say_what_an_lru_of_any_size_finds(sequences: list[list[int]], num_pages: int) -> None:
    keys, usable = keys_of(sequences)
    distances = reuse_distances(keys, usable)
    assert distances.is_exact
    assert distances.num_hits(num_pages) == hits_of_an_lru(keys, usable.tolist(), num_pages)


@pytest.mark.parametrize("num_pages", [500, 1_000, 2_000, 4_000])
def test_a_tenth_of_the_pages_says_nearly_the_same(num_pages: int) -> None:
    rng = random.Random(5)
    # Some of 120 documents come often, most seldom; each with a question of its own.
    heads = [[document * 1_000 + at for at in range(40)] for document in range(120)]
    weights = [1 / (1 + rank) for rank in range(120)]
    sequences = [
        [*heads[rng.choices(range(120), weights)[0]], *(10_000_000 + number * 100 + at for at in range(10))]
        for number in range(1_500)
    ]
    keys, usable = keys_of(sequences)
    sampled = reuse_distances(keys, usable, max_pages=sum(map(len, keys)) // 10)
    exact = hits_of_an_lru(keys, usable.tolist(), num_pages)
    assert not sampled.is_exact
    assert abs(sampled.num_hits(num_pages) - exact) < 0.06 * usable.sum()


def test_no_pages_have_no_distances() -> None:
    keys, usable = keys_of([[], [1]])
    assert reuse_distances(keys[:1], usable[:1]).num_hits(10) == 0
    assert reuse_distances(keys, usable).num_hits(10) == 0
