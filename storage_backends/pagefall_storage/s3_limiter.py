"""How many requests may be under way: fewer once the store asks for fewer, more again while it serves them."""

from __future__ import annotations

from typing import Literal, NewType

Answer = Literal["served", "slow_down", "failed"]
Ticket = NewType("Ticket", int)


class Limiter:
    """Additive increase, multiplicative decrease, as TCP does it. Pure; not for several threads.

    A refusal halves the limit; as many served requests as the limit is make it greater by one. Requests under way when
    the limit was halved do not halve it again, as they were sent before the store could see any difference.
    """

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._limit = float(max_requests)
        self._num_under_way = 0
        self._num_decreases = 0

    @property
    def limit(self) -> int:
        return int(self._limit)

    def has_room(self) -> bool:
        return self._num_under_way < self.limit

    def begin(self) -> Ticket:
        """For each request; `end` takes what this returns."""
        self._num_under_way += 1
        return Ticket(self._num_decreases)

    def end(self, ticket: Ticket, answer: Answer) -> None:
        self._num_under_way -= 1
        if answer == "served":
            self._limit = min(float(self._max_requests), self._limit + 1 / self._limit)
        elif answer == "slow_down" and ticket == self._num_decreases:
            self._limit = max(1.0, self._limit / 2)
            self._num_decreases += 1
