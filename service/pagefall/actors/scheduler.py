"""The scheduler: the only one that writes the queue, the running requests and the prefix cache.

One turn of its loop: take all waiting messages, plan a step, run it, apply the result, publish what it made. While a
step is under way only what touches none of its pages is dealt with: new requests, and reports of transfers, which so
lead to the next transfer without waiting for the step. The rest (a client is gone: its pages must not be freed under
the forward that writes them) waits until the step is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from pagefall.actors.base import Actor
from pagefall.actors.kv_log import KvEventLog
from pagefall.actors.mailbox import Address, Mailbox
from pagefall.cache.errors import ConservationError
from pagefall.kv_events import page_names
from pagefall.messages import (
    AttachStorage,
    CacheDescribed,
    Cancel,
    DescribeCache,
    DetachStorage,
    FlushCache,
    FromScheduler,
    KeysSnapshot,
    SchedulerStats,
    SnapshotKeys,
    StepOutput,
    StepPlan,
    StepResult,
    Submit,
    ToController,
    ToScheduler,
)
from pagefall.scheduling import intake, reports, survey
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
        controller: Address[ToController] | None = None,
        kv_log: KvEventLog | None = None,
        idle_check_seconds: float = 5.0,
    ) -> None:
        """`clock` returns seconds and never goes back. `controller` executes transfers, where there are lower tiers.

        `kv_log` is told what enters and leaves the tiers. After `idle_check_seconds` without work the cache is
        recounted, once until there was work again.
        """
        super().__init__(mailbox)
        self._state = state
        self._runner = runner
        self._output = output
        self._controller = controller
        self._kv_log = kv_log
        self._clock = clock
        self._idle_check_seconds = idle_check_seconds
        self._deferred: list[ToScheduler] = []
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._stats = state.stats()

    def stats(self) -> SchedulerStats:
        """The latest snapshot."""
        return self._stats

    async def wait_until_quiet(self) -> None:
        """Returns once no transfer between tiers is under way or waits. Requests may start new ones."""
        await self._quiet.wait()

    async def _run(self) -> None:
        while not (self._mailbox.is_exhausted and not self._deferred and self._state.is_idle):
            if self._state.is_idle and not self._deferred:
                await self._wait_for_work()
            messages = self._deferred + self._mailbox.take_all()
            self._deferred = []
            for message in messages:
                await self._receive(message)
            self._publish()
            if not self._state.is_idle:
                await self._step()

    async def _receive(self, message: ToScheduler) -> None:
        now = self._clock()
        reply: FromScheduler | None
        match message:
            case Submit():
                reply = intake.submit(self._state, message, now=now)
            case Cancel():
                last = intake.cancel(self._state, message, now=now)
                reply = None if last is None else StepOutput(outputs=(last,))
            case FlushCache():
                reply = reports.flush(self._state, message, now=now)
            case DescribeCache():
                described = self._state.cache.describe(max_branches=message.max_branches, now=now)
                reply = CacheDescribed(query_id=message.query_id, **described._asdict())
            case SnapshotKeys():
                reply = self._snapshot(message)
            case AttachStorage() | DetachStorage():
                reports.change_storage(self._state, message)
                reply = None
            case _:
                reply = reports.receive(self._state, message, now=now)
        self._send_transfers()
        if reply is not None:
            await self._output.send(reply)

    async def _step(self) -> None:
        counters = self._state.counters
        start = self._clock()
        plan = plan_step(self._state, step=counters.num_steps, now=start)
        self._send_transfers()
        if not plan.sequences:
            await self._wait_for_pages()
            return
        planned = self._clock()
        result = await self._run_step(plan)
        computed = self._clock()
        output = apply_result(self._state, plan, result, now=computed)
        self._send_transfers()
        counters.plan_seconds += planned - start + self._clock() - computed
        self._publish()
        if output.outputs:
            await self._output.send(output)

    async def _run_step(self, plan: StepPlan) -> StepResult:
        """The step's result. Meanwhile what touches none of its pages is received, the rest is deferred."""
        step = asyncio.ensure_future(self._runner.step(plan))
        news: asyncio.Future[None] | None = None
        try:
            while not step.done() and not self._mailbox.is_exhausted:
                news = asyncio.ensure_future(self._mailbox.wait())
                await asyncio.wait((step, news), return_when=asyncio.FIRST_COMPLETED)
                if news.done():
                    for message in self._mailbox.take_all():
                        if isinstance(message, Cancel | FlushCache):
                            self._deferred.append(message)
                        else:
                            await self._receive(message)
                news.cancel()
            return await step
        finally:
            if news is not None:
                news.cancel()
            step.cancel()

    async def _wait_for_pages(self) -> None:
        """All that could run stands back for pages from lower tiers."""
        tiers, wake_at = self._state.tiers, self._state.wake_at
        if wake_at is None and (tiers is None or tiers.is_quiet):
            raise RuntimeError(f"{self._stats.num_queued} requests wait, none runs, and none can start")
        if wake_at is None and self._mailbox.is_exhausted:
            raise RuntimeError("pages are on their way, but no report of them can come any more")
        with suppress(TimeoutError):
            async with asyncio.timeout(None if wake_at is None else max(0.0, wake_at - self._clock())):
                await self._mailbox.wait()

    async def _wait_for_work(self) -> None:
        try:
            async with asyncio.timeout(self._idle_check_seconds):
                await self._mailbox.wait()
        except TimeoutError:
            self._recount()
            await self._mailbox.wait()

    def _send_transfers(self) -> None:
        """What was decided about other tiers goes out at once; the controller's mailbox has room for all of it."""
        tiers = self._state.tiers
        if tiers is None:
            return
        if tiers.outbox and self._controller is not None:
            outbox, tiers.outbox = tiers.outbox, []
            for message in outbox:
                if not self._controller.try_send(message):
                    raise RuntimeError("the cache controller's mailbox is full, which its capacity rules out")
        if tiers.is_quiet:
            self._quiet.set()
        else:
            self._quiet.clear()

    def _publish(self) -> None:
        survey.absorb(self._state, None, now=self._clock())
        changes, self._state.changes = self._state.changes, []
        if self._kv_log is not None:
            self._kv_log.publish(changes)
        self._stats = self._state.stats()

    def _snapshot(self, message: SnapshotKeys) -> KeysSnapshot:
        self._publish()  # what the snapshot shows is published then, and nothing beyond
        keys = self._state.cache.keys()
        return KeysSnapshot(
            query_id=message.query_id,
            number=0 if self._kv_log is None else self._kv_log.number,
            device=page_names(keys.device),
            host=page_names(keys.host),
            storage=page_names(keys.storage),
        )

    def _recount(self) -> None:
        """A wrong count is a bug, but one the service can live with for a while: it is made visible, not fatal."""
        try:
            self._state.cache.check()
        except ConservationError as error:
            _log.error("page conservation is broken: %s", error)
            self._state.counters.num_conservation_breaches += 1
            self._publish()
