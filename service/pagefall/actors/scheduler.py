"""The scheduler: the only one that writes the queue, the running requests and the prefix cache.

One turn of its loop: take all waiting messages, plan a step, run it, apply the result, publish what it made. Nothing
else happens to its state while it awaits something, so whatever arrives during a step (a client is gone: its pages
must not be freed under the forward that writes them) is dealt with after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, assert_never

from pagefall.actors.base import Actor
from pagefall.actors.mailbox import Address, Mailbox
from pagefall.cache.errors import ConservationError
from pagefall.messages import (
    CacheFlushed,
    Cancel,
    FlushCache,
    FromScheduler,
    SchedulerStats,
    StepOutput,
    StepPlan,
    StepResult,
    Submit,
    ToScheduler,
)
from pagefall.scheduling import intake
from pagefall.scheduling.apply import apply_result
from pagefall.scheduling.plan import plan_step
from pagefall.scheduling.state import SchedulerState

_log = logging.getLogger("pagefall.scheduler")


class Runner(Protocol):
    async def step(self, plan: StepPlan) -> StepResult: ...


class Scheduler(Actor[ToScheduler]):
    def __init__(
        self,
        mailbox: Mailbox[ToScheduler],
        output: Address[FromScheduler],
        runner: Runner,
        state: SchedulerState,
        *,
        clock: Callable[[], float],
        idle_check_seconds: float = 5.0,
    ) -> None:
        """`clock` returns seconds and never goes back. After `idle_check_seconds` without work the cache is recounted,
        once until there was work again.
        """
        super().__init__(mailbox)
        self._state = state
        self._runner = runner
        self._output = output
        self._clock = clock
        self._idle_check_seconds = idle_check_seconds
        self._stats = state.stats()

    def stats(self) -> SchedulerStats:
        """The latest snapshot."""
        return self._stats

    async def _run(self) -> None:
        while not (self._mailbox.is_exhausted and self._state.is_idle):
            if self._state.is_idle:
                await self._wait_for_work()
            replies = [self._receive(message) for message in self._mailbox.take_all()]
            for reply in replies:
                if reply is not None:
                    await self._output.send(reply)
            self._stats = self._state.stats()
            if not self._state.is_idle:
                await self._step()

    def _receive(self, message: ToScheduler) -> FromScheduler | None:
        match message:
            case Submit():
                return intake.submit(self._state, message)
            case Cancel():
                last = intake.cancel(self._state, message, now=self._clock())
                return None if last is None else StepOutput(outputs=(last,))
            case FlushCache():
                num_pages = self._state.cache.flush(self._clock())
                return CacheFlushed(flush_id=message.flush_id, num_pages=num_pages)
            case _:
                assert_never(message)

    async def _step(self) -> None:
        counters = self._state.counters
        start = self._clock()
        plan = plan_step(self._state, step=counters.num_steps, now=start)
        if not plan.sequences:
            raise RuntimeError(f"{self._stats.num_queued} requests wait, none runs, and none can start")
        planned = self._clock()
        result = await self._runner.step(plan)
        computed = self._clock()
        output = apply_result(self._state, plan, result, now=computed)
        counters.plan_seconds += planned - start + self._clock() - computed
        self._stats = self._state.stats()
        if output.outputs:
            await self._output.send(output)

    async def _wait_for_work(self) -> None:
        try:
            async with asyncio.timeout(self._idle_check_seconds):
                await self._mailbox.wait()
        except TimeoutError:
            self._recount()
            await self._mailbox.wait()

    def _recount(self) -> None:
        """A wrong count is a bug, but one the service can live with for a while: it is made visible, not fatal."""
        try:
            self._state.cache.check()
        except ConservationError as error:
            _log.error("page conservation is broken: %s", error)
            self._state.counters.num_conservation_breaches += 1
            self._stats = self._state.stats()
