"""The recount: every page in exactly one place, every pin someone's, every evictable leaf known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np

from pagefall.cache.errors import ConservationError
from pagefall.cache.lease import Lease
from pagefall.cache.node import NO_PAGES, Node
from pagefall.cache.pool import PagePool
from pagefall.cache.tree import MAX_NODE_PAGES, RadixTree
from pagefall.messages import PageIds, PoolStats


def check_conservation(
    stats: PoolStats, pool: PagePool, tree: RadixTree, leases: Collection[Lease], pinned_paths: Collection[Node]
) -> None:
    """Raises `ConservationError` unless a full recount agrees with `stats` and with every node's books.

    `pinned_paths`: the nodes up from which something else than a lease pins, once for each.
    """
    pool.check()
    nodes = list(tree.nodes())
    _check_pages(stats, pool, nodes, leases)
    _check_structure(tree, nodes)
    _check_pins(nodes, leases, pinned_paths)
    _check_evictable(tree, nodes)


def _check_pages(stats: PoolStats, pool: PagePool, nodes: list[Node], leases: Collection[Lease]) -> None:
    free = pool.free_page_ids()
    leased = _concatenated([lease.private_page_ids for lease in leases])
    cached = _concatenated([node.device_page_ids for node in nodes])
    pinned = sum(len(node.device_page_ids) for node in nodes if node.num_pins)
    recount = PoolStats(total=pool.num_pages, free=len(free), leased=len(leased), cached=len(cached), pinned=pinned)
    if recount != stats or stats.free + stats.leased + stats.cached != stats.total:
        raise ConservationError(f"the books say {stats}, the recount {recount}")
    holders = np.bincount(_concatenated([free, leased, cached]), minlength=stats.total)
    if (wrong := np.flatnonzero(holders != 1)).size:
        raise ConservationError(f"page {wrong[0]} is in {holders[wrong[0]]} places, one of {wrong.size} such pages")


def _check_structure(tree: RadixTree, nodes: list[Node]) -> None:
    for node in nodes:
        if node.parent is None:
            if not (node.num_pins or node.children):
                raise ConservationError(f"root {node.key.hex()} is empty and unused, but kept")
        elif not 1 <= node.num_pages <= MAX_NODE_PAGES or len(node.tokens) != node.num_pages * tree.page_bytes:
            raise ConservationError(f"a node of {node.num_pages} pages has {len(node.tokens)} bytes of tokens")
        for key, child in node.children.items():
            if child.is_on_device and not node.is_on_device:
                raise ConservationError("a node is on the device, but its parent is not")
            if child.parent is not node or child.key != key or child.tokens[: tree.page_bytes] != key:
                raise ConservationError(f"a child is filed under {key.hex()}, but is {child.key.hex()}")


def _check_pins(nodes: list[Node], leases: Collection[Lease], pinned_paths: Collection[Node]) -> None:
    pins: Counter[Node] = Counter()
    for bottom in pinned_paths:
        above: Node | None = bottom
        while above is not None:
            pins[above] += 1
            above = above.parent
    for lease in leases:
        path = []
        node: Node | None = lease.node
        while node is not None:
            pins[node] += 1
            path.append(node.device_page_ids)
            node = node.parent
        shared = _concatenated(path[::-1])
        if not np.array_equal(shared, lease.page_ids[: lease.num_shared_pages]):
            raise ConservationError(f"a lease reads {lease.num_shared_pages} shared pages, its path has {len(shared)}")
    for node in nodes:
        if node.num_pins != (num_pins := pins.pop(node, 0)):
            raise ConservationError(f"a node counts {node.num_pins} pins, but {num_pins} leases go through it")
    if pins:
        raise ConservationError(f"{len(pins)} nodes are pinned, but not in the tree")


def _check_evictable(tree: RadixTree, nodes: list[Node]) -> None:
    inner = [node for node in nodes if node.parent is not None]
    device_parents = {node.parent for node in inner if node.is_on_device}
    host_parents = {node.parent for node in inner if node.host_page_ids.size}
    device = {node for node in inner if node.is_on_device and not node.num_pins and node not in device_parents}
    host = {node for node in inner if node.is_on_host and not node.num_host_pins and node not in host_parents}
    if device != set(tree.evictable) or host != set(tree.host_evictable):
        raise ConservationError(
            f"{len(device)} and {len(host)} leaves of device and host are evictable, "
            f"{len(tree.evictable)} and {len(tree.host_evictable)} are in the indices"
        )


def _concatenated(page_ids: list[PageIds]) -> PageIds:
    return np.concatenate([NO_PAGES, *page_ids])
