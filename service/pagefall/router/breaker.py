"""The circuit breaker before one worker: after failures in a row it is left alone for a while, then tried once.

    closed ----- `num_failures_to_open` failures in a row --------------> open
    open ------- its time is over, and a request begins ----------------> half_open: that request is the trial
    half_open -- the trial failed --------------------------------------> open, for twice as long
    half_open -- the trial was answered --------------------------------> closed
    half_open -- the trial ended otherwise (its client left) -----------> open, and over at once

Time is passed in. A request that began before the last change of state says nothing about the state after it. What
fails and what does not is said by whoever forwards: a 4xx is an answer.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pagefall.messages import BreakerState

_MAX_OPEN_SECONDS: Final = 60.0


class Permit(msgspec.Struct, frozen=True):
    """Leave to send one request; its end is told by `succeeded`, `failed` or `withdrawn`."""

    period: int


class WorkerBreaker:
    def __init__(self, *, num_failures_to_open: int, open_seconds: float) -> None:
        self.state: BreakerState = "closed"
        self.num_openings = 0
        """How often it opened, ever."""
        self._num_failures_to_open = num_failures_to_open
        self._open_seconds = open_seconds
        self._period = 0  # rises with every change of state
        self._num_failures = 0  # in a row
        self._num_openings_in_a_row = 0
        self._open_until = 0.0

    def allows(self, now: float) -> bool:
        """Whether a request may be sent: not while it is open, nor while its one trial is under way."""
        return self.state == "closed" or (self.state == "open" and now >= self._open_until)

    def begin(self, now: float) -> Permit:
        """For a request that is sent, allowed or not: where nobody else is left, even a failing worker is asked."""
        if self.state == "open" and now >= self._open_until:
            self._enter("half_open")
        return Permit(self._period)

    def succeeded(self, permit: Permit) -> None:
        """The worker answered."""
        if permit.period != self._period:
            return
        self._num_failures = 0
        if self.state != "closed":
            self._num_openings_in_a_row = 0
            self._enter("closed")

    def failed(self, permit: Permit, now: float) -> bool:
        """It did not. True: that has opened the breaker."""
        if permit.period != self._period:
            return False
        self._num_failures += 1
        if self.state == "open" or (self.state == "closed" and self._num_failures < self._num_failures_to_open):
            return False
        seconds = min(_MAX_OPEN_SECONDS, self._open_seconds * 2.0**self._num_openings_in_a_row)
        self._open_until = now + seconds
        self._num_openings_in_a_row += 1
        self.num_openings += 1
        self._enter("open")
        return True

    def withdrawn(self, permit: Permit) -> None:
        """The request ended before anything was learnt of the worker."""
        if permit.period == self._period and self.state == "half_open":
            self._enter("open")

    def reset(self) -> None:
        """Another process may be behind the address now."""
        self._num_openings_in_a_row = 0
        self._enter("closed")

    def _enter(self, state: BreakerState) -> None:
        self.state = state
        self._period += 1
        self._num_failures = 0
