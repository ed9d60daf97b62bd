"""How large a cache has to be: reuse distances of pages, all of them or a sample.

The model is an LRU over pages. A prompt first finds its longest leading run of pages in the cache, then touches all of
its pages, the head last, so that tails go before heads, as in a radix tree. A page is found in a cache of `C` pages if
fewer than `C` others were touched since it was.

With a sample (SHARDS: Waldspurger, Park, Garthwaite, Ahmad, "Efficient MRC Construction with SHARDS", FAST 2015) only
pages whose key is below a threshold are followed, and a distance among these stands for one `1 / rate` times as long.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pagefall.insight.diagnosis.ceiling import Keys

MAX_SAMPLED_PAGES: Final = 1_000_000
"""More page accesses than that are sampled. A million take about two seconds."""


class ReuseDistances:
    """For each page of each prompt that was seen before and may be used, how many others were touched since."""

    def __init__(
        self, distances: npt.NDArray[np.int64], weights: npt.NDArray[np.float64], rate: float, num_reused: int
    ) -> None:
        """`distances` of the sample, in pages of the sample, each of which stands for `weights` pages of `num_reused`
        in all; `rate`: the share of pages that are in the sample.
        """
        order = np.argsort(distances)
        self._distances = distances[order]
        self._weights = np.concatenate([[0.0], weights[order].cumsum()])
        self._rate = rate
        self._num_reused = num_reused

    @property
    def is_exact(self) -> bool:
        return self._rate == 1

    def num_hits(self, num_pages: float) -> float:
        """Pages that a cache of `num_pages` pages would have found."""
        if not len(self._distances):
            return 0.0
        number = np.searchsorted(self._distances, num_pages * self._rate, side="left")
        return float(self._weights[number] * self._num_reused / self._weights[-1])


def reuse_distances(
    keys: Sequence[Keys], num_usable: npt.NDArray[np.int64], *, max_pages: int = MAX_SAMPLED_PAGES
) -> ReuseDistances:
    """`keys[i]` are the pages of prompt `i`, of which the first `num_usable[i]` may come from the cache."""
    total, num_reused = sum(map(len, keys)), int(num_usable.sum())
    rate = min(1.0, max_pages / total) if total else 1.0
    if rate == 1:
        distances = _distances(keys, num_usable)
        return ReuseDistances(distances, np.ones(len(distances)), rate, num_reused)
    threshold = np.uint64(int(rate * (1 << 64)))
    chosen = [each < threshold for each in keys]  # keys are hashes themselves
    weights = [_weights(mask[:usable]) for mask, usable in zip(chosen, num_usable, strict=True)]
    sampled = [each[mask] for each, mask in zip(keys, chosen, strict=True)]
    distances = _distances(sampled, np.array([len(each) for each in weights]))
    return ReuseDistances(distances, np.concatenate(weights), rate, num_reused)


def _weights(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """How many pages of a prompt are nearest to each that is in the sample.

    A few heads are asked for very often. How many of their pages a sample has is chance, and would count for much.
    """
    places = np.flatnonzero(mask)
    if not len(places):
        return np.empty(0)
    between = (places[1:] + places[:-1] + 1) / 2
    return np.diff(np.concatenate([[0.0], between, [float(len(mask))]]))


def _distances(keys: Sequence[Keys], num_usable: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """One pass, exact.

    Pages that one prompt was the last to touch are counted together in a Fenwick tree over prompts. In a prompt, those
    that were last touched by the same one stand side by side, and nearer to the head is nearer in time.
    """
    lengths = [len(each) for each in keys]
    if not sum(lengths):
        return np.empty(0, dtype=np.int64)
    _, pages = np.unique(np.concatenate(keys), return_inverse=True)
    last = np.full(int(pages.max()) + 1, -1, dtype=np.int64)
    tree = _Fenwick(len(keys))
    found: list[npt.NDArray[np.int64]] = []
    start = 0
    for prompt, length in enumerate(lengths):
        mine = pages[start : start + length]
        start += length
        before = last[mine]
        bounds = [0, *(np.flatnonzero(np.diff(before)) + 1).tolist(), length] if length else [0]
        for begin, end in itertools.pairwise(bounds):
            owner = int(before[begin])
            if owner < 0:
                continue
            usable = min(end, int(num_usable[prompt])) - begin
            if usable > 0:
                found.append(tree.num_after(owner) + np.arange(usable, dtype=np.int64))
        for begin, end in itertools.pairwise(bounds):
            owner = int(before[begin])
            if owner >= 0:
                tree.add(owner, begin - end)
        tree.add(prompt, length)
        last[mine] = prompt
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


class _Fenwick:
    """Counts by index, and their sums over a tail of the indices, both in logarithmic time."""

    def __init__(self, size: int) -> None:
        self._sums = [0] * (size + 1)
        self._total = 0

    def add(self, index: int, amount: int) -> None:
        self._total += amount
        index += 1
        while index < len(self._sums):
            self._sums[index] += amount
            index += index & -index

    def num_after(self, index: int) -> int:
        """The sum of the counts at higher indices."""
        head = 0
        index += 1
        while index:
            head += self._sums[index]
            index &= index - 1
        return self._total - head
