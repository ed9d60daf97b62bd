"""When a file store looks at its folder again, because others may have written to it or deleted from it.

A rescan is due before anything is evicted, after a while, and after this process alone has written a good part of the
quota (others may have written as much, unseen). Rescans may take a twentieth of one thread's time, no more.
"""

from __future__ import annotations

from typing import Final

INTERVAL_SECONDS: Final = 60.0
_WRITTEN_SHARE: Final = 1 / 16
_TIME_SHARE: Final = 0.05


class RescanSchedule:
    """Pure: times are arguments, in seconds of one clock. The first scan ended `now` and took `seconds`."""

    def __init__(self, *, max_bytes: int | None, now: float, seconds: float, time_share: float = _TIME_SHARE) -> None:
        self._max_written_bytes = None if max_bytes is None else max_bytes * _WRITTEN_SHARE
        self._time_share = time_share
        self._ended_at = now
        self._num_written_bytes = 0
        self.seconds = seconds
        """How long the last one took."""

    def note_written(self, num_bytes: int) -> None:
        self._num_written_bytes += num_bytes

    def note_scanned(self, *, now: float, seconds: float) -> None:
        self._ended_at = now
        self._num_written_bytes = 0
        self.seconds = seconds

    def is_due(self, *, now: float, is_evicting: bool) -> bool:
        age = now - self._ended_at
        if age * self._time_share < self.seconds:
            return False
        written_enough = self._max_written_bytes is not None and self._num_written_bytes > self._max_written_bytes
        return is_evicting or written_enough or age > INTERVAL_SECONDS
