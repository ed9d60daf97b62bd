"""What the tree has nearest to a prompt: for explaining a miss. Changes nothing."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from pagefall.cache.node import Node
from pagefall.cache.tree import RadixTree
from pagefall.common_tokens import num_common_tokens
from pagefall.messages import TokenIds

_MAX_CHILDREN: Final = 256
"""So many siblings are compared with the prompt at most; beyond that the nearest of these will do."""

_MAX_ROOTS: Final = 512


class Neighbour(NamedTuple):
    """`num_pages` of the prompt are in the tree, the last of which has the page key `key` (the root's where there is
    none). `other`: what the nearest path has behind them, as token bytes, as far as its node goes; None where nothing
    follows.
    """

    num_pages: int
    key: bytes
    other: bytes | None


def nearest(tree: RadixTree, root: bytes, tokens: bytes) -> Neighbour:
    """`tokens` are all token bytes of the prompt, not only those of whole pages. O(pages found)."""
    page_bytes = tree.page_bytes
    found = tree.find(root, tokens)
    node, offset = found.node, (found.num_pages + found.num_host_pages) * page_bytes
    if node is None:
        return Neighbour(0, root, None)
    num_pages = offset // page_bytes
    if node.parent is None:
        return Neighbour(num_pages, root, _closest_child(node, tokens, offset))
    key = node.page_keys[32 * (found.num_node_pages - 1) :][:32]
    if found.num_node_pages < node.num_pages:
        return Neighbour(num_pages, key, node.tokens[found.num_node_pages * page_bytes :])
    return Neighbour(num_pages, key, _closest_child(node, tokens, offset))


def num_pages_elsewhere(tree: RadixTree, root: bytes, tokens: bytes) -> int:
    """The most pages of the prompt that are in the tree under any other root, of the `_MAX_ROOTS` newest."""
    most = 0
    for other in tree.other_roots(root, _MAX_ROOTS):
        found = tree.find(other, tokens)
        most = max(most, found.num_pages + found.num_host_pages)
    return most


def tokens_of(token_bytes: bytes | memoryview) -> TokenIds:
    """A view of whole tokens, `[num_tokens]`; nothing is copied."""
    return np.frombuffer(token_bytes, dtype="<u4", count=len(token_bytes) // 4)


def _closest_child(node: Node, tokens: bytes, offset: int) -> bytes | None:
    rest = tokens_of(memoryview(tokens)[offset:])
    best: bytes | None = None
    most = -1
    for index, child in enumerate(reversed(node.children.values())):
        if index == _MAX_CHILDREN:
            break
        num_common = num_common_tokens(rest, tokens_of(child.tokens))
        if num_common > most:
            best, most = child.tokens, num_common
    return best
