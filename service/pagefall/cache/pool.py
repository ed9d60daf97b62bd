"""The pages of one pool that nobody uses, kept as contiguous extents.

Attention on a CPU reads a contiguous run of pages as a view, so where a page lies matters. A sequence grows right
behind its last page while that one is free; a new run begins in the middle of the largest free extent, which leaves
room both for it and for the sequence in front of it. No cost depends on the size of the pool: the largest extent comes
from a heap with lazy deletion, neighbours are found by their first and last page.
"""

from __future__ import annotations

import heapq

import numpy as np

from pagefall.cache.errors import ConservationError, PageError
from pagefall.messages import PageIds

_ROOMY = 4
"""An extent this many times larger than what is asked of it is shared with the sequence in front."""

_HEAP_SLACK = 64


class PagePool:
    """Hands out page numbers `0 .. num_pages - 1`, each to one holder at a time."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 0:
            raise ValueError(f"a pool cannot have {num_pages} pages")
        self.num_pages = num_pages
        self.num_free = 0
        self._is_free = np.zeros(num_pages, dtype=np.bool_)
        self._length_at: dict[int, int] = {}  # first page of every free extent -> its length
        self._start_before: dict[int, int] = {}  # one past the last page of every free extent -> its first page
        self._by_length: list[tuple[int, int]] = []  # heap of (-length, start); stale where `_length_at` disagrees
        if num_pages:
            self._put(0, num_pages)

    def allocate(self, num_pages: int, *, after: int | None = None) -> PageIds | None:
        """Takes `num_pages` pages in as few contiguous runs as possible, or None when fewer are free.

        `after` is the last page of the sequence that grows: the pages right behind it are taken first. The result
        (`[num_pages]`, in the order of the sequence) is the caller's until `free`.
        """
        if num_pages < 0:
            raise ValueError(f"cannot allocate {num_pages} pages")
        if num_pages > self.num_free:
            return None
        runs: list[PageIds] = []
        missing = num_pages
        if missing and after is not None and (length := self._length_at.get(after + 1)):
            runs.append(self._take(after + 1, 0, min(length, missing)))
            missing -= len(runs[0])
        while missing:
            start, length = self._largest()
            count = min(length, missing)
            # Nothing in front of page 0 could grow.
            offset = (length - count) // 2 if start and length >= _ROOMY * count else 0
            runs.append(self._take(start, offset, count))
            missing -= count
        if len(runs) == 1:
            return runs[0]
        return np.concatenate(runs) if runs else np.empty(0, dtype=np.int32)

    def free(self, page_ids: PageIds) -> None:
        """Gives pages back, in any order.

        Raises `PageError`, with nothing changed, for a page that is free already, named twice or not of this pool.
        """
        if not len(page_ids):
            return
        ordered = np.sort(page_ids)
        if ordered[0] < 0 or ordered[-1] >= self.num_pages:
            foreign = ordered[0] if ordered[0] < 0 else ordered[-1]
            raise PageError(f"page {foreign} is not one of this pool's {self.num_pages} pages")
        if (free := self._is_free[ordered]).any():
            raise PageError(f"page {ordered[free][0]} is free already")
        steps = np.diff(ordered)
        if (repeated := steps == 0).any():
            raise PageError(f"page {ordered[1:][repeated][0]} was freed twice in one call")
        breaks = np.flatnonzero(steps != 1)
        firsts = ordered[np.concatenate(([0], breaks + 1))].tolist()
        lasts = ordered[np.concatenate((breaks, [-1]))].tolist()
        for first, last in zip(firsts, lasts, strict=True):
            self._put(first, last - first + 1)

    def free_page_ids(self) -> PageIds:
        """Every free page, ascending. Linear in the pool's size: for recounts."""
        return np.flatnonzero(self._is_free).astype(np.int32)

    def check(self) -> None:
        """Raises `ConservationError` unless the extents, the map of free pages and `num_free` tell the same."""
        recounted = np.zeros(self.num_pages, dtype=np.int32)
        for start, length in self._length_at.items():
            recounted[start : start + length] += 1
            if self._start_before.get(start + length) != start or start + length in self._length_at:
                raise ConservationError(f"free extent [{start}, {start + length}) is not closed, or not merged")
        if not np.array_equal(recounted, self._is_free) or len(self._start_before) != len(self._length_at):
            raise ConservationError(f"extents hold {recounted.sum()} free pages, the map {self._is_free.sum()}")
        if self.num_free != self._is_free.sum():
            raise ConservationError(f"{self.num_free} pages are counted as free, the map has {self._is_free.sum()}")

    def _put(self, start: int, length: int) -> None:
        """Adds a run that is not free yet, merged with the free extents on both sides."""
        self._is_free[start : start + length] = True
        self.num_free += length
        if (before := self._start_before.get(start)) is not None:
            length += self._remove(before)
            start = before
        if start + length in self._length_at:
            length += self._remove(start + length)
        self._add(start, length)

    def _take(self, start: int, offset: int, count: int) -> PageIds:
        """Takes `count` pages `offset` behind the head of the extent at `start`; what is left on each side stays."""
        length = self._remove(start)
        first = start + offset
        if offset:
            self._add(start, offset)
        if rest := length - offset - count:
            self._add(first + count, rest)
        self._is_free[first : first + count] = False
        self.num_free -= count
        return np.arange(first, first + count, dtype=np.int32)

    def _add(self, start: int, length: int) -> None:
        self._length_at[start] = length
        self._start_before[start + length] = start
        heapq.heappush(self._by_length, (-length, start))
        if len(self._by_length) > 2 * len(self._length_at) + _HEAP_SLACK:
            self._by_length = [(-length, start) for start, length in self._length_at.items()]
            heapq.heapify(self._by_length)

    def _remove(self, start: int) -> int:
        length = self._length_at.pop(start)
        del self._start_before[start + length]
        return length

    def _largest(self) -> tuple[int, int]:
        """`(start, length)` of the longest free extent; the caller knows that a page is free."""
        while True:
            negative_length, start = self._by_length[0]
            if self._length_at.get(start) == -negative_length:
                return start, -negative_length
            heapq.heappop(self._by_length)
