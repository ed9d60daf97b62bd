"""How long to wait before the next try."""

from __future__ import annotations

import random


class Backoff:
    """Doubles from `first_seconds` to `most_seconds`; each wait is drawn between half of it and all of it, so that many
    who lost the same server do not come back at once.
    """

    def __init__(self, first_seconds: float, most_seconds: float, rng: random.Random) -> None:
        self._first_seconds = first_seconds
        self._most_seconds = most_seconds
        self._rng = rng
        self._seconds = first_seconds

    def next_seconds(self) -> float:
        seconds, self._seconds = self._seconds, min(self._seconds * 2, self._most_seconds)
        return seconds * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._seconds = self._first_seconds
