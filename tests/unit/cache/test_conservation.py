from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pagefall.cache.errors import ConservationError
from pagefall.cache.lease import Lease
from pagefall.cache.node import Device, Node
from pagefall.cache.prefix_cache import PrefixCache


def lose_a_private_page(cache: PrefixCache, lease: Lease, leaf: Node) -> None:
    lease.page_ids = lease.page_ids[:-1]


def hold_a_page_twice(cache: PrefixCache, lease: Lease, leaf: Node) -> None:
    leaf.residence = Device(lease.private_page_ids[:1])


def miscount_leased_pages(cache: PrefixCache, lease: Lease, leaf: Node) -> None:
    cache._num_leased += 1


def forget_a_pin(cache: PrefixCache, lease: Lease, leaf: Node) -> None:
    root = lease.node.parent
    assert root is not None
    root.num_pins -= 1


def read_other_pages_than_the_path_s(cache: PrefixCache, lease: Lease, leaf: Node) -> None:
    lease.page_ids[:2] = lease.page_ids[1::-1]


def forget_an_evictable_leaf(cache: PrefixCache, lease: Lease, leaf: Node) -> None:
    cache._tree.evictable.discard(leaf)


def file_a_node_under_another_key(cache: PrefixCache, lease: Lease, leaf: Node) -> None:
    leaf.key = b"other key"


def lose_tokens(cache: PrefixCache, lease: Lease, leaf: Node) -> None:
    leaf.tokens += b"\0\0\0\0"


def keep_an_unused_root(cache: PrefixCache, lease: Lease, leaf: Node) -> None:
    residence = Device(np.empty(0, dtype=np.int32))
    unused = Node(key=b"unused", parent=None, tokens=b"", residence=residence, now=0.0, priority=0)
    cache._tree._roots[b"unused"] = unused


def cut_a_pinned_path(cache: PrefixCache, lease: Lease, leaf: Node) -> None:
    lease.node = Node(
        key=lease.node.key,
        parent=lease.node.parent,
        tokens=lease.node.tokens,
        residence=lease.node.residence,
        now=0.0,
        priority=0,
    )
    root = lease.node.parent
    assert root is not None
    root.children[lease.node.key].num_pins = 0
    cache._tree.evictable.add(root.children[lease.node.key])
    cache._tree.num_unpinned_pages += lease.node.num_pages


@pytest.mark.parametrize(
    ("breach", "message"),
    [
        (lose_a_private_page, r"the books say .*leased=1.* the recount .*leased=0"),
        (hold_a_page_twice, "page 2 is in 2 places, one of 2 such pages"),
        (miscount_leased_pages, r"the books say .*leased=2.* the recount .*leased=1"),
        (forget_a_pin, "a node counts 0 pins, but 1 leases"),
        (read_other_pages_than_the_path_s, "a lease reads 2 shared pages"),
        (forget_an_evictable_leaf, "1 and 0 leaves of device and host are evictable, 0 and 0"),
        (file_a_node_under_another_key, "a child is filed under"),
        (lose_tokens, "a node of 1 pages has 20 bytes of tokens"),
        (keep_an_unused_root, "root 756e75736564 is empty"),
        (cut_a_pinned_path, "1 nodes are pinned, but not in the tree"),
    ],
)
def test_a_breach_is_found_and_told_with_its_numbers(
    breach: Callable[[PrefixCache, Lease, Node], None], message: str
) -> None:
    cache = PrefixCache(num_pages=8, page_size=4, eviction_policy="lru")
    token_ids = np.arange(10, dtype=np.uint32)
    lease = cache.open(b"root", token_ids, now=0.0)
    assert cache.grow(lease, 10, now=0.0)
    cache.commit(lease, token_ids, now=0.0)
    other = cache.open(b"root", token_ids[5:], now=0.0)
    assert cache.grow(other, 4, now=0.0)
    cache.commit(other, token_ids[5:9], now=0.0)
    leaf = other.node
    cache.release(other, now=0.0)
    cache.check()
    breach(cache, lease, leaf)
    with pytest.raises(ConservationError, match=message):
        cache.check()
