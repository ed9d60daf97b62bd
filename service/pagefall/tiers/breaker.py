"""The circuit breaker before a store: after failures it is left alone for a while, then tried with one operation.

    closed ----- a timeout, or several errors one after the other -----> open
    open ------- its time is over, and someone begins ----------------> half_open: that one is the probe
    half_open -- the probe failed ------------------------------------> open, for twice as long
    half_open -- the probe succeeded ---------------------------------> closed

Time is passed in. An operation that began before the last change of state says nothing about the state after it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Literal

import msgspec

from pagefall.messages import BreakerState

FailureKind = Literal["timeout", "error"]
Operation = Literal["lookup", "read", "write"]


class Permit(msgspec.Struct, frozen=True):
    """Leave to begin one operation, whose end is told by `succeeded` or `failed`. A probe is a read."""

    period: int
    operation: Operation
    is_probe: bool


class CircuitBreaker:
    """`num_errors_to_open` errors in a row open it, one timeout does so alone. A miss is a success: the store answered.

    In a row means of one kind of operation: a store that finds every value and gives none is of no use. Errors of
    writes do not count: a store that takes nothing, full or read-only, may give what it has.

    It stays open for `open_seconds`, twice as long each time it opens again and at most `max_open_seconds`, times a
    random factor from 1/2 to 1 so that several servers do not come back to their store at once. A success while it is
    closed, of the kind that failed, makes the next time short again; that of a probe alone does not: the store may
    answer it and nothing else.
    """

    def __init__(
        self,
        *,
        num_errors_to_open: int = 3,
        open_seconds: float = 1.0,
        max_open_seconds: float = 30.0,
        random: Callable[[], float] = random.random,
    ) -> None:
        """`random` returns numbers from 0 to 1."""
        self.state: BreakerState = "closed"
        self._num_errors_to_open = num_errors_to_open
        self._open_seconds = open_seconds
        self._max_open_seconds = max_open_seconds
        self._random = random
        self._period = 0  # rises with every change of state
        self._num_errors = Counter[Operation]()  # in a row
        self._opened_by: Operation = "read"
        self._num_openings = 0  # in a row
        self._open_until = 0.0

    def begin(self, now: float, operation: Operation) -> Permit | None:
        """None: the store is to be left alone. At most one probe is under way at a time, in place of the operation."""
        if self.state == "open" and now >= self._open_until:
            self._enter("half_open")
            return Permit(self._period, "read", is_probe=True)
        return Permit(self._period, operation, is_probe=False) if self.state == "closed" else None

    def succeeded(self, permit: Permit) -> bool:
        """The store answered. True: that has closed the breaker."""
        if permit.period != self._period:
            return False
        if permit.is_probe:
            self._enter("closed")
            return True
        self._num_errors[permit.operation] = 0
        if permit.operation == self._opened_by:
            self._num_openings = 0
        return False

    def failed(self, permit: Permit, kind: FailureKind, now: float) -> bool:
        """It did not. True: that has opened the breaker, which was closed."""
        if permit.period != self._period:
            return False
        if not permit.is_probe and kind == "error":
            if permit.operation == "write":
                return False
            self._num_errors[permit.operation] += 1
            if self._num_errors[permit.operation] < self._num_errors_to_open:
                return False
        if not permit.is_probe:
            self._opened_by = permit.operation
        seconds = min(self._max_open_seconds, self._open_seconds * 2.0**self._num_openings)
        self._open_until = now + seconds * (1 + self._random()) / 2
        self._num_openings += 1
        self._enter("open")
        return not permit.is_probe

    def _enter(self, state: BreakerState) -> None:
        self.state = state
        self._period += 1
        self._num_errors.clear()
