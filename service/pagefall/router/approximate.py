"""What was sent to which worker: what a worker that publishes no events may be taken to have cached.

A prefix tree without nodes: prompts are cut into blocks, and a block's name digests everything up to its end, so that
equal names are equal prefixes. Blocks are of tokens, or of text where there are no tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import xxhash

from pagefall.cache.keys import TOKEN_BYTES, token_bytes
from pagefall.router.routing import RouteRequest, WorkerId

BLOCK_TOKENS: Final = 16
CHARACTERS_PER_TOKEN: Final = 4
"""An estimate, for prompts that nobody could tokenise."""

_BLOCK_BYTES: Final = {"tokens": BLOCK_TOKENS * TOKEN_BYTES, "text": BLOCK_TOKENS * CHARACTERS_PER_TOKEN}

Blocks = Sequence[int]
"""The names of a prompt's blocks, in order."""


class ApproximateTree:
    """For each worker, the blocks sent to it, the least recently sent given up first. About 200 bytes a block."""

    def __init__(self, *, max_tokens_per_worker: int = 1_000_000) -> None:
        """`max_tokens_per_worker`: about what a worker's cache holds. More makes it expect what is gone."""
        self._max_blocks = max(max_tokens_per_worker // BLOCK_TOKENS, 1)
        self._blocks: dict[WorkerId, OrderedDict[int, None]] = {}

    def num_tokens(self, worker_id: WorkerId) -> int:
        return len(self._blocks.get(worker_id, ())) * BLOCK_TOKENS

    def match(self, blocks: Blocks, worker_ids: Sequence[WorkerId]) -> dict[WorkerId, int]:
        """How many leading tokens of the prompt were sent to each worker.

        A block is known to a worker only if those before it are, or were until lately, so that the end is found by
        halving: the costs are those of the prompt's length, and its logarithm for each worker.
        """
        return {worker_id: self._num_known(worker_id, blocks) * BLOCK_TOKENS for worker_id in worker_ids}

    def sent(self, blocks: Blocks, worker_id: WorkerId) -> None:
        """The worker computes these, and gives up what it used longest ago."""
        known = self._blocks.setdefault(worker_id, OrderedDict())
        # From the end: a prefix is given up from its end, as caches do.
        for block in reversed(blocks):
            known[block] = None
            known.move_to_end(block)
        while len(known) > self._max_blocks:
            known.popitem(last=False)

    def drop(self, worker_id: WorkerId) -> None:
        """The worker is gone or was restarted."""
        self._blocks.pop(worker_id, None)

    def _num_known(self, worker_id: WorkerId, blocks: Blocks) -> int:
        known: Mapping[int, None] = self._blocks.get(worker_id, {})
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high + 1) // 2
            if blocks[middle - 1] in known:
                low = middle
            else:
                high = middle - 1
        return low


def blocks_of(request: RouteRequest) -> Blocks:
    """Of its tokens before the last, which is always computed, or of its text. The salt is a part of every name."""
    seed = xxhash.xxh3_64_intdigest(request.cache_salt.encode("utf-8", "surrogatepass"))
    if request.token_ids is not None:
        return list(_chained(token_bytes(request.token_ids[:-1]), _BLOCK_BYTES["tokens"], seed))
    return list(_chained(request.text.encode("utf-8", "surrogatepass"), _BLOCK_BYTES["text"], seed + 1))


def num_prompt_tokens(request: RouteRequest) -> int:
    """Of a text, an estimate."""
    if request.token_ids is not None:
        return len(request.token_ids)
    return -(-len(request.text) // CHARACTERS_PER_TOKEN)


def _chained(content: bytes, block_bytes: int, seed: int) -> Iterator[int]:
    name = seed
    for start in range(0, len(content) // block_bytes * block_bytes, block_bytes):
        name = xxhash.xxh3_64_intdigest(content[start : start + block_bytes], seed=name)
        yield name
