"""The shape of the radix tree for people: its largest branches."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from pagefall.cache.keys import TOKEN_BYTES
from pagefall.cache.node import Node
from pagefall.cache.tree import RadixTree
from pagefall.messages import BranchFacts

_MAX_NODES: Final = 20_000
"""Some 20 ms of the loop's time."""

_HEAD_TOKENS: Final = 64


class Branches(NamedTuple):
    """The largest ones, each after the one it hangs on. `is_complete`: all `num_nodes` of the tree were looked at."""

    branches: tuple[BranchFacts, ...]
    num_nodes: int
    is_complete: bool


@dataclass(slots=True)
class _Total:
    """A node with all below it."""

    num_device_pages: int = 0
    num_host_pages: int = 0
    num_stored_pages: int = 0
    num_nodes: int = 0
    last_access: float = 0.0
    below: list[Node] = field(default_factory=list)

    @property
    def size(self) -> int:
        return max(self.num_device_pages, self.num_host_pages)

    def add(self, other: _Total) -> None:
        self.num_device_pages += other.num_device_pages
        self.num_host_pages += other.num_host_pages
        self.num_stored_pages += other.num_stored_pages
        self.num_nodes += other.num_nodes
        self.last_access = max(self.last_access, other.last_access)


def largest_branches(tree: RadixTree, *, max_branches: int, now: float) -> Branches:
    """Roots are no branches, and nodes that merely continue their parent are part of it. O(nodes), up to a bound."""
    nodes = list(itertools.islice(tree.nodes(), _MAX_NODES + 1))
    is_complete = len(nodes) <= _MAX_NODES
    totals = {node: _of_itself(node) for node in nodes[:_MAX_NODES]}
    for node in reversed(nodes[:_MAX_NODES]):  # children before parents
        parent = totals.get(node.parent) if node.parent is not None else None
        if parent is not None:
            parent.add(totals[node])
            parent.below.append(node)
    return Branches(_choose(tree, totals, max_branches, now), len(totals), is_complete)


def _choose(tree: RadixTree, totals: dict[Node, _Total], max_branches: int, now: float) -> tuple[BranchFacts, ...]:
    ids = itertools.count()
    heap: list[tuple[int, int, Node, int | None, int]] = []

    def offer(node: Node, parent_id: int | None, start_token: int) -> None:
        heapq.heappush(heap, (-totals[node].size, next(ids), node, parent_id, start_token))

    for node, total in totals.items():
        if node.parent is None:
            for child in total.below:
                offer(child, None, 0)
    branches: list[BranchFacts] = []
    while heap and len(branches) < max_branches:
        _, _, node, parent_id, start_token = heapq.heappop(heap)
        branch_id = len(branches)
        last, tokens = _to_its_fork(node, totals)
        num_own_tokens = len(tokens) // TOKEN_BYTES
        total = totals[node]
        branches.append(
            BranchFacts(
                branch_id=branch_id,
                parent_id=parent_id,
                start_token=start_token,
                num_own_tokens=num_own_tokens,
                head_token_ids=tuple(np.frombuffer(tokens[: _HEAD_TOKENS * TOKEN_BYTES], dtype="<u4").tolist()),
                num_device_pages=total.num_device_pages,
                num_host_pages=total.num_host_pages,
                num_stored_pages=total.num_stored_pages,
                num_nodes=total.num_nodes,
                num_hits=node.num_hits,
                idle_seconds=max(0.0, now - total.last_access),
            )
        )
        for child in totals[last].below:
            offer(child, branch_id, start_token + num_own_tokens)
    return tuple(branches)


def _to_its_fork(node: Node, totals: dict[Node, _Total]) -> tuple[Node, bytes]:
    """The node where the path from `node` on forks or ends, and the token bytes up to there."""
    tokens = [node.tokens]
    while len(totals[node].below) == 1:
        [node] = totals[node].below
        tokens.append(node.tokens)
    return node, b"".join(tokens)


def _of_itself(node: Node) -> _Total:
    if node.parent is None:
        return _Total(last_access=node.last_access)
    return _Total(
        num_device_pages=len(node.device_page_ids),
        num_host_pages=len(node.host_page_ids),
        num_stored_pages=node.num_pages if node.is_stored else 0,
        num_nodes=1,
        last_access=node.last_access,
    )
