from __future__ import annotations

import numpy as np
import pytest

from pagefall.cache.eviction import lru
from pagefall.cache.keys import token_bytes
from pagefall.cache.node import Node
from pagefall.cache.tree import MAX_NODE_PAGES, Inserted, RadixTree
from pagefall.messages import PageIds

ROOT = b"root"
PAGE_SIZE = 2


def text(pages: str) -> bytes:
    """One page for each letter; a page's tokens differ only in the last."""
    return token_bytes(np.array([[7, ord(letter)] for letter in pages], dtype=np.uint32).reshape(-1))


def ids(first: int, count: int) -> PageIds:
    return np.arange(first, first + count, dtype=np.int32)


def insert(tree: RadixTree, pages: str, first_page: int, *, now: float = 0.0, root: bytes = ROOT) -> Inserted:
    """Caches `pages`, of which those not cached yet are in pages from `first_page` on; stays pinned."""
    node, shared = tree.pin(root, text(pages), now=now, priority=0)
    rest = pages[len(shared) :]
    return tree.insert(node, text(rest), ids(first_page, len(rest)), now=now, priority=0)


def cache(tree: RadixTree, pages: str, first_page: int, *, now: float = 0.0, root: bytes = ROOT) -> Node:
    node = insert(tree, pages, first_page, now=now, root=root).node
    tree.unpin(node, now=now)
    return node


def snapshot(tree: RadixTree) -> list[tuple[object, ...]]:
    return [
        (id(node), node.tokens, node.num_pins, node.last_access, node.num_hits, node.device_page_ids.tolist())
        for node in tree.nodes()
    ]


@pytest.fixture
def tree() -> RadixTree:
    return RadixTree(PAGE_SIZE, lru)


def num_found(tree: RadixTree, pages: str, root: bytes = ROOT) -> int:
    return tree.find(root, text(pages)).num_pages


def test_an_empty_tree_finds_nothing(tree: RadixTree) -> None:
    assert num_found(tree, "abc") == 0
    assert list(tree.nodes()) == []


def test_a_cached_path_is_found_as_far_as_it_goes(tree: RadixTree) -> None:
    cache(tree, "abcd", 10)
    assert [num_found(tree, pages) for pages in ("abcd", "abcdef", "abc", "abxd", "xbcd", "")] == [4, 4, 3, 2, 0, 0]


def test_pages_that_differ_only_in_their_last_token_are_told_apart(tree: RadixTree) -> None:
    cache(tree, "a", 10)
    assert num_found(tree, "b") == 0


def test_roots_share_nothing(tree: RadixTree) -> None:
    cache(tree, "abcd", 10)
    assert num_found(tree, "abcd", b"another root") == 0


def test_finding_changes_nothing_even_where_it_ends_inside_a_node(tree: RadixTree) -> None:
    cache(tree, "abcd", 10)
    before = snapshot(tree)
    num_found(tree, "abx")
    num_found(tree, "abcd", b"another root")
    assert snapshot(tree) == before


def test_pinning_splits_where_the_match_ends_and_counts_the_hit_above_only(tree: RadixTree) -> None:
    lower = cache(tree, "abcd", 10)
    upper, shared = tree.pin(ROOT, text("abx"), now=5.0, priority=3)
    assert shared.tolist() == [10, 11]
    assert (upper.tokens, lower.tokens) == (text("ab"), text("cd"))
    assert lower.parent is upper
    assert lower.device_page_ids.tolist() == [12, 13]
    assert (upper.num_hits, upper.last_access, upper.priority, upper.num_pins) == (1, 5.0, 3, 1)
    assert (lower.num_hits, lower.last_access, lower.priority, lower.num_pins) == (0, 0.0, 0, 0)
    assert tree.num_unpinned_pages == 2
    assert set(tree.evictable) == {lower}


def test_a_lease_at_the_end_of_a_node_stays_there_when_the_node_is_split(tree: RadixTree) -> None:
    end = insert(tree, "abcd", 10).node
    upper, _ = tree.pin(ROOT, text("ab"), now=0.0, priority=0)
    assert (upper.num_pins, end.num_pins) == (2, 1)
    tree.unpin(end, now=0.0)
    assert (upper.num_pins, end.num_pins) == (1, 0)


def test_the_unpinned_part_of_a_match_is_counted(tree: RadixTree) -> None:
    cache(tree, "abcd", 10)
    assert tree.find(ROOT, text("abcx")).num_unpinned_pages == 3
    tree.pin(ROOT, text("a"), now=0.0, priority=0)
    assert tree.find(ROOT, text("abcx")).num_unpinned_pages == 2


def test_inserting_what_is_there_keeps_the_tree_s_pages(tree: RadixTree) -> None:
    ours, _ = tree.pin(ROOT, b"", now=0.0, priority=0)
    cache(tree, "abcd", 10)
    node, known = tree.insert(ours, text("abxy"), ids(20, 4), now=1.0, priority=0)
    assert known.tolist() == [10, 11]
    assert node.device_page_ids.tolist() == [22, 23]
    assert tree.num_pages == 6
    assert tree.num_unpinned_pages == 2  # c, d


def test_a_lease_s_own_leaf_becomes_longer_in_place(tree: RadixTree) -> None:
    first = insert(tree, "ab", 10).node
    again = tree.insert(first, text("cd"), ids(12, 2), now=4.0, priority=0).node
    assert again is first
    assert first.device_page_ids.tolist() == [10, 11, 12, 13]
    assert first.last_access == 4.0
    assert num_found(tree, "abcd") == 4


def test_a_leaf_that_another_lease_reads_or_once_hit_is_not_made_longer(tree: RadixTree) -> None:
    first = insert(tree, "ab", 10).node
    other, _ = tree.pin(ROOT, text("ab"), now=0.0, priority=0)
    longer = tree.insert(first, text("c"), ids(12, 1), now=0.0, priority=0).node
    assert longer is not first
    tree.unpin(other, now=0.0)
    assert other.device_page_ids.tolist() == [10, 11]


def test_a_leaf_that_a_twin_computed_too_is_not_made_longer_under_it(tree: RadixTree) -> None:
    root, _ = tree.pin(ROOT, text("ab"), now=0.0, priority=0)
    first = insert(tree, "ab", 10).node
    twin = tree.insert(root, text("ab"), ids(20, 2), now=0.0, priority=0).node
    assert twin is first
    assert tree.insert(first, text("c"), ids(12, 1), now=0.0, priority=0).node is not first
    assert twin.device_page_ids.tolist() == [10, 11]


def test_the_tree_keeps_its_own_copy_of_the_page_ids(tree: RadixTree) -> None:
    given = ids(10, 2)
    root, _ = tree.pin(ROOT, b"", now=0.0, priority=0)
    node = tree.insert(root, text("ab"), given, now=0.0, priority=0).node
    given[:] = 99
    assert node.device_page_ids.tolist() == [10, 11]


def test_long_spans_are_cut_into_bounded_nodes(tree: RadixTree) -> None:
    pages = "".join(chr(1000 + i) for i in range(3 * MAX_NODE_PAGES + 5))
    end = insert(tree, pages[:-10], 0).node
    tree.insert(end, text(pages[-10:]), ids(len(pages) - 10, 10), now=0.0, priority=0)
    assert [node.num_pages for node in tree.nodes()] == [0, 256, 256, 256, 5]
    found = tree.find(ROOT, text(pages))
    assert found.num_pages == len(pages)
    _, shared = tree.pin(ROOT, text(pages), now=0.0, priority=0)
    assert shared.tolist() == list(range(len(pages)))


def test_eviction_takes_leaves_in_order_and_trims_the_last_one_from_its_tail(tree: RadixTree) -> None:
    cache(tree, "ab", 10, now=1.0)
    cache(tree, "xyz", 20, now=2.0)
    assert tree.evict(3, "pool_full").tolist() == [10, 11, 22]
    assert (num_found(tree, "ab"), num_found(tree, "xyz")) == (0, 2)
    assert (tree.num_pages, tree.num_unpinned_pages) == (2, 2)


def test_a_parent_goes_only_after_its_children(tree: RadixTree) -> None:
    cache(tree, "ab", 10, now=1.0)
    cache(tree, "abc", 20, now=2.0)
    cache(tree, "x", 30, now=3.0)
    assert tree.evict(1, "pool_full").tolist() == [20]
    assert tree.evict(2, "pool_full").tolist() == [10, 11]


def test_pinned_pages_are_never_evicted(tree: RadixTree) -> None:
    cache(tree, "abcd", 10)
    node, _ = tree.pin(ROOT, text("ab"), now=0.0, priority=0)
    assert tree.evict(100, "pool_full").tolist() == [12, 13]
    assert num_found(tree, "abcd") == 2
    tree.unpin(node, now=0.0)
    assert tree.evict(100, "pool_full").tolist() == [10, 11]


def test_releasing_makes_a_path_the_most_recently_used(tree: RadixTree) -> None:
    held = insert(tree, "ab", 10, now=1.0).node
    cache(tree, "xy", 20, now=2.0)
    tree.unpin(held, now=3.0)
    assert tree.evict(2, "pool_full").tolist() == [20, 21]


def test_an_empty_root_is_forgotten(tree: RadixTree) -> None:
    for number in range(10):
        root = str(number).encode()
        cache(tree, "ab", 10, root=root)
        tree.evict(2, "pool_full")
        node, _ = tree.pin(root, text("ab"), now=0.0, priority=0)
        tree.unpin(node, now=0.0)
    assert list(tree.nodes()) == []


def test_a_root_whose_pages_were_evicted_lives_as_long_as_its_lease(tree: RadixTree) -> None:
    root, _ = tree.pin(ROOT, text("zz"), now=0.0, priority=0)
    cache(tree, "ab", 10)
    tree.evict(2, "pool_full")
    assert list(tree.nodes()) == [root]
    tree.insert(root, text("ab"), ids(10, 2), now=0.0, priority=0)
    assert num_found(tree, "ab") == 2
