"""What an infinite cache would have given: prefixes of prompts as 64-bit numbers, compared in bulk.

A prefix's number is a multilinear hash of its values, modulo 2^64, with a random odd coefficient for each position. Two
prefixes of one length that differ have the same number with a probability of about 2^-60. It is for counting, and
never names a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
"""The numbers of a prompt's prefixes of one block, two blocks, and so on, `[num_blocks]`."""

_SEED: Final = 20_191
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class PrefixHasher:
    """Numbers the prefixes of sequences, all with the same coefficients."""

    def __init__(self) -> None:
        self._coefficients = np.empty(0, dtype=np.uint64)

    def keys(self, values: npt.NDArray[np.uint32], block: int, *, seed: int = 0) -> Keys:
        """One number for each whole block of `values` (`[num_values]`). Another `seed` makes all of them others."""
        num_blocks = len(values) // block
        if not num_blocks:
            return np.empty(0, dtype=np.uint64)
        num_values = num_blocks * block
        self._grow(num_values)
        # One more than each value, or zeros at the end would not count.
        products = (values[:num_values].astype(np.uint64) + np.uint64(1)) * self._coefficients[:num_values]
        sums = products.reshape(num_blocks, block).sum(axis=1, dtype=np.uint64).cumsum(dtype=np.uint64)
        return _mixed(sums + np.uint64(seed))

    def _grow(self, num_values: int) -> None:
        if len(self._coefficients) < num_values:
            # From the start each time, so that a longer list begins with the shorter one.
            random = np.random.Generator(np.random.PCG64(_SEED))
            size = 1 << (num_values - 1).bit_length()
            self._coefficients = random.integers(0, 1 << 64, size, dtype=np.uint64) | np.uint64(1)


def seed_of(text: str) -> int:
    """A 64-bit number for a `cache_salt` or a worker, 0 for none."""
    if not text:
        return 0
    value = 14_695_981_039_346_656_037
    for byte in text.encode("utf-8", "surrogatepass"):
        value = (value ^ byte) * 1_099_511_628_211 & 0xFFFF_FFFF_FFFF_FFFF
    return value


def num_known_blocks(keys: Sequence[Keys]) -> npt.NDArray[np.int64]:
    """How many leading blocks of each sequence were leading blocks of an earlier one, `[len(keys)]`."""
    lengths = np.array([len(each) for each in keys], dtype=np.int64)
    if not lengths.sum():
        return np.zeros(len(keys), dtype=np.int64)
    owners = np.repeat(np.arange(len(keys)), lengths)
    _, first, inverse = np.unique(np.concatenate(keys), return_index=True, return_inverse=True)
    # A prefix that was seen has only prefixes that were seen: counting them is the length of the longest.
    seen = owners[first][inverse] < owners
    return np.bincount(owners, weights=seen, minlength=len(keys)).astype(np.int64)


def num_usable_tokens(keys: Sequence[Keys], num_tokens: npt.NDArray[np.int64], page_size: int) -> npt.NDArray[np.int64]:
    """Of each prompt, what an infinite cache would give: whole pages seen before, never the last token."""
    num_whole_pages = np.maximum(num_tokens - 1, 0) // page_size
    usable: npt.NDArray[np.int64] = np.minimum(num_known_blocks(keys), num_whole_pages) * page_size
    return usable


def prompt_keys(hasher: PrefixHasher, prompts: Iterable[tuple[npt.NDArray[np.uint32], int]], block: int) -> list[Keys]:
    """The keys of each pair of values and seed."""
    return [hasher.keys(values, block, seed=seed) for values, seed in prompts]


def _mixed(values: Keys) -> Keys:
    """Every bit of the result depends on every bit of the value (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * _MIX[0]
    values = (values ^ (values >> np.uint64(27))) * _MIX[1]
    return values ^ (values >> np.uint64(31))
