"""Consistent hashing with bounded load (Mirrokni, Thorup and Zadimoghaddam, 2018)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import xxhash

from pagefall.router.routing import WorkerId

_NUM_POINTS: Final = 160
"""A worker's points on the ring. With so many the shares of equal workers differ by about 8 %."""


class HashRing:
    """A worker that leaves moves only its own share of the keys, to the ones that come next on the ring."""

    def __init__(self, worker_ids: Sequence[WorkerId]) -> None:
        points = sorted((point, worker_id) for worker_id in worker_ids for point in _points(worker_id))
        self._points = [point for point, _ in points]
        self._worker_ids = [worker_id for _, worker_id in points]

    def order(self, key: str) -> Iterator[WorkerId]:
        """Every worker once, the key's own first, then who would have it if those before were not there."""
        start = bisect_left(self._points, _hash(key))
        seen: set[WorkerId] = set()
        for worker_id in self._worker_ids[start:] + self._worker_ids[:start]:
            if worker_id not in seen:
                seen.add(worker_id)
                yield worker_id


@lru_cache(maxsize=1024)
def _points(worker_id: WorkerId) -> tuple[int, ...]:
    return tuple(_hash(f"{worker_id}#{number}") for number in range(_NUM_POINTS))


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
