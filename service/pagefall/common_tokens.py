"""How much two runs of tokens have in common: for the cache, the scheduler and prompts alike."""

from __future__ import annotations

from typing import Final

from pagefall.messages import TokenIds

_FIRST_TOKENS: Final = 64
"""So many are compared first: paths that part, part early, and what is behind that need not be read."""


def num_common_tokens(ours: TokenIds, theirs: TokenIds) -> int:
    """How many leading tokens two runs share. O(of these)."""
    length = min(len(ours), len(theirs))
    start, stop = 0, min(_FIRST_TOKENS, length)
    while start < length:
        differs = ours[start:stop] != theirs[start:stop]
        first = int(differs.argmax())
        if differs[first]:
            return start + first
        start, stop = stop, min(3 * stop - 2 * start, length)  # each piece is twice as long as the one before
    return length
