"""The waiting requests, in order of priority, then arrival."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, islice

from pagefall.messages import RequestId
from pagefall.scheduling.request import Waiting


class WaitingQueue:
    """Every operation is O(1) in the number of requests; only the number of *different* priorities counts."""

    def __init__(self) -> None:
        self._priorities: dict[RequestId, int] = {}
        self._levels: dict[int, OrderedDict[RequestId, Waiting]] = {}
        self._order: list[int] = []  # the keys of `_levels`, negated and ascending: the highest priority first

    def __len__(self) -> int:
        return len(self._priorities)

    def push(self, waiting: Waiting) -> None:
        """Behind all others of its priority."""
        self._level_for(waiting)[waiting.request.request_id] = waiting

    def push_front(self, waiting: Waiting) -> None:
        """Before all others of its priority."""
        self.push(waiting)
        self._levels[waiting.request.submit.priority].move_to_end(waiting.request.request_id, last=False)

    def get(self, request_id: RequestId) -> Waiting | None:
        priority = self._priorities.get(request_id)
        return None if priority is None else self._levels[priority][request_id]

    def remove(self, request_id: RequestId) -> Waiting | None:
        """Takes the request out; None if it is not in."""
        priority = self._priorities.pop(request_id, None)
        if priority is None:
            return None
        level = self._levels[priority]
        waiting = level.pop(request_id)
        if not level:
            del self._levels[priority]
            self._order.remove(-priority)
        return waiting

    def first(self, count: int) -> list[Waiting]:
        """The first `count` requests in order."""
        return list(islice(self.in_order(), count))

    def in_order(self) -> Iterator[Waiting]:
        """All of them; the queue stays as it is meanwhile."""
        return chain.from_iterable(self._levels[-key].values() for key in self._order)

    def _level_for(self, waiting: Waiting) -> OrderedDict[RequestId, Waiting]:
        priority = waiting.request.submit.priority
        self._priorities[waiting.request.request_id] = priority
        if priority not in self._levels:
            self._levels[priority] = OrderedDict()
            bisect.insort(self._order, -priority)
        return self._levels[priority]
