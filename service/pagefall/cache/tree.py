"""The radix tree over token ids, cut at page boundaries: which pages hold which prefix.

Laws: finding changes nothing. A node that no lease pins may go, but only leaf by leaf and from the tail, so every
cached page has its whole prefix cached. No node is longer than `MAX_NODE_PAGES`, which bounds what one split, trim or
extension copies; every operation is linear in the pages it touches and independent of how much is cached.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pagefall.cache.eviction import EvictableLeaves, EvictionPolicy
from pagefall.cache.keys import TOKEN_BYTES
from pagefall.cache.node import Device, Node
from pagefall.messages import PageIds

MAX_NODE_PAGES = 256

NO_PAGES: PageIds = np.empty(0, dtype=np.int32)


class Found(NamedTuple):
    """Where a walk along a prompt left the cached path: `num_node_pages` pages into `node`, None for an unknown root.

    `num_pages` are cached in all, of which `num_unpinned_pages` are held by no lease.
    """

    node: Node | None
    num_node_pages: int
    num_pages: int
    num_unpinned_pages: int


class Inserted(NamedTuple):
    """`node` ends the inserted path. `known` are the tree's own pages for the leading part it held already."""

    node: Node
    known: PageIds


class RadixTree:
    """`tokens` are always whole pages of little-endian u32 token ids; `root` is a `root_key`."""

    def __init__(self, page_size: int, policy: EvictionPolicy) -> None:
        self.num_pages = 0
        self.num_unpinned_pages = 0
        self.evictable: EvictableLeaves[Node] = EvictableLeaves(policy)
        self.page_bytes = page_size * TOKEN_BYTES
        self._roots: dict[bytes, Node] = {}

    def find(self, root: bytes, tokens: bytes) -> Found:
        """The longest cached prefix of `tokens`. Changes nothing; O(pages found)."""
        node = self._roots.get(root)
        if node is None:
            return Found(None, 0, 0, 0)
        offset = num_node_pages = num_unpinned = 0
        while offset < len(tokens):
            child = node.children.get(tokens[offset : offset + self.page_bytes])
            if child is None:
                break
            node = child
            num_node_pages = self._num_common_pages(node, tokens, offset)
            offset += num_node_pages * self.page_bytes
            if not node.num_pins:
                num_unpinned += num_node_pages
            if num_node_pages < node.num_pages:
                break
        return Found(node, num_node_pages, offset // self.page_bytes, num_unpinned)

    def pin(self, root: bytes, tokens: bytes, *, now: float, priority: int) -> tuple[Node, PageIds]:
        """Pins the longest cached prefix of `tokens` and records the hit.

        Returns the node that ends it (split there if need be; the root where nothing is cached) and its pages.
        """
        found = self.find(root, tokens)
        node = found.node
        if node is None:
            node = Node(key=root, parent=None, tokens=b"", residence=Device(NO_PAGES), now=now, priority=priority)
            self._roots[root] = node
        elif found.num_node_pages < node.num_pages:
            node = self._split(node, found.num_node_pages)
        page_ids = []
        above: Node | None = node
        while above is not None:
            self._pin_node(above)
            above.last_access = now
            above.num_hits += 1
            above.priority = max(above.priority, priority)
            page_ids.append(above.residence.page_ids)
            above = above.parent
        return node, np.concatenate(page_ids[::-1])

    def insert(self, node: Node, tokens: bytes, page_ids: PageIds, *, now: float, priority: int) -> Inserted:
        """Adds `tokens`, in `page_ids` (`[num_pages]`, copied), behind the pinned `node`, pinned by the same lease.

        Where the tree already holds the same pages behind `node` it keeps its own (`Inserted.known`) and leaves the
        caller those of `page_ids`.
        """
        known = []
        offset = 0
        while offset < len(tokens):
            child = node.children.get(tokens[offset : offset + self.page_bytes])
            if child is None:
                break
            num_common = self._num_common_pages(child, tokens, offset)
            node = child if num_common == child.num_pages else self._split(child, num_common)
            self._pin_node(node)
            node.last_access = now
            node.priority = max(node.priority, priority)
            known.append(node.residence.page_ids)
            offset += num_common * self.page_bytes
        num_known = offset // self.page_bytes
        node = self._append(node, tokens[offset:], page_ids[num_known:], now, priority)
        return Inserted(node, np.concatenate(known) if known else NO_PAGES)

    def unpin(self, node: Node, *, now: float) -> None:
        """Ends one pin of the path to `node`: its pages count as used `now`, and what no other lease pins may go."""
        above: Node | None = node
        while above is not None:
            parent = above.parent
            above.num_pins -= 1
            above.last_access = now
            if not above.num_pins:
                self.num_unpinned_pages += above.num_pages
                self._settle(above)
            above = parent

    def evict(self, num_pages: int) -> PageIds:
        """Takes `num_pages` unpinned pages out of the tree (all there are, when they are fewer) and returns them.

        Leaves go in the policy's order, the last one only as far as needed, tail first.
        """
        evicted = []
        missing = num_pages
        while missing > 0 and (leaf := self.evictable.first()) is not None:
            kept, gone = leaf.residence.split(max(0, leaf.num_pages - missing))
            evicted.append(gone.page_ids)
            missing -= len(gone.page_ids)
            if len(kept.page_ids):
                leaf.residence = kept
                leaf.tokens = leaf.tokens[: len(kept.page_ids) * self.page_bytes]
            else:
                self.evictable.discard(leaf)
                self._unlink(leaf)
        page_ids = np.concatenate(evicted) if evicted else NO_PAGES
        self.num_pages -= len(page_ids)
        self.num_unpinned_pages -= len(page_ids)
        return page_ids

    def nodes(self) -> Iterator[Node]:
        """Every node, roots included, parents first. For recounts."""
        pending = list(self._roots.values())
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())

    def _num_common_pages(self, node: Node, tokens: bytes, offset: int) -> int:
        """How many leading pages of the node's span `tokens` has from `offset` on."""
        if tokens.startswith(node.tokens, offset):
            return node.num_pages
        length = min(len(node.tokens), len(tokens) - offset)
        ours = np.frombuffer(node.tokens, dtype=np.uint8, count=length)
        differs = ours != np.frombuffer(tokens, dtype=np.uint8, count=length, offset=offset)
        first = int(differs.argmax())
        return (first if differs[first] else length) // self.page_bytes

    def _split(self, node: Node, num_pages: int) -> Node:
        """Cuts the node after `num_pages` pages and returns the new upper part.

        The given object stays the lower part: leases that end at it still end at the same token.
        """
        above, below = node.residence.split(num_pages)
        cut = num_pages * self.page_bytes
        upper = Node(
            key=node.key,
            parent=node.parent,
            tokens=node.tokens[:cut],
            residence=above,
            now=node.created,
            priority=node.priority,
        )
        upper.last_access, upper.num_hits, upper.num_pins = node.last_access, node.num_hits, node.num_pins
        self._siblings(node)[node.key] = upper
        node.tokens = node.tokens[cut:]
        node.key = node.tokens[: self.page_bytes]
        node.residence = below
        node.parent = upper
        upper.children[node.key] = node
        return upper

    def _append(self, node: Node, tokens: bytes, page_ids: PageIds, now: float, priority: int) -> Node:
        """Adds pages that the tree does not have behind `node`, pinned once; returns the node that ends them."""
        if not len(page_ids):
            return node
        self.num_pages += len(page_ids)
        done = 0
        # A leaf that only this lease pins and nobody else ever hit is its own: it may become longer in place.
        if node.parent is not None and node.num_pins == 1 and not node.num_hits and not node.children:
            done = min(len(page_ids), MAX_NODE_PAGES - node.num_pages)
            node.residence = node.residence.extended(page_ids[:done])
            node.tokens += tokens[: done * self.page_bytes]
            node.last_access = now
        for start in range(done, len(page_ids), MAX_NODE_PAGES):
            stop = min(start + MAX_NODE_PAGES, len(page_ids))
            span = tokens[start * self.page_bytes : stop * self.page_bytes]
            key = span[: self.page_bytes]
            residence = Device(page_ids[start:stop].copy())
            child = Node(key=key, parent=node, tokens=span, residence=residence, now=now, priority=priority)
            child.num_pins = 1
            node.children[key] = child
            node = child
        return node

    def _pin_node(self, node: Node) -> None:
        if not node.num_pins:
            self.num_unpinned_pages -= node.num_pages
            self.evictable.discard(node)
        node.num_pins += 1

    def _unlink(self, node: Node) -> None:
        """Takes a node without children out of the tree; its parent may now be one itself."""
        del self._siblings(node)[node.key]
        if node.parent is not None:
            self._settle(node.parent)

    def _settle(self, node: Node) -> None:
        """A node that lost its last pin or child: a leaf may be evicted, a root without children is forgotten."""
        if node.num_pins or node.children:
            return
        if node.parent is None:
            self._unlink(node)
        else:
            self.evictable.add(node)

    def _siblings(self, node: Node) -> dict[bytes, Node]:
        return self._roots if node.parent is None else node.parent.children
