from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest
from tests.fake_model import FakeModel
from tests.scheduling_driver import prompt, submit_message

from pagefall.actors.base import ActorCrash
from pagefall.actors.mailbox import Mailbox
from pagefall.actors.scheduler import Scheduler
from pagefall.config import CacheConfig, SchedulerConfig
from pagefall.messages import (
    Accepted,
    CacheFlushed,
    Cancel,
    FlushCache,
    FromScheduler,
    Rejected,
    RequestId,
    StepOutput,
    StepPlan,
    StepResult,
    ToScheduler,
)
from pagefall.scheduling.state import SchedulerState

pytestmark = pytest.mark.anyio


class GatedRunner:
    """A step ends when the gate is open. `started` counts steps."""

    def __init__(self) -> None:
        self.model = FakeModel(num_pages=64, page_size=4)
        self.gate = asyncio.Event()
        self.gate.set()
        self.num_started = 0

    async def step(self, plan: StepPlan) -> StepResult:
        self.num_started += 1
        await asyncio.sleep(0)
        await self.gate.wait()
        return self.model.step(plan)


class World:
    """A scheduler between the mailboxes that a test reads and writes."""

    def __init__(self, *, max_queued_requests: int = 8, idle_check_seconds: float = 60.0) -> None:
        self.to_scheduler = Mailbox[ToScheduler](100)
        self.output = Mailbox[FromScheduler](100)
        self.runner = GatedRunner()
        self.state = SchedulerState(
            scheduler=SchedulerConfig(max_running_requests=2, max_queued_requests=max_queued_requests),
            cache=CacheConfig(),
            page_size=4,
            num_pages=64,
            namespace=b"",
        )
        self.clock = itertools.count()
        self.scheduler = Scheduler(
            self.to_scheduler,
            self.output.address,
            self.runner,
            self.state,
            clock=lambda: float(next(self.clock)),
            idle_check_seconds=idle_check_seconds,
        )

    def send(self, *messages: ToScheduler) -> None:
        for message in messages:
            assert self.to_scheduler.address.try_send(message)

    def submit(self, name: str, token_ids: Sequence[int], *, max_tokens: int = 4) -> None:
        self.send(submit_message(name, token_ids, max_tokens=max_tokens))

    def cancel(self, name: str) -> None:
        self.send(Cancel(request_id=RequestId(name), reason="abort"))

    async def heard(self) -> list[FromScheduler]:
        """Everything that comes until the scheduler is quiet."""
        messages: list[FromScheduler] = []
        for _ in range(200):
            await asyncio.sleep(0)
            messages += self.output.take_all()
        return messages


@asynccontextmanager
async def running(world: World) -> AsyncIterator[World]:
    task = asyncio.create_task(world.scheduler.run())
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def answers(messages: Sequence[FromScheduler]) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    for message in messages:
        if isinstance(message, StepOutput):
            for output in message.outputs:
                tokens.setdefault(output.request_id, []).extend(output.token_ids)
    return tokens


async def test_a_request_is_accepted_answered_and_ended() -> None:
    async with running(World()) as world:
        world.submit("a", [1, 2, 3])
        messages = await world.heard()
        assert messages[0] == Accepted(request_id=RequestId("a"))
        assert answers(messages) == {"a": world.runner.model.answer_alone([1, 2, 3], 4)}


async def test_all_that_a_step_made_comes_in_one_message() -> None:
    async with running(World()) as world:
        world.submit("a", prompt(0, 5))
        world.submit("b", prompt(1, 5))
        outputs = [message for message in await world.heard() if isinstance(message, StepOutput)]
        assert [[output.request_id for output in message.outputs] for message in outputs] == [["a", "b"]] * 4


async def test_past_the_limit_a_request_is_rejected_with_the_length_of_the_queue() -> None:
    world = World(max_queued_requests=1)
    for name in "abcd":
        world.submit(name, [1])
    async with running(world):
        assert Rejected(request_id=RequestId("d"), num_queued=3) in await world.heard()


async def test_a_cancel_during_a_step_frees_no_page_before_the_step_is_over() -> None:
    async with running(World()) as world:
        world.runner.gate.clear()
        world.submit("a", prompt(0, 10), max_tokens=40)
        await world.heard()
        leased = world.state.stats().device_pages.leased
        assert leased == 3
        world.cancel("a")
        await world.heard()
        assert world.state.stats().device_pages.leased == leased
        world.runner.gate.set()
        messages = await world.heard()
        stats = world.scheduler.stats()
        assert (stats.num_running, stats.device_pages.leased, stats.device_pages.pinned) == (0, 0, 0)
        assert world.runner.num_started == 1, "it ended within one step"
        last = messages[-1]
        assert isinstance(last, StepOutput)
        assert last.outputs[0].finish_reason == "abort"


async def test_a_cancel_of_what_has_ended_is_answered_by_silence() -> None:
    async with running(World()) as world:
        world.submit("a", [1], max_tokens=1)
        await world.heard()
        world.cancel("a")
        assert await world.heard() == []


async def test_the_cache_is_flushed_between_steps() -> None:
    async with running(World()) as world:
        world.submit("a", prompt(0, 12), max_tokens=1)
        await world.heard()
        world.send(FlushCache(flush_id=7))
        assert await world.heard() == [CacheFlushed(flush_id=7, num_pages={"device": 3, "host": 0})]
        assert world.scheduler.stats().device_pages.free == 64


async def test_closing_the_mailbox_lets_everything_accepted_come_to_its_end() -> None:
    world = World()
    for index in range(5):
        world.submit(str(index), prompt(index, 5))
    world.scheduler.close()
    await world.scheduler.run()
    assert answers(world.output.take_all()) == {
        str(index): world.runner.model.answer_alone(prompt(index, 5), 4) for index in range(5)
    }


async def test_an_idle_scheduler_ends_when_its_mailbox_is_closed() -> None:
    world = World()
    task = asyncio.create_task(world.scheduler.run())
    await world.heard()
    world.scheduler.close()
    await task


async def test_a_full_output_mailbox_holds_the_scheduler_and_loses_nothing() -> None:
    world = World()
    world.output = Mailbox[FromScheduler](1)
    world.scheduler = Scheduler(world.to_scheduler, world.output.address, world.runner, world.state, clock=lambda: 0.0)
    world.submit("a", [1, 2, 3], max_tokens=6)
    async with running(world):
        for _ in range(100):
            await asyncio.sleep(0)
        assert world.runner.num_started <= 2
        assert answers(await world.heard()) == {"a": world.runner.model.answer_alone([1, 2, 3], 6)}


async def test_a_model_that_fails_is_a_crash() -> None:
    world = World()

    async def broken(plan: StepPlan) -> StepResult:
        raise ArithmeticError("nan")

    world.runner.step = broken  # type: ignore[method-assign]
    world.submit("a", [1])
    with pytest.raises(ActorCrash, match="Scheduler crashed: ArithmeticError: nan"):
        await world.scheduler.run()


async def test_an_idle_scheduler_recounts_its_pages_and_makes_a_breach_known(caplog: pytest.LogCaptureFixture) -> None:
    async with running(World(idle_check_seconds=0.001)) as world:
        await asyncio.sleep(0.01)
        assert world.scheduler.stats().num_conservation_breaches == 0
        world.submit("a", [1, 2, 3, 4, 5], max_tokens=1)
        await world.heard()
        world.state.cache._pool.free(np.array([world.state.cache._pool.allocate(1)[0]]))  # type: ignore[index]
        world.state.cache._num_leased += 1
        world.submit("b", [1], max_tokens=1)
        await world.heard()
        await asyncio.sleep(0.01)
        assert world.scheduler.stats().num_conservation_breaches == 1
        assert "page conservation is broken" in caplog.text


async def test_planning_is_timed_by_the_clock_that_was_given() -> None:
    async with running(World()) as world:
        world.submit("a", [1, 2, 3])
        await world.heard()
        stats = world.scheduler.stats()
        # One tick between the two readings around planning, one around applying, in each of four steps.
        assert (stats.num_steps, stats.plan_seconds, stats.forward_seconds) == (4, 8.0, 1.0)
