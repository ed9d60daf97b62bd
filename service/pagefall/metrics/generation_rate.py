"""How many tokens are generated in a second, for whoever looks at one moment and not at a counter's past."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pagefall.insight.records import RefusalReason, RequestRecord

_NUM_BUCKETS: Final = 20


@dataclass(slots=True)
class _Bucket:
    """Tokens of one part of the window, the `number`-th since the clock's zero."""

    number: int = -1
    num_tokens: int = 0


class GenerationRate:
    """A `TrafficObserver`: a ring of buckets over the last seconds. It falls to zero when nothing is generated."""

    def __init__(self, *, clock: Callable[[], float], window_seconds: float = 10.0) -> None:
        """`clock` returns seconds, and never goes back."""
        self._clock = clock
        self._bucket_seconds = window_seconds / _NUM_BUCKETS
        self._ring = [_Bucket() for _ in range(_NUM_BUCKETS + 1)]
        self._began_at = clock()

    def progressed(self, record: RequestRecord, num_tokens: int, gap_seconds: float | None) -> None:
        number = int(self._clock() / self._bucket_seconds)
        bucket = self._ring[number % len(self._ring)]
        if bucket.number != number:
            bucket.number, bucket.num_tokens = number, 0
        bucket.num_tokens += num_tokens

    def refused(self, reason: RefusalReason) -> None:
        """It generates nothing."""

    def accepted(self, record: RequestRecord) -> None:
        """It has generated nothing yet."""

    def settled(self, record: RequestRecord) -> None:
        """The prompt does not matter."""

    def ended(self, record: RequestRecord) -> None:
        """Its tokens are counted."""

    def tokens_per_second(self) -> float:
        """Over the window and the bucket under way, or since the beginning if that is shorter."""
        now = self._clock()
        number = int(now / self._bucket_seconds)
        since = max((number - _NUM_BUCKETS) * self._bucket_seconds, self._began_at)
        num_tokens = sum(bucket.num_tokens for bucket in self._ring if bucket.number >= number - _NUM_BUCKETS)
        # The first moments are no base for a rate.
        return num_tokens / max(now - since, self._bucket_seconds)
