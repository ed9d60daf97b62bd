"""The host tier: the owner of every page of the host pool.

Every host page is in exactly one place: free, reserved (being filled from the store, or filled and not in the tree
yet), or a node's copy in the tree. `free + leased + cached == total` after every call, with the reserved as `leased`.
Costs are linear in the pages touched, as for `PrefixCache`, which shares the tree with this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pagefall.cache.errors import ConservationError
from pagefall.cache.node import NO_PAGES, Device, DeviceAndHost, Node, Offloading
from pagefall.cache.pool import PagePool
from pagefall.cache.tree import RadixTree
from pagefall.messages import PageIds, PoolStats


@dataclass(slots=True, eq=False)
class OffloadLease:
    """The path above `node` is pinned while its last `num_pages` pages are copied to the host."""

    node: Node
    device_page_ids: PageIds
    host_page_ids: PageIds

    @property
    def num_pages(self) -> int:
        return len(self.host_page_ids)


@dataclass(slots=True, eq=False)
class HostPin:
    """The host copies of the last `num_pages` pages of the path to `node` stay until this ends."""

    node: Node
    host_page_ids: PageIds

    @property
    def num_pages(self) -> int:
        return len(self.host_page_ids)


class HostTier:
    def __init__(self, tree: RadixTree, *, num_pages: int) -> None:
        self.num_evicted_pages = 0
        self._tree = tree
        self._pool = PagePool(num_pages)
        self._num_reserved = 0
        self._offloads: set[OffloadLease] = set()
        self._pins: set[HostPin] = set()

    @property
    def num_pages(self) -> int:
        return self._pool.num_pages

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def num_reserved(self) -> int:
        return self._num_reserved

    def reserve(self, num_pages: int) -> PageIds:
        """Up to `num_pages` pages, for which unpinned copies are evicted where needed; ended by `give_back`,
        `attach` or `begin_offload`.
        """
        num_missing = num_pages - self._pool.num_free
        if num_missing > 0:
            evicted = self._tree.evict_host(num_missing, "pool_full")
            self._pool.free(evicted)
            self.num_evicted_pages += len(evicted)
        page_ids = self._pool.allocate(min(num_pages, self._pool.num_free))
        if page_ids is None:
            raise ConservationError("the host pool has fewer free pages than it counts")
        self._num_reserved += len(page_ids)
        return page_ids

    def give_back(self, page_ids: PageIds) -> None:
        """Reserved pages that nothing writes to are free again."""
        self._pool.free(page_ids)
        self._num_reserved -= len(page_ids)

    def begin_offload(self, node: Node) -> OffloadLease | None:
        """Starts to copy `node`, and what above it has no copy yet, to the host.

        None, with nothing changed, where all of it is there or on its way, where the host has too few pages that may
        go, or while a node above is on its way: its children follow when it has arrived.
        """
        segment: list[Node] = []
        above: Node | None = node
        while above is not None and above.parent is not None and isinstance(above.residence, Device):
            segment.append(above)
            above = above.parent
        if not segment or above is None or not above.is_on_host:
            return None
        num_pages = sum(part.num_pages for part in segment)
        self._tree.pin_path(node)
        above.num_host_pins += 1  # room for the copies below must not be made of the copy above
        self._tree.settle(above)
        host_page_ids = self.reserve(num_pages)
        above.num_host_pins -= 1
        self._tree.settle(above)
        if len(host_page_ids) < num_pages:
            self.give_back(host_page_ids)
            self._tree.unpin_path(node)
            return None
        self._num_reserved -= num_pages
        device_page_ids = np.concatenate([part.device_page_ids for part in reversed(segment)])
        end = num_pages
        for part in segment:
            start = end - part.num_pages
            self._tree.change(part, Offloading(part.device_page_ids, host_page_ids[start:end].copy()))
            end = start
        lease = OffloadLease(node, device_page_ids, host_page_ids)
        self._offloads.add(lease)
        return lease

    def finish_offload(self, lease: OffloadLease, *, copied: bool) -> None:
        """The copy is over. Not `copied`: the nodes are on the device alone, as before."""
        self._offloads.remove(lease)
        for part in self._segment(lease.node, lease.num_pages):
            host_page_ids = part.host_page_ids
            if copied:
                self._tree.change(part, DeviceAndHost(part.device_page_ids, host_page_ids))
            else:
                self._tree.change(part, Device(part.device_page_ids))
                self._pool.free(host_page_ids)
        self._tree.unpin_path(lease.node)

    def pin_match(self, root: bytes, tokens: bytes) -> HostPin | None:
        """Pins what of `tokens` the host has behind what the device has. None where that is nothing."""
        found = self._tree.find(root, tokens)
        if not found.num_host_pages or found.node is None:
            return None
        node = found.node
        if found.num_node_pages < node.num_pages:
            node = self._tree.split(node, found.num_node_pages)
        return self._pin(node, found.num_host_pages)

    def record_hit(self, pin: HostPin, *, now: float) -> None:
        """What is pinned is used by a request; an eviction policy may look at it."""
        for part in self._segment(pin.node, pin.num_pages):
            part.last_access = now
            part.num_hits += 1

    def pin_copy(self, node: Node) -> HostPin | None:
        """Pins `node` and all above it that the store does not have yet; None where that is nothing."""
        num_pages = 0
        above: Node | None = node
        while above is not None and above.parent is not None and above.is_on_host and not above.is_stored:
            num_pages += above.num_pages
            above = above.parent
        return self._pin(node, num_pages) if num_pages else None

    def unpin(self, pin: HostPin) -> None:
        self._pins.remove(pin)
        for part in self._segment(pin.node, pin.num_pages):
            part.num_host_pins -= 1
            self._tree.settle(part)

    def attach(self, node: Node, host_page_ids: PageIds, *, is_stored: bool) -> int:
        """Reserved pages with the content of the last pages of the path to `node` become these nodes' host copies.

        Returns how many of the *last* pages found a place; the others are the caller's still. A node has a place for
        them if it is on the device alone, all of it is meant, and its parent has a copy.
        """
        segment: list[Node] = []
        missing = len(host_page_ids)
        above = node
        while above.parent is not None and isinstance(above.residence, Device) and above.num_pages <= missing:
            segment.append(above)
            missing -= above.num_pages
            above = above.parent
        if not segment or not above.is_on_host:
            return 0
        end = len(host_page_ids)
        for part in segment:
            start = end - part.num_pages
            self._tree.change(part, DeviceAndHost(part.device_page_ids, host_page_ids[start:end].copy()))
            part.is_stored = is_stored
            end = start
        num_attached = len(host_page_ids) - end
        self._num_reserved -= num_attached
        return num_attached

    def mark_stored(self, pin: HostPin, stored: Sequence[bool]) -> None:
        """`stored[i]`: whether the store has page `i` of the pin now. A node is in the store if all of it is."""
        end = pin.num_pages
        for part in self._segment(pin.node, pin.num_pages):
            start = end - part.num_pages
            part.is_stored = all(stored[start:end])
            end = start

    def page_keys(self, pin: HostPin) -> tuple[bytes, ...]:
        """32 bytes a page of the pin, in the order of the sequence."""
        keys = b"".join(part.page_keys for part in reversed(self._segment(pin.node, pin.num_pages)))
        return tuple(keys[start : start + 32] for start in range(0, len(keys), 32))

    def dirty_leaves(self, num_pages: int) -> list[Node]:
        """Of the leaves that make up the next `num_pages` the device would evict, those that no lower tier has."""
        dirty = []
        for leaf in self._tree.evictable.first_few(num_pages):
            if num_pages <= 0:
                break
            num_pages -= leaf.num_pages
            if isinstance(leaf.residence, Device):
                dirty.append(leaf)
        return dirty

    def unstored_leaves(self, num_pages: int) -> list[Node]:
        """Of the leaves that make up the next `num_pages` the host would evict, those that the store does not have."""
        unstored = []
        for leaf in self._tree.host_evictable.first_few(num_pages):
            if num_pages <= 0:
                break
            num_pages -= leaf.num_pages
            if not leaf.is_stored:
                unstored.append(leaf)
        return unstored

    def flush(self) -> int:
        """Drops every copy that nothing pins and returns how many pages that were; they do not count as evicted."""
        dropped = self._tree.evict_host(self._tree.num_host_pages, "flushed")
        self._pool.free(dropped)
        return len(dropped)

    def forget_stored(self) -> None:
        """The store was emptied: nothing of the tree is in it any more. O(nodes)."""
        for node in self._tree.nodes():
            node.is_stored = False

    def stats(self) -> PoolStats:
        """O(transfers). `pinned`: the part of `cached` that a transfer reads or writes."""
        pinned = {part for pin in self._pins for part in self._segment(pin.node, pin.num_pages)}
        offloading = sum(lease.num_pages for lease in self._offloads)
        return PoolStats(
            total=self._pool.num_pages,
            free=self._pool.num_free,
            leased=self._num_reserved,
            cached=self._tree.num_host_pages,
            pinned=sum(part.num_pages for part in pinned) + offloading,
        )

    def check(self, nodes: list[Node]) -> None:
        """Raises `ConservationError` where a recount over all `nodes` of the tree disagrees with the books."""
        self._pool.check()
        stats = self.stats()
        cached = np.concatenate([NO_PAGES, *(node.host_page_ids for node in nodes)])
        if len(cached) != stats.cached or stats.free + stats.leased + stats.cached != stats.total:
            raise ConservationError(f"the host pool's books say {stats}, {len(cached)} pages are in nodes")
        free = self._pool.free_page_ids()
        holders = np.bincount(np.concatenate((free, cached)), minlength=stats.total)
        if (holders > 1).any() or int((holders == 0).sum()) != stats.leased:
            raise ConservationError("a host page is in two places, or in none")
        pins = dict.fromkeys(nodes, 0)
        for pin in self._pins:
            for part in self._segment(pin.node, pin.num_pages):
                pins[part] += 1
        offloading = {part for lease in self._offloads for part in self._segment(lease.node, lease.num_pages)}
        for node in nodes:
            if node.num_host_pins != pins[node]:
                raise ConservationError(f"a node counts {node.num_host_pins} host pins, transfers {pins[node]}")
            if isinstance(node.residence, Offloading) != (node in offloading):
                raise ConservationError("a node is on its way to the host without a transfer, or the other way round")
            if node.parent is None or isinstance(node.residence, Device) or node.parent.is_on_host:
                continue
            # A node that was split on its way has a parent that is on the same way.
            if not (isinstance(node.residence, Offloading) and isinstance(node.parent.residence, Offloading)):
                raise ConservationError("a node is on the host, but its parent is not")

    def offload_paths(self) -> list[Node]:
        """The nodes whose paths offloads pin, one for each; for recounts."""
        return [lease.node for lease in self._offloads]

    def _pin(self, node: Node, num_pages: int) -> HostPin:
        segment = self._segment(node, num_pages)
        host_page_ids = np.concatenate([part.host_page_ids for part in reversed(segment)])
        for part in segment:
            part.num_host_pins += 1
            self._tree.settle(part)
        pin = HostPin(node, host_page_ids)
        self._pins.add(pin)
        return pin

    def _segment(self, node: Node, num_pages: int) -> list[Node]:
        """The nodes that make up the last `num_pages` pages of the path to `node`, lowest first."""
        segment = []
        above: Node | None = node
        while num_pages > 0 and above is not None:
            segment.append(above)
            num_pages -= above.num_pages
            above = above.parent
        if num_pages:
            raise ConservationError("a transfer does not begin where a node does")
        return segment
