"""Text of which the end may be the beginning of a marker."""

from __future__ import annotations

from collections.abc import Sequence


def find_first(text: str, markers: Sequence[str], start: int = 0) -> tuple[int, str] | None:
    """The marker that begins first, and where; of those that begin there the longest."""
    found = [(at, -len(marker), marker) for marker in markers if (at := text.find(marker, start)) >= 0]
    if not found:
        return None
    at, _, marker = min(found)
    return at, marker


def safe_length(text: str, markers: Sequence[str]) -> int:
    """How much of `text`, in which no marker is, can be told now: the rest could become a marker, or is the white space
    before one.
    """
    end = len(text) - max((_overlap(text, marker) for marker in markers), default=0)
    return len(text[:end].rstrip())


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `marker`."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
