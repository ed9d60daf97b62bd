"""What the scheduler does about transfers while a step is under way, and when it must not wait for one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.fake_model import FakeModel
from tests.scheduling_driver import prompt, submit_message

from pagefall.actors.base import ActorCrash
from pagefall.actors.mailbox import Mailbox
from pagefall.actors.scheduler import Scheduler
from pagefall.config import CacheConfig, SchedulerConfig, TierConfig
from pagefall.messages import (
    AttachStorage,
    BackedUp,
    Backup,
    CacheFlushed,
    Cancel,
    CopyDone,
    DetachStorage,
    FlushCache,
    FromScheduler,
    LookedUp,
    Lookup,
    Offload,
    RequestId,
    StepOutput,
    StepPlan,
    StepResult,
    StopFetch,
    StorageChanged,
    ToController,
    ToScheduler,
    TransferId,
)
from pagefall.scheduling.state import SchedulerState

pytestmark = pytest.mark.anyio

PROMPT = prompt(0, 13)  # three pages of four, and the token that is always computed


class HeldRunner:
    """A step ends when the test says so."""

    def __init__(self) -> None:
        self.model = FakeModel(num_pages=64, page_size=4)
        self.under_way: asyncio.Future[None] | None = None

    async def step(self, plan: StepPlan) -> StepResult:
        self.under_way = asyncio.get_running_loop().create_future()
        await self.under_way
        return self.model.step(plan)


class World:
    """A scheduler between three mailboxes, whose other ends are the test's."""

    def __init__(self, *, controller_capacity: int = 100, threshold: int = 100) -> None:
        self.to_scheduler = Mailbox[ToScheduler](100)
        self.output = Mailbox[FromScheduler](100)
        self.to_controller = Mailbox[ToController](controller_capacity)
        self.runner = HeldRunner()
        self.now = 0.0
        self.state = SchedulerState(
            scheduler=SchedulerConfig(max_running_requests=2, chunked_prefill_size=16),
            cache=CacheConfig(),
            page_size=4,
            num_pages=64,
            namespace=b"",
            tiers=TierConfig(
                enable_hierarchical_cache=True,
                hicache_storage_backend="memory",
                hicache_prefetch_threshold=threshold,
                hicache_storage_prefetch_policy="wait_complete",
            ),
            num_host_pages=64,
            page_bytes=1000,
        )
        self.scheduler = Scheduler(
            self.to_scheduler,
            self.output.address,
            self.runner,
            self.state,
            clock=lambda: self.now,
            controller=self.to_controller.address,
        )

    async def send(self, *messages: ToScheduler) -> None:
        for message in messages:
            assert self.to_scheduler.address.try_send(message)
        await self.settle()

    async def end_step(self) -> None:
        assert self.runner.under_way is not None
        self.runner.under_way.set_result(None)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    @property
    def is_stepping(self) -> bool:
        return self.runner.under_way is not None and not self.runner.under_way.done()

    async def begin_second_step(self) -> Offload:
        """The prompt is computed, its offload under way, and its answer's second token is being computed."""
        await self.send(submit_message("a", PROMPT, max_tokens=50))
        await self.end_step()
        assert self.is_stepping
        (offload,) = self.to_controller.take_all()
        assert isinstance(offload, Offload)
        self.output.take_all()
        return offload


@asynccontextmanager
async def running(world: World) -> AsyncIterator[World]:
    task = asyncio.create_task(world.scheduler.run())
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def copied(transfer_id: TransferId) -> CopyDone:
    return CopyDone(transfer_id=transfer_id, seconds=0.1)


async def test_a_report_during_a_step_leads_to_the_next_transfer_at_once() -> None:
    async with running(World()) as world:
        offload = await world.begin_second_step()
        await world.send(copied(offload.transfer_id))
        assert world.is_stepping
        (backup,) = world.to_controller.take_all()
        assert isinstance(backup, Backup)
        assert (backup.host_page_ids == offload.host_page_ids).all()


async def test_a_request_that_comes_during_a_step_has_the_store_asked_at_once() -> None:
    async with running(World(threshold=8)) as world:
        await world.send(submit_message("a", prompt(1, 7)))
        assert world.is_stepping
        await world.send(submit_message("b", PROMPT))
        assert world.is_stepping
        (lookup,) = world.to_controller.take_all()
        assert isinstance(lookup, Lookup)


async def test_a_cancel_and_a_flush_wait_for_the_step_though_reports_do_not() -> None:
    async with running(World()) as world:
        offload = await world.begin_second_step()
        await world.send(
            Cancel(request_id=RequestId("a"), reason="abort"),
            FlushCache(flush_id=3, tiers=frozenset({"device"})),
            copied(offload.transfer_id),
        )
        assert world.output.take_all() == []
        assert world.state.cache.stats().pinned == 3
        await world.end_step()
        token, ended, flushed = world.output.take_all()
        assert isinstance(token, StepOutput)
        assert isinstance(ended, StepOutput)
        assert [output.finish_reason for output in (*token.outputs, *ended.outputs)] == [None, "abort"]
        assert flushed == CacheFlushed(flush_id=3, num_pages={"device": 3})
        assert not world.is_stepping


async def test_deferred_messages_keep_their_order_before_those_that_come_later() -> None:
    async with running(World()) as world:
        await world.begin_second_step()
        await world.send(Cancel(request_id=RequestId("a"), reason="abort"))
        await world.send(submit_message("b", prompt(2, 5), max_tokens=1))
        await world.send(Cancel(request_id=RequestId("b"), reason="abort"))
        world.output.take_all()
        await world.end_step()
        ended = [message for message in world.output.take_all() if isinstance(message, StepOutput)]
        finished = [output for message in ended for output in message.outputs if output.finish_reason]
        assert [output.request_id for output in finished] == ["a", "b"]
        assert not world.is_stepping, "a request that was called off during the step is not computed"


async def test_a_request_that_stands_back_wakes_up_by_the_report_it_waits_for() -> None:
    async with running(World(threshold=8)) as world:
        await world.send(submit_message("a", PROMPT, max_tokens=1))
        (lookup,) = world.to_controller.take_all()
        assert isinstance(lookup, Lookup)
        assert not world.is_stepping
        await world.send(LookedUp(transfer_id=lookup.transfer_id, num_present=0, answer="answered", seconds=0.1))
        assert world.is_stepping


async def test_it_is_quiet_once_nothing_is_under_way_or_waits_to_be_written() -> None:
    async with running(World()) as world:
        await world.send(submit_message("a", PROMPT, max_tokens=1))
        quiet = asyncio.create_task(world.scheduler.wait_until_quiet())
        await world.end_step()
        assert quiet.done(), "nothing was under way when it asked"
        quiet = asyncio.create_task(world.scheduler.wait_until_quiet())
        (offload,) = world.to_controller.take_all()
        assert isinstance(offload, Offload)
        await world.send(copied(offload.transfer_id))
        (backup,) = world.to_controller.take_all()
        assert isinstance(backup, Backup)
        assert not quiet.done()
        await world.send(BackedUp(transfer_id=backup.transfer_id, stored=(True,) * 3))
        assert quiet.done()


async def test_a_controller_whose_mailbox_is_full_is_a_bug_and_no_reason_to_wait() -> None:
    world = World(controller_capacity=1)
    task = asyncio.create_task(world.scheduler.run())
    assert world.to_controller.address.try_send(StopFetch(transfer_id=TransferId(99)))
    await world.send(submit_message("a", PROMPT, max_tokens=1))
    await world.end_step()
    with pytest.raises(ActorCrash, match="the cache controller's mailbox is full"):
        await task


async def test_the_store_is_changed_during_a_step_and_the_answer_goes_out() -> None:
    async with running(World()) as world:
        await world.begin_second_step()
        await world.send(DetachStorage())
        assert world.is_stepping
        assert world.to_controller.take_all() == [DetachStorage()]
        assert not world.state.tiers or not world.state.tiers.has_storage
        await world.send(StorageChanged(is_attached=False))
        assert world.output.take_all() == [StorageChanged(is_attached=False)]
        attach = AttachStorage(backend="memory", extra_config={})
        await world.send(attach)
        assert world.to_controller.take_all() == [attach]
        await world.send(StorageChanged(is_attached=True))
        assert world.output.take_all() == [StorageChanged(is_attached=True)]
        assert world.state.tiers is not None
        assert world.state.tiers.has_storage
