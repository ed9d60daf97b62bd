from __future__ import annotations

import random

import pytest

from pagefall.cache.eviction import EvictableLeaves, lru, policy_named
from pagefall.config import EvictionPolicyName


class Leaf:
    def __init__(
        self, name: str, *, last_access: float = 0.0, created: float = 0.0, num_hits: int = 0, priority: int = 0
    ) -> None:
        self.name = name
        self.last_access = last_access
        self.created = created
        self.num_hits = num_hits
        self.priority = priority


def emptied(leaves: EvictableLeaves[Leaf]) -> list[str]:
    order = []
    while (leaf := leaves.first()) is not None:
        order.append(leaf.name)
        leaves.discard(leaf)
    return order


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("lru", ["old", "vip", "hot", "new"]),
        ("lfu", ["vip", "new", "old", "hot"]),
        ("slru", ["vip", "new", "old", "hot"]),
        ("fifo", ["new", "hot", "old", "vip"]),
        ("priority", ["old", "hot", "new", "vip"]),
    ],
)
def test_each_policy_evicts_in_its_own_order(policy: EvictionPolicyName, order: list[str]) -> None:
    leaves: EvictableLeaves[Leaf] = EvictableLeaves(policy_named(policy))
    leaves.add(Leaf("old", last_access=1, created=3, num_hits=1))
    leaves.add(Leaf("hot", last_access=3, created=2, num_hits=9))
    leaves.add(Leaf("new", last_access=4, created=1))
    leaves.add(Leaf("vip", last_access=2, created=4, priority=1))
    assert emptied(leaves) == order


@pytest.mark.parametrize(("policy", "order"), [("slru", ["often", "once"]), ("lfu", ["once", "often"])])
def test_slru_does_not_count_hits_beyond_the_first_but_lfu_does(policy: EvictionPolicyName, order: list[str]) -> None:
    leaves: EvictableLeaves[Leaf] = EvictableLeaves(policy_named(policy))
    leaves.add(Leaf("often", last_access=1, num_hits=5))
    leaves.add(Leaf("once", last_access=2, num_hits=1))
    assert emptied(leaves) == order


def test_among_equals_the_one_added_first_goes_first() -> None:
    leaves: EvictableLeaves[Leaf] = EvictableLeaves(lru)
    for name in "abc":
        leaves.add(Leaf(name))
    assert emptied(leaves) == ["a", "b", "c"]


def test_looking_at_the_first_leaf_does_not_take_it() -> None:
    leaves: EvictableLeaves[Leaf] = EvictableLeaves(lru)
    leaf = Leaf("a")
    leaves.add(leaf)
    assert leaves.first() is leaf
    assert leaves.first() is leaf
    assert set(leaves) == {leaf}


def test_a_discarded_leaf_is_not_evicted_until_it_is_added_again_under_its_new_facts() -> None:
    leaves: EvictableLeaves[Leaf] = EvictableLeaves(lru)
    moved, other = Leaf("moved", last_access=1), Leaf("other", last_access=2)
    leaves.add(moved)
    leaves.add(other)
    leaves.discard(moved)
    assert leaves.first() is other
    moved.last_access = 3
    leaves.add(moved)
    assert emptied(leaves) == ["other", "moved"]


def test_discarding_a_leaf_that_is_not_in_changes_nothing() -> None:
    leaves: EvictableLeaves[Leaf] = EvictableLeaves(lru)
    leaves.discard(Leaf("a"))
    assert leaves.first() is None
    assert len(leaves) == 0


def test_the_heap_stays_bounded_by_the_leaves_in_it() -> None:
    leaves: EvictableLeaves[Leaf] = EvictableLeaves(lru)
    held = [Leaf(str(i)) for i in range(10)]
    for leaf in held:
        leaves.add(leaf)
    shuffle = random.Random(0)
    for step in range(5_000):
        leaf = shuffle.choice(held)
        leaves.discard(leaf)
        leaf.last_access = step
        leaves.add(leaf)
        assert len(leaves._heap) <= 2 * len(leaves) + 64
    assert emptied(leaves) == [leaf.name for leaf in sorted(held, key=lambda leaf: leaf.last_access)]
