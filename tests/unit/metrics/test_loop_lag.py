from __future__ import annotations

import asyncio

import pytest

from pagefall.metrics.loop_lag import LoopLag

pytestmark = pytest.mark.anyio


class Loop:
    """A loop whose sleeps last as long as they are told, and then end with the samples."""

    def __init__(self, *lags: float) -> None:
        self.now = 100.0
        self.lags = list(lags)
        self.all_slept = asyncio.Event()

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        if not self.lags:
            self.all_slept.set()
            await asyncio.Event().wait()
        self.now += seconds + self.lags.pop(0)


async def test_what_a_wake_up_is_late_is_what_is_counted() -> None:
    loop = Loop(0.0, 0.03, 7.0)
    lag = LoopLag(clock=loop.clock, sleep=loop.sleep)
    async with lag.sampled():
        await loop.all_slept.wait()
    counts = dict(lag.lag_seconds.cumulative())
    assert (counts["0.001"], counts["0.02"], counts["0.05"], counts["5.0"], counts["+Inf"]) == (1, 1, 2, 2, 3)
    assert lag.lag_seconds.sum == pytest.approx(7.03)


async def test_a_loop_that_is_early_is_not_late() -> None:
    loop = Loop(-0.01)
    lag = LoopLag(clock=loop.clock, sleep=loop.sleep)
    async with lag.sampled():
        await loop.all_slept.wait()
    assert (lag.lag_seconds.count, lag.lag_seconds.sum) == (1, 0.0)


async def test_no_sample_is_taken_once_it_is_left() -> None:
    before = asyncio.all_tasks()
    async with LoopLag().sampled():
        assert len(asyncio.all_tasks()) == len(before) + 1
    assert asyncio.all_tasks() == before


async def test_what_fails_inside_is_raised_and_ends_the_sampling() -> None:
    before = asyncio.all_tasks()
    with pytest.raises(ExceptionGroup) as failures:
        async with LoopLag().sampled():
            raise ValueError("inside")
    assert failures.group_contains(ValueError, match="inside")
    assert asyncio.all_tasks() == before
