"""The task that takes the samples of a `TrafficSeries`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from pagefall.insight.series import TrafficSeries
from pagefall.messages import ControllerStats, SchedulerStats


@asynccontextmanager
async def sampling(
    series: TrafficSeries, stats: Callable[[], SchedulerStats], controller_stats: Callable[[], ControllerStats | None]
) -> AsyncIterator[None]:
    """Takes one at once, and one each `series.interval_seconds` until it is left."""

    async def sample_for_ever() -> None:
        while True:
            series.sample(stats(), controller_stats())
            await asyncio.sleep(series.interval_seconds)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(sample_for_ever(), name="samples")
        try:
            yield
        finally:
            task.cancel()
