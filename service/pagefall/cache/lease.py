"""A lease: the pages one live request reads and writes."""

from __future__ import annotations

import numpy as np

from pagefall.cache.node import Node
from pagefall.messages import PageIds


class Lease:
    """Opened, grown, committed and released by `PrefixCache` alone; everyone else reads its attributes.

    `page_ids` (`[num_pages]`, in the order of the sequence) starts with `num_shared_pages` pages of the tree, pinned
    up to `node`; the others are private to this lease. An array once handed out is never changed: growing writes
    behind its end, and swapping a private page for a shared one makes a new array. `num_cached_tokens` is what the
    cache gave at the start. Once released a lease has no pages.
    """

    __slots__ = ("_buffer", "node", "num_cached_tokens", "num_shared_pages", "page_ids", "priority")

    def __init__(self, node: Node, shared: PageIds, *, page_size: int, capacity: int, priority: int) -> None:
        self.node = node
        self.priority = priority
        self.num_shared_pages = len(shared)
        self.num_cached_tokens = len(shared) * page_size
        self._buffer = np.empty(max(capacity, len(shared), 1), dtype=np.int32)
        self._buffer[: len(shared)] = shared
        self.page_ids: PageIds = self._buffer[: len(shared)]

    @property
    def num_pages(self) -> int:
        return len(self.page_ids)

    @property
    def private_page_ids(self) -> PageIds:
        return self.page_ids[self.num_shared_pages :]

    def append(self, page_ids: PageIds) -> None:
        """Adds private pages at the end, in amortised O(pages added)."""
        start, stop = self.num_pages, self.num_pages + len(page_ids)
        if stop > len(self._buffer):
            grown = np.empty(max(stop, 2 * len(self._buffer)), dtype=np.int32)
            grown[:start] = self.page_ids
            self._buffer = grown
        self._buffer[start:stop] = page_ids
        self.page_ids = self._buffer[:stop]

    def share(self, node: Node, num_pages: int, known: PageIds) -> None:
        """The next `num_pages` private pages are the tree's now, up to `node`; the first of them become `known`."""
        if len(known):
            start = self.num_shared_pages
            self._buffer = self._buffer.copy()
            self._buffer[start : start + len(known)] = known
            self.page_ids = self._buffer[: self.num_pages]
        self.num_shared_pages += num_pages
        self.node = node

    def clear(self) -> None:
        """Holds nothing any more."""
        self.num_shared_pages = 0
        self._buffer = self.page_ids = np.empty(0, dtype=np.int32)
