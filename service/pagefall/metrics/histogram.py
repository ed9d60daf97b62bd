"""A histogram that costs well under a microsecond a value: it is told of every token, on the loop's thread."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """Belongs to one thread: unlike the library's own it takes no lock, and finds a value's bucket by bisection."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the buckets' upper ends, rising; each belongs to its bucket. One without an end follows them."""
        self._bounds = tuple(map(float, bounds))
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        return sum(self._counts)

    def observe(self, value: float, count: int = 1) -> None:
        """`value`, `count` times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self.sum += value * count

    def cumulative(self) -> list[tuple[str, float]]:
        """Each bucket's end as Prometheus writes it, and how many values are no greater."""
        ends = [*map(str, self._bounds), "+Inf"]
        return list(zip(ends, accumulate(map(float, self._counts)), strict=True))
