"""What a cache that never forgets would know: the ceiling of every hit rate."""

from __future__ import annotations

from collections.abc import Iterable

from pagefall.bench.load.turns import Piece


class PrefixLedger:
    """The heads of all prompts sent so far, piece by piece.

    A cache that finds one token more or less at the seams of two pieces, or works in pages, differs from it by a few
    tokens a request.
    """

    def __init__(self) -> None:
        self._heads: set[int] = set()

    def see(self, pieces: Iterable[Piece]) -> int:
        """The tokens in the longest head of `pieces` that was there before; remembers every head of `pieces`."""
        num_seen = 0
        is_known = True
        head = 0
        for piece in pieces:
            head = hash((head, piece.key))
            if head in self._heads:
                num_seen += piece.num_tokens if is_known else 0
            else:
                is_known = False
                self._heads.add(head)
        return num_seen
