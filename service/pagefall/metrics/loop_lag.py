"""How late the event loop wakes up: what every request has to wait for when something holds the loop up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pagefall.metrics import families
from pagefall.metrics.histogram import Histogram

_SLEEP_SECONDS: Final = 0.1
"""Ten wake-ups a second cost nothing, and a stall of half a second is still seen by one of them nearly whole."""

# A healthy loop is a millisecond or two late. From 20 ms on tokens are noticeably late, seconds are a bug.
_BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class LoopLag(Collector):
    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.lag_seconds = Histogram(_BOUNDS)
        self._clock = clock
        self._sleep = sleep

    @asynccontextmanager
    async def sampled(self) -> AsyncIterator[None]:
        """Until the block ends, a task on the loop asks for a moment of sleep again and again."""
        async with asyncio.TaskGroup() as tasks:
            sampling = tasks.create_task(self._sample(), name="event-loop lag")
            try:
                yield
            finally:
                sampling.cancel()

    def collect(self) -> Iterator[Metric]:
        yield families.histogram("event_loop_lag_seconds", "How late the event loop wakes up", self.lag_seconds)

    async def _sample(self) -> None:
        while True:
            asked_at = self._clock()
            await self._sleep(_SLEEP_SECONDS)
            self.lag_seconds.observe(max(0.0, self._clock() - asked_at - _SLEEP_SECONDS))
