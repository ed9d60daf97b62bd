"""Two texts that are the same but for short pieces: which pieces these are."""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_SPAN: Final = 200
"""Characters that a varying piece may have."""

_AGREEMENT: Final = 16
"""Characters that have to agree again behind it."""

_MERGED: Final = 8
"""Pieces that are nearer to each other are one."""


class Gap(NamedTuple):
    """`[start, end)` of one text stands where `[other_start, other_end)` of the other does."""

    start: int
    end: int
    other_start: int
    other_end: int


class Alignment(NamedTuple):
    """The gaps in order. `is_whole`: the texts agree after the last one to their ends."""

    gaps: tuple[Gap, ...]
    is_whole: bool


def align(text: str, other: str, *, max_gaps: int = 6) -> Alignment:
    """The pieces in which the two differ, none longer than `MAX_SPAN`, as far as such pieces explain the difference."""
    gaps: list[Gap] = []
    start = other_start = 0
    while True:
        same = common_head(text, other, start, other_start)
        start, other_start = start + same, other_start + same
        if start == len(text) and other_start == len(other):
            return Alignment(tuple(gaps), is_whole=True)
        if len(gaps) == max_gaps:
            return Alignment(tuple(gaps), is_whole=False)
        found = _agreement(text, other, start, other_start)
        if found is None:
            return Alignment(tuple(gaps), is_whole=False)
        gap = Gap(start, start + found[0], other_start, other_start + found[1])
        if gaps and gap.start - gaps[-1].end < _MERGED:
            gap = Gap(gaps[-1].start, gap.end, gaps[-1].other_start, gap.other_end)
            gaps.pop()
        gaps.append(gap)
        start, other_start = gap.end, gap.other_end


def common_head(text: str, other: str, start: int = 0, other_start: int = 0) -> int:
    """How many characters agree from `text[start]` and `other[other_start]` on."""
    low, high = 0, min(len(text) - start, len(other) - other_start)
    step = 64
    # Most texts agree for long or hardly at all: strides that double, then halving.
    while low < high:
        size = min(step, high - low)
        if text[start + low : start + low + size] == other[other_start + low : other_start + low + size]:
            low += size
            step *= 2
        elif size == 1:
            return low
        else:
            high = low + size - 1 if size > 1 else low
            step = max(1, size // 2)
    return low


def _agreement(text: str, other: str, start: int, other_start: int) -> tuple[int, int] | None:
    """The fewest characters to leave out of each so that the two agree for a while, or to their ends."""
    best: tuple[int, int] | None = None
    positions: dict[str, int] = {}
    for at in range(start, min(start + MAX_SPAN, len(text) - _AGREEMENT) + 1):
        positions.setdefault(text[at : at + _AGREEMENT], at - start)
    for skipped in range(min(MAX_SPAN, len(other) - _AGREEMENT - other_start) + 1):
        if best is not None and skipped >= sum(best):
            break
        at = other_start + skipped
        left_out = positions.get(other[at : at + _AGREEMENT])
        if left_out is not None and (best is None or left_out + skipped < sum(best)):
            best = (left_out, skipped)
    if best is not None:
        return best
    rest, other_rest = len(text) - start, len(other) - other_start
    if rest > MAX_SPAN + _AGREEMENT or other_rest > MAX_SPAN + _AGREEMENT:
        return None
    same = common_head(text[start:][::-1], other[other_start:][::-1])
    left_out, skipped = rest - same, other_rest - same
    return (left_out, skipped) if left_out <= MAX_SPAN and skipped <= MAX_SPAN else None
