"""The prefix cache: the owner of every page of the device pool, and of the host tier where there is one.

Every page is in exactly one place: free in the pool, private to one lease, or cached in the tree (where leases may pin
it). `open`, `grow`, `commit`, `release` and `flush` are the only ways from one to another, and after each of them
`free + leased + cached == total`. Each costs time in the pages it touches, whatever the size of the cache.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from pagefall.cache.branches import Branches, largest_branches
from pagefall.cache.changes import TierChange, TierKeys
from pagefall.cache.conservation import check_conservation
from pagefall.cache.errors import ConservationError, LeaseError
from pagefall.cache.eviction import policy_named
from pagefall.cache.host_tier import HostPin, HostTier
from pagefall.cache.keys import token_bytes
from pagefall.cache.lease import Lease
from pagefall.cache.neighbour import Neighbour, nearest, num_pages_elsewhere
from pagefall.cache.node import Node
from pagefall.cache.pool import PagePool
from pagefall.cache.tree import RadixTree
from pagefall.config import EvictionPolicyName
from pagefall.messages import PoolStats, TokenIds

_RESERVE_DIVISOR = 16
"""One page in so many is never left cached, so that a full cache still has long free extents to grow into.

Measured, 16 sequences at a time of 61 pages on average, churning through a full pool of 2,048: without a reserve a
sequence lies in 57 runs, with 1/64 of the pool in 30, with 1/16 in 9.
"""


class Match(msgspec.Struct, frozen=True):
    """The longest cached prefix of a prompt, in whole pages; at least the prompt's last token is left to compute.

    `num_tokens` are on the device; `num_unpinned_pages` of it are held by no lease: opening one takes them out of
    `num_available`. `num_host_tokens` more, behind them, are on the host alone.
    """

    num_tokens: int
    num_unpinned_pages: int
    num_host_tokens: int = 0


class HeldPrefix(NamedTuple):
    """A prefix that is kept on the device: `num_pages` pages, the last of which has the page key `last_key`."""

    node: Node
    num_pages: int
    last_key: bytes


class PrefixCache:
    """Matches prompts, leases pages, evicts. `root` is a `root_key`; `now` are seconds of one clock of the caller's.

    A disabled cache (`enabled=False`) leases pages and matches nothing. `host` is None without a host tier
    (`num_host_pages` 0).
    """

    def __init__(
        self,
        *,
        num_pages: int,
        page_size: int,
        eviction_policy: EvictionPolicyName,
        enabled: bool = True,
        num_host_pages: int = 0,
        records_changes: bool = False,
    ) -> None:
        """`records_changes`: `take_changes` will be called, again and again."""
        if page_size < 1:
            raise ValueError(f"a page cannot have {page_size} tokens")
        self.num_evicted_pages = 0
        self._num_leased = 0
        self._page_size = page_size
        self._enabled = enabled
        self._pool = PagePool(num_pages)
        self._tree = RadixTree(page_size, policy_named(eviction_policy), extends_leaves=not num_host_pages)
        self._tree.records_changes = records_changes
        self.host = HostTier(self._tree, num_pages=num_host_pages) if num_host_pages else None
        self._leases: set[Lease] = set()
        self._held: list[Node] = []
        self._num_reserve_pages = num_pages // _RESERVE_DIVISOR

    @property
    def num_available(self) -> int:
        """Pages that leases could still get: free ones and those that can be evicted. O(1)."""
        return self._pool.num_free + self._tree.num_unpinned_pages

    def match(self, root: bytes, token_ids: TokenIds) -> Match:
        """What `open` would find now. Changes nothing; O(pages of the prompt)."""
        found = self._tree.find(root, self._matchable(token_ids))
        return Match(
            found.num_pages * self._page_size, found.num_unpinned_pages, found.num_host_pages * self._page_size
        )

    def pin_host_match(self, root: bytes, token_ids: TokenIds) -> HostPin | None:
        """Pins what the host alone has of the prompt, right behind what the device has.

        None without a host tier or such pages. The pin is ended by `host.unpin`.
        """
        return None if self.host is None else self.host.pin_match(root, self._matchable(token_ids))

    def take_changes(self) -> list[TierChange]:
        """What entered and left the tiers since the last call, in order."""
        return self._tree.take_changes()

    def keys(self) -> TierKeys:
        """The page keys in each tier, in no particular order. O(nodes)."""
        nodes = list(self._tree.nodes())
        return TierKeys(
            b"".join(node.page_keys for node in nodes if node.is_on_device),
            b"".join(node.page_keys for node in nodes if node.is_on_host),
            b"".join(node.page_keys for node in nodes if node.is_stored),
        )

    def neighbour(self, root: bytes, token_ids: TokenIds) -> Neighbour:
        """What is cached nearest to the prompt, its last token included. Changes nothing; O(pages of the prompt)."""
        return nearest(self._tree, root, token_bytes(token_ids))

    def num_pages_elsewhere(self, root: bytes, token_ids: TokenIds) -> int:
        """How many pages of the prompt are cached under the root, other than this, that has most of them."""
        return num_pages_elsewhere(self._tree, root, token_bytes(token_ids))

    def describe(self, *, max_branches: int, now: float) -> Branches:
        """The largest branches; looks at a bounded number of nodes."""
        return largest_branches(self._tree, max_branches=max_branches, now=now)

    def open(self, root: bytes, token_ids: TokenIds, *, now: float, priority: int = 0) -> Lease:
        """Starts a lease on the cached prefix of the prompt `token_ids`, and records the hit.

        The prefix stays until the lease is released. Takes no free page: `grow` does.
        """
        node, shared = self._tree.pin(root, self._matchable(token_ids), now=now, priority=priority)
        capacity = self._num_pages_for(len(token_ids)) + 1
        lease = Lease(node, shared, page_size=self._page_size, capacity=capacity, priority=priority)
        self._leases.add(lease)
        return lease

    def grow(self, lease: Lease, num_tokens: int, *, now: float) -> bool:
        """Makes the lease cover at least `num_tokens` token slots.

        Evicts unpinned leaves until the reserve stays free, or none is left. All or nothing: False, with nothing
        changed, when fewer pages are available. Raises `LeaseError` for a lease that has ended. `now` stamps every
        transition alike; this one does not depend on it.
        """
        self._require_open(lease)
        num_new = self._num_pages_for(num_tokens) - lease.num_pages
        if num_new <= 0:
            return True
        if num_new > self.num_available:
            return False
        num_missing = num_new + self._num_reserve_pages - self._pool.num_free
        if num_missing > 0:
            evicted = self._tree.evict(num_missing, "pool_full")
            self._pool.free(evicted)
            self.num_evicted_pages += len(evicted)
        last = int(lease.page_ids[-1]) if lease.num_pages else None
        page_ids = self._pool.allocate(num_new, after=last)
        if page_ids is None:
            raise ConservationError(f"{num_new} pages were available, but only {self._pool.num_free} could be freed")
        lease.append(page_ids)
        self._num_leased += num_new
        return True

    def commit(self, lease: Lease, token_ids: TokenIds, *, now: float) -> None:
        """Caches the complete pages of `token_ids`, every position of which has been computed.

        `token_ids` is the whole sequence and continues what the lease committed before; only the new pages are looked
        at. They stay pinned by the lease. Where the tree already holds an equal page the lease reads that one from now
        on and its own is freed, so no step that uses the old `page_ids` may be under way. Raises `LeaseError` for a
        lease that has ended or that has fewer token slots.
        """
        self._require_open(lease)
        if len(token_ids) > lease.num_pages * self._page_size:
            raise LeaseError(f"{len(token_ids)} tokens were committed to a lease of {lease.num_pages} pages")
        start, stop = lease.num_shared_pages, len(token_ids) // self._page_size
        if stop <= start or not self._enabled:
            return
        tokens = token_bytes(token_ids[start * self._page_size : stop * self._page_size])
        own = lease.page_ids[start:stop]
        node, known = self._tree.insert(lease.node, tokens, own, now=now, priority=lease.priority)
        lease.share(node, stop - start, known)
        self._pool.free(own[: len(known)])
        self._num_leased -= stop - start

    def release(self, lease: Lease, *, now: float) -> None:
        """Ends the lease: private pages are free, cached ones may be evicted again, as the most recently used.

        Raises `LeaseError`, with nothing changed, when the lease has ended before.
        """
        self._require_open(lease)
        self._leases.remove(lease)
        private = lease.private_page_ids
        self._pool.free(private)
        self._num_leased -= len(private)
        self._tree.unpin(lease.node, now=now)
        lease.clear()

    def hold(self, root: bytes, token_ids: TokenIds) -> HeldPrefix | None:
        """Keeps the whole pages of `token_ids` that are on the device, until `let_go`. None where there are none."""
        whole = len(token_ids) // self._page_size * self._page_size
        node = self._tree.node_at(root, token_bytes(token_ids[:whole])) if self._enabled else None
        if node is None:
            return None
        self._tree.pin_path(node)
        self._held.append(node)
        num_pages, above = 0, node
        while above.parent is not None:
            num_pages, above = num_pages + above.num_pages, above.parent
        return HeldPrefix(node, num_pages, node.page_keys[-32:])

    def let_go(self, held: HeldPrefix) -> None:
        """Ends a `hold`. Raises `ValueError` if it has ended before."""
        self._held.remove(held.node)
        self._tree.unpin_path(held.node)

    def flush(self, now: float) -> int:
        """Drops the device copy of every page that nothing pins and returns how many; they do not count as evicted.

        `now` stamps every transition alike; this one does not depend on it.
        """
        dropped = self._tree.evict(self._tree.num_unpinned_pages, "flushed")
        self._pool.free(dropped)
        return len(dropped)

    def stats(self) -> PoolStats:
        """O(1)."""
        return PoolStats(
            total=self._pool.num_pages,
            free=self._pool.num_free,
            leased=self._num_leased,
            cached=self._tree.num_pages,
            pinned=self._tree.num_pages - self._tree.num_unpinned_pages,
        )

    def check(self) -> None:
        """Recounts everything and raises `ConservationError`, with the numbers, where the books disagree.

        Linear in the size of the pool: for tests, and for a production server when it is idle.
        """
        paths = [] if self.host is None else self.host.offload_paths()
        check_conservation(self.stats(), self._pool, self._tree, self._leases, [*paths, *self._held])
        if self.host is not None:
            self.host.check(list(self._tree.nodes()))

    def _matchable(self, token_ids: TokenIds) -> bytes:
        """Token bytes of the whole pages of a prompt that may come from the cache."""
        if not self._enabled:
            return b""
        num_pages = max(0, len(token_ids) - 1) // self._page_size
        return token_bytes(token_ids[: num_pages * self._page_size])

    def _num_pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._page_size)

    def _require_open(self, lease: Lease) -> None:
        if lease not in self._leases:
            raise LeaseError("this lease has ended, or is another cache's")
