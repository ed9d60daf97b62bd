"""The radix tree over token ids, cut at page boundaries: which pages hold which prefix.

Laws: finding changes nothing. What is on the device, and what is on the host, each is closed upwards: a node's parent
is wherever the node is, so every page has its whole prefix beside it. A copy that nothing pins may go, but only leaf by
leaf of its own tier and from the tail. No node is longer than `MAX_NODE_PAGES`, which bounds what one split, trim or
extension copies; every operation is linear in the pages it touches and independent of how much is cached.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, assert_never

import numpy as np

from pagefall.cache.changes import TierChange
from pagefall.cache.errors import ConservationError
from pagefall.cache.eviction import EvictableLeaves, EvictionPolicy
from pagefall.cache.keys import TOKEN_BYTES, page_keys_of_bytes
from pagefall.cache.node import NO_PAGES, Device, DeviceAndHost, Host, Node, Offloading, Residence
from pagefall.messages import EvictionCause, PageIds

MAX_NODE_PAGES: Final = 256


class Found(NamedTuple):
    """Where a walk along a prompt left the cached path: `num_node_pages` pages into `node`, None for an unknown root.

    `num_pages` are on the device, of which `num_unpinned_pages` are held by nothing, and `num_host_pages` behind them
    on the host alone. `device_node`, and `num_device_node_pages` pages of it, end the part on the device.
    """

    node: Node | None
    num_node_pages: int
    num_pages: int
    num_unpinned_pages: int
    num_host_pages: int
    device_node: Node | None
    num_device_node_pages: int


class Inserted(NamedTuple):
    """`node` ends the inserted path. `known` are the tree's own device pages for the leading part it held already."""

    node: Node
    known: PageIds


class RadixTree:
    """`tokens` are always whole pages of little-endian u32 token ids; `root` is a `root_key`."""

    def __init__(self, page_size: int, policy: EvictionPolicy, *, extends_leaves: bool = True) -> None:
        """`extends_leaves`: a leaf that only one lease ever used becomes longer in place, not a parent. Not where
        nodes are copied to another tier one by one.
        """
        self.num_pages = 0
        """On the device."""
        self.num_unpinned_pages = 0
        """On the device, pinned by nothing."""
        self.num_host_pages = 0
        """On the host, those on the way there included."""
        self.evictable: EvictableLeaves[Node] = EvictableLeaves(policy)
        self.host_evictable: EvictableLeaves[Node] = EvictableLeaves(policy)
        self.page_bytes = page_size * TOKEN_BYTES
        self.records_changes = False
        """Whether `changes` are written; someone has to take them then."""
        self._changes: list[TierChange] = []
        self._extends_leaves = extends_leaves
        self._roots: dict[bytes, Node] = {}

    def take_changes(self) -> list[TierChange]:
        """What entered and left the tiers since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def other_roots(self, root: bytes, count: int) -> list[bytes]:
        """Up to `count` roots but this one, the newest first."""
        return [key for key in itertools.islice(reversed(self._roots), count + 1) if key != root][:count]

    def find(self, root: bytes, tokens: bytes) -> Found:
        """The longest cached prefix of `tokens`. Changes nothing; O(pages found)."""
        node = self._roots.get(root)
        if node is None:
            return Found(None, 0, 0, 0, 0, None, 0)
        device_node, num_device_node_pages = node, 0
        offset = num_node_pages = num_pages = num_unpinned = 0
        while offset < len(tokens):
            child = node.children.get(tokens[offset : offset + self.page_bytes])
            if child is None:
                break
            node = child
            num_node_pages = self._num_common_pages(node, tokens, offset)
            offset += num_node_pages * self.page_bytes
            if node.is_on_device:
                device_node, num_device_node_pages = node, num_node_pages
                num_pages += num_node_pages
                if not node.num_pins:
                    num_unpinned += num_node_pages
            if num_node_pages < node.num_pages:
                break
        num_host_pages = offset // self.page_bytes - num_pages
        return Found(node, num_node_pages, num_pages, num_unpinned, num_host_pages, device_node, num_device_node_pages)

    def pin(self, root: bytes, tokens: bytes, *, now: float, priority: int) -> tuple[Node, PageIds]:
        """Pins the longest prefix of `tokens` on the device and records the hit.

        Returns the node that ends it (split there if need be; the root where nothing is cached) and its pages.
        """
        found = self.find(root, tokens)
        node = found.device_node
        if node is None:
            node = Node(key=root, parent=None, tokens=b"", residence=Device(NO_PAGES), now=now, priority=priority)
            self._roots[root] = node
        elif found.num_device_node_pages < node.num_pages:
            node = self.split(node, found.num_device_node_pages)
        page_ids = []
        above: Node | None = node
        while above is not None:
            above.last_access = now
            above.num_hits += 1
            above.priority = max(above.priority, priority)
            self._pin_node(above)
            page_ids.append(above.device_page_ids)
            above = above.parent
        return node, np.concatenate(page_ids[::-1])

    def node_at(self, root: bytes, tokens: bytes) -> Node | None:
        """The node that ends what of `tokens` is on the device, split there if need be; None where that is nothing."""
        found = self.find(root, tokens)
        node = found.device_node
        if node is None or node.parent is None:
            return None
        return node if found.num_device_node_pages == node.num_pages else self.split(node, found.num_device_node_pages)

    def pin_path(self, node: Node) -> None:
        """Keeps the device copies of `node` and all above it; ended by `unpin_path`."""
        above: Node | None = node
        while above is not None:
            self._pin_node(above)
            above = above.parent

    def insert(self, node: Node, tokens: bytes, page_ids: PageIds, *, now: float, priority: int) -> Inserted:
        """Adds `tokens`, in `page_ids` (`[num_pages]`, copied), behind the pinned `node`, pinned by the same lease.

        Where the tree already holds the same pages on the device behind `node` it keeps its own (`Inserted.known`) and
        leaves the caller those of `page_ids`. What it holds on the host alone is on the device too from now on.
        """
        known = []
        offset = num_known = 0
        while offset < len(tokens):
            child = node.children.get(tokens[offset : offset + self.page_bytes])
            if child is None:
                break
            num_common = self._num_common_pages(child, tokens, offset)
            node = child if num_common == child.num_pages else self.split(child, num_common)
            if isinstance(node.residence, Host):
                start = offset // self.page_bytes
                self._set_residence(
                    node, DeviceAndHost(page_ids[start : start + num_common].copy(), node.residence.host_page_ids)
                )
                self._record("device", node.page_keys, node)
            else:
                known.append(node.device_page_ids)
                num_known += num_common
            node.last_access = now
            node.priority = max(node.priority, priority)
            self._pin_node(node)
            offset += num_common * self.page_bytes
        node = self._append(node, tokens[offset:], page_ids[offset // self.page_bytes :], now, priority)
        return Inserted(node, np.concatenate(known) if known else NO_PAGES)

    def unpin(self, node: Node, *, now: float) -> None:
        """Ends one lease's pin of the path to `node`: its pages count as used `now`, what nothing pins may go."""
        above: Node | None = node
        while above is not None:
            above.last_access = now
            above = above.parent
        self.unpin_path(node)

    def unpin_path(self, node: Node) -> None:
        above: Node | None = node
        while above is not None:
            parent = above.parent
            above.num_pins -= 1
            if not above.num_pins:
                self.num_unpinned_pages += above.num_pages
            self._settle_anew(above)
            above = parent

    def evict(self, num_pages: int, cause: EvictionCause) -> PageIds:
        """Drops the device copies of `num_pages` unpinned pages (of all there are, when they are fewer) and returns
        them. Leaves go in the policy's order, the last one only as far as needed, tail first. `cause` is recorded.
        """
        evicted = []
        missing = num_pages
        while missing > 0 and (leaf := self.evictable.first()) is not None:
            gone = self._tail(leaf, missing)
            evicted.append(gone.device_page_ids)
            missing -= gone.num_pages
            self._record("device", gone.page_keys, gone, cause)
            match gone.residence:
                case Device():
                    self.unlink(gone)
                case DeviceAndHost(_, host_page_ids):
                    self._set_residence(gone, Host(host_page_ids))
                case _:
                    raise ConservationError(f"a leaf that is {type(gone.residence).__name__} was evictable")
        return np.concatenate(evicted) if evicted else NO_PAGES

    def evict_host(self, num_pages: int, cause: EvictionCause) -> PageIds:
        """The same for the host's copies."""
        evicted = []
        missing = num_pages
        while missing > 0 and (leaf := self.host_evictable.first()) is not None:
            gone = self._tail(leaf, missing)
            evicted.append(gone.host_page_ids)
            missing -= gone.num_pages
            self._record("host", gone.page_keys, gone, cause)
            match gone.residence:
                case Host():
                    self.unlink(gone)
                case DeviceAndHost(page_ids, _):
                    self._set_residence(gone, Device(page_ids))
                case _:
                    raise ConservationError(f"a leaf that is {type(gone.residence).__name__} was evictable")
        return np.concatenate(evicted) if evicted else NO_PAGES

    def change(self, node: Node, residence: Residence) -> None:
        """A transition of `node`; `residence` has as many pages. See `node` for the legal ones.

        Raises `ConservationError`, with nothing changed, for any other.
        """
        match (node.residence, residence):
            case (Device(), Offloading() | DeviceAndHost()) | (Offloading(), DeviceAndHost() | Device()):
                self._set_residence(node, residence)
                if isinstance(residence, DeviceAndHost):
                    self._record("host", node.page_keys, node)
            case _:
                have, want = type(node.residence).__name__, type(residence).__name__
                raise ConservationError(f"a node that is {have} cannot become {want}")

    def settle(self, node: Node) -> None:
        """Brings the indices up to date after a node lost a pin, a child or a copy; an unused root is forgotten."""
        if node.parent is None:
            if not node.num_pins and not node.children:
                del self._roots[node.key]
            return
        device = node.is_on_device and not node.num_pins and not node.num_device_children
        # What requests read on the device may lose its other copy.
        host = (
            isinstance(node.residence, Host | DeviceAndHost) and not node.num_host_pins and not node.num_host_children
        )
        self.evictable.set_member(node, member=device)
        self.host_evictable.set_member(node, member=host)

    def split(self, node: Node, num_pages: int) -> Node:
        """Cuts the node after `num_pages` pages and returns the new upper part.

        The given object stays the lower part: leases and transfers that end at it still end at the same token.
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
        upper.last_access, upper.num_hits = node.last_access, node.num_hits
        upper.num_pins, upper.num_host_pins = node.num_pins, node.num_host_pins
        upper.is_stored = node.is_stored
        upper.page_keys, node.page_keys = node.page_keys[: 32 * num_pages], node.page_keys[32 * num_pages :]
        self._siblings(node)[node.key] = upper
        node.tokens = node.tokens[cut:]
        node.key = node.tokens[: self.page_bytes]
        node.residence = below
        node.parent = upper
        upper.children[node.key] = node
        upper.num_device_children = int(node.is_on_device)
        upper.num_host_children = int(not isinstance(below, Device))
        self.settle(upper)
        return upper

    def unlink(self, node: Node) -> None:
        """Takes a node without children or pins out of the tree; its parent may now be a leaf itself."""
        self.evictable.discard(node)
        self.host_evictable.discard(node)
        parent = node.parent
        if parent is None or node.children:
            raise ConservationError("only a leaf can be taken out of the tree")
        del parent.children[node.key]
        self._count(node, parent, -1)
        self.settle(parent)

    def nodes(self) -> Iterator[Node]:
        """Every node, roots included, parents first. For recounts."""
        pending = list(self._roots.values())
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())

    def _tail(self, leaf: Node, num_pages: int) -> Node:
        """The last `num_pages` pages of a leaf as a node of its own, or the leaf if it has no more."""
        if leaf.num_pages > num_pages:
            self.split(leaf, leaf.num_pages - num_pages)
        return leaf

    def _num_common_pages(self, node: Node, tokens: bytes, offset: int) -> int:
        """How many leading pages of the node's span `tokens` has from `offset` on."""
        if tokens.startswith(node.tokens, offset):
            return node.num_pages
        length = min(len(node.tokens), len(tokens) - offset)
        ours = np.frombuffer(node.tokens, dtype=np.uint8, count=length)
        differs = ours != np.frombuffer(tokens, dtype=np.uint8, count=length, offset=offset)
        first = int(differs.argmax())
        return (first if differs[first] else length) // self.page_bytes

    def _append(self, node: Node, tokens: bytes, page_ids: PageIds, now: float, priority: int) -> Node:
        """Adds pages that the tree does not have behind `node`, pinned once; returns the node that ends them."""
        if not len(page_ids):
            return node
        done = 0
        if (
            self._extends_leaves
            and isinstance(node.residence, Device)
            and node.parent is not None
            and node.num_pins == 1
            and not node.num_hits
            and not node.children
        ):
            done = min(len(page_ids), MAX_NODE_PAGES - node.num_pages)
            node.residence = node.residence.extended(page_ids[:done])
            node.tokens += tokens[: done * self.page_bytes]
            new_keys = self._keys_behind(node, tokens[: done * self.page_bytes])
            node.page_keys += new_keys
            self._record("device", new_keys, node)
            node.last_access = now
            self.num_pages += done
        for start in range(done, len(page_ids), MAX_NODE_PAGES):
            stop = min(start + MAX_NODE_PAGES, len(page_ids))
            span = tokens[start * self.page_bytes : stop * self.page_bytes]
            key = span[: self.page_bytes]
            residence = Device(page_ids[start:stop].copy())
            child = Node(key=key, parent=node, tokens=span, residence=residence, now=now, priority=priority)
            child.num_pins = 1
            child.page_keys = self._keys_behind(node, span)
            self._record("device", child.page_keys, child)
            node.children[key] = child
            self._count(child, node, 1)
            self.settle(node)
            node = child
        return node

    def _keys_behind(self, node: Node, tokens: bytes) -> bytes:
        """The page keys of `tokens`, which follow the last page of `node`."""
        last = node.key if node.parent is None else node.page_keys[-32:]
        return b"".join(page_keys_of_bytes(last, tokens, self.page_bytes))

    def _record(
        self, tier: Literal["device", "host"], keys: bytes, node: Node, cause: EvictionCause | None = None
    ) -> None:
        """The pages of `node` with these keys enter the tier, or are about to leave it, for the `cause`."""
        if self.records_changes:
            is_gone = cause is not None and isinstance(node.residence, Device if tier == "device" else Host)
            self._changes.append(TierChange(tier, keys, cause, is_gone, node.is_stored))

    def _pin_node(self, node: Node) -> None:
        node.num_pins += 1
        if node.num_pins == 1:
            self.num_unpinned_pages -= node.num_pages
        self._settle_anew(node)

    def _settle_anew(self, node: Node) -> None:
        """`settle`, after the facts that an eviction policy looks at have changed."""
        self.host_evictable.discard(node)
        self.settle(node)

    def _set_residence(self, node: Node, residence: Residence) -> None:
        """Changes a node that is not a root, with the books of its tiers and its parent's."""
        parent = node.parent
        if parent is None:
            raise ConservationError("a root is everywhere")
        self._count(node, parent, -1)
        node.residence = residence
        self._count(node, parent, 1)
        self.settle(node)
        self.settle(parent)

    def _count(self, node: Node, parent: Node, sign: int) -> None:
        """Adds the node to the books (`sign` 1) or takes it out (-1), as its residence has it."""
        match node.residence:
            case Device():
                device, host = sign, 0
            case Offloading() | DeviceAndHost():
                device, host = sign, sign
            case Host():
                device, host = 0, sign
            case _:
                assert_never(node.residence)
        parent.num_device_children += device
        parent.num_host_children += host
        self.num_pages += device * node.num_pages
        self.num_host_pages += host * node.num_pages
        if not node.num_pins:
            self.num_unpinned_pages += device * node.num_pages

    def _siblings(self, node: Node) -> dict[bytes, Node]:
        return self._roots if node.parent is None else node.parent.children
