"""How long the prefix cache takes to match, insert and evict, by size of the cache and length of the prompt."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import msgspec
import numpy as np

from pagefall.cache.keys import root_key
from pagefall.cache.prefix_cache import PrefixCache
from pagefall.messages import TokenIds

ROOT = root_key(b"bench", "")
VOCAB_SIZE = 32_000
_BRANCH_DISTANCE_TOKENS = 1_024
_FILLER_TOKENS = 2_048


class CacheTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Medians in microseconds of CPU time, which other programs on the machine do not disturb as they do a clock.

    `match_us`: a prompt that is cached in full, on a path that another leaves every thousand tokens.
    `insert_us`: open, grow, commit and release of a prompt that shares nothing, into free pages.
    `evict_us`: growing the lease of such a prompt in a full pool, where pages must be evicted first.
    """

    match_us: float
    insert_us: float
    evict_us: float


def time_cache(*, page_size: int, num_cached_tokens: int, num_prompt_tokens: int, repeats: int) -> CacheTiming:
    """Times one size of cache and prompt, `num_prompt_tokens <= num_cached_tokens`, each operation `repeats` times."""
    rng = np.random.default_rng(0)
    cached, *fresh = (random_prompt(rng, num_prompt_tokens) for _ in range(1 + 2 * repeats))

    # Twice the room that is needed: an insert is to meet no eviction.
    cache = _new_cache(2 * (num_cached_tokens + repeats * num_prompt_tokens), page_size)
    _fill(cache, cached, num_cached_tokens, page_size, rng)
    longer = np.append(cached, np.uint32(0))  # a match leaves one token to compute
    assert cache.match(ROOT, longer).num_tokens == num_prompt_tokens // page_size * page_size
    match_us = [_us(cache.match, ROOT, longer) for _ in range(repeats)]
    insert_us = [_us(_insert, cache, prompt) for prompt in fresh[:repeats]]

    cache = _new_cache(num_cached_tokens, page_size)
    _fill(cache, cached, num_cached_tokens, page_size, rng)
    evict_us = []
    for prompt in fresh[repeats:]:
        lease = cache.open(ROOT, prompt, now=time.monotonic())
        evict_us.append(_us(cache.grow, lease, len(prompt), now=time.monotonic()))
        cache.commit(lease, prompt, now=time.monotonic())
        cache.release(lease, now=time.monotonic())
    return CacheTiming(match_us=median(match_us), insert_us=median(insert_us), evict_us=median(evict_us))


def random_prompt(rng: np.random.Generator, num_tokens: int) -> TokenIds:
    return rng.integers(0, VOCAB_SIZE, num_tokens, dtype=np.uint32)


def _new_cache(num_tokens: int, page_size: int) -> PrefixCache:
    return PrefixCache(num_pages=-(-num_tokens // page_size), page_size=page_size, eviction_policy="lru")


def _fill(cache: PrefixCache, first: TokenIds, num_tokens: int, page_size: int, rng: np.random.Generator) -> None:
    """Caches `num_tokens` tokens, or as many as fit: `first`, one page at every branch of it, and unrelated prompts."""
    for branch in range(_BRANCH_DISTANCE_TOKENS, len(first), _BRANCH_DISTANCE_TOKENS):
        _insert(cache, np.append(first[:branch], random_prompt(rng, page_size)))
    _insert(cache, first)
    for _ in range(len(first), num_tokens, _FILLER_TOKENS):
        _insert(cache, random_prompt(rng, _FILLER_TOKENS))


def _insert(cache: PrefixCache, prompt: TokenIds) -> None:
    lease = cache.open(ROOT, prompt, now=time.monotonic())
    if cache.grow(lease, len(prompt), now=time.monotonic()):
        cache.commit(lease, prompt, now=time.monotonic())
    cache.release(lease, now=time.monotonic())


def _us(call: Callable[..., object], *args: object, **kwargs: object) -> float:
    started = time.thread_time()
    call(*args, **kwargs)
    return (time.thread_time() - started) * 1e6
