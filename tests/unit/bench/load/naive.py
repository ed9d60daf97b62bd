"""The ceiling the slow way: every prompt token by token against all before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagefall.bench.load.turns import Piece

Tokens = tuple[tuple[str, int], ...]


def num_seen(prompts: Iterable[Sequence[Piece]]) -> list[int]:
    """For each prompt, the longest head that it shares with one before."""
    before: list[Tokens] = []
    found: list[int] = []
    for pieces in prompts:
        tokens = tuple((piece.key, place) for piece in pieces for place in range(piece.num_tokens))
        found.append(max((_num_shared(tokens, other) for other in before), default=0))
        before.append(tokens)
    return found


def _num_shared(left: Tokens, right: Tokens) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
