"""Which cached leaf goes first: the policies, and the ordered set of leaves that may go."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar, assert_never

from pagefall.config import EvictionPolicyName

EvictionKey = tuple[float, ...]

_HEAP_SLACK = 64


class NodeFacts(Protocol):
    """What a policy may look at. Times are seconds of the caller's clock.

    `last_access`: when a lease last opened, committed or released the node. `num_hits`: how many leases opened on it
    since it was created. `priority`: the highest of the requests that used it.
    """

    last_access: float
    created: float
    num_hits: int
    priority: int


class EvictionPolicy(Protocol):
    """The leaf with the smallest key is evicted first."""

    def __call__(self, facts: NodeFacts, /) -> EvictionKey: ...


def lru(facts: NodeFacts) -> EvictionKey:
    """Least recently used first."""
    return (facts.last_access,)


def lfu(facts: NodeFacts) -> EvictionKey:
    """Fewest hits first, among equals the least recently used."""
    return (facts.num_hits, facts.last_access)


def slru(facts: NodeFacts) -> EvictionKey:
    """Two segments, each least recently used first: all that was never hit goes before anything that was.

    A node stays in the protected segment once it is there; the segment has no bound of its own.
    """
    return (facts.num_hits > 0, facts.last_access)


def fifo(facts: NodeFacts) -> EvictionKey:
    """Oldest first, used or not."""
    return (facts.created,)


def priority(facts: NodeFacts) -> EvictionKey:
    """Lowest priority first, among equals the least recently used."""
    return (facts.priority, facts.last_access)


def policy_named(name: EvictionPolicyName) -> EvictionPolicy:
    match name:
        case "lru":
            return lru
        case "lfu":
            return lfu
        case "slru":
            return slru
        case "fifo":
            return fifo
        case "priority":
            return priority
    assert_never(name)


Leaf = TypeVar("Leaf", bound=NodeFacts)


class EvictableLeaves(Generic[Leaf]):
    """The leaves that may be evicted, in the order of a policy.

    A leaf's facts must not change while it is in here. Leaves are told apart by identity. Adding costs O(log n);
    a discarded leaf's entry goes stale in the heap, which is rebuilt once the stale ones far outnumber the others.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[EvictionKey, int, Leaf]] = []
        self._stamps: dict[Leaf, int] = {}  # the stamp of each leaf's one valid entry
        self._next_stamp = 0

    def __len__(self) -> int:
        return len(self._stamps)

    def __iter__(self) -> Iterator[Leaf]:
        """The leaves in no particular order."""
        return iter(self._stamps)

    def add(self, leaf: Leaf) -> None:
        """Adds a leaf under its facts of now. Among equal keys the one added first is evicted first."""
        self._stamps[leaf] = self._next_stamp
        heapq.heappush(self._heap, (self._policy(leaf), self._next_stamp, leaf))
        self._next_stamp += 1

    def __contains__(self, leaf: Leaf) -> bool:
        return leaf in self._stamps

    def set_member(self, leaf: Leaf, *, member: bool) -> None:
        """Adds or takes out, whichever is needed; a leaf that is in already keeps its place."""
        if not member:
            self.discard(leaf)
        elif leaf not in self._stamps:
            self.add(leaf)

    def first_few(self, count: int) -> list[Leaf]:
        """Up to `count` of the leaves that go first, in order. O(n) in the leaves."""
        return [leaf for _, _, leaf in heapq.nsmallest(count, filter(self._is_valid, self._heap))]

    def discard(self, leaf: Leaf) -> None:
        """Takes the leaf out, if it is in."""
        if self._stamps.pop(leaf, None) is None:
            return
        if len(self._heap) > 2 * len(self._stamps) + _HEAP_SLACK:
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapq.heapify(self._heap)

    def first(self) -> Leaf | None:
        """The leaf to evict first, which stays in; None when there is none."""
        while self._heap:
            if self._is_valid(self._heap[0]):
                return self._heap[0][2]
            heapq.heappop(self._heap)
        return None

    def _is_valid(self, entry: tuple[EvictionKey, int, Leaf]) -> bool:
        _, stamp, leaf = entry
        return self._stamps.get(leaf) == stamp
