"""Stacked stores under a running engine: what is wrong with one member no request sees, nor does the other member."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from tests.faults.conftest import Truth
from tests.faults.rig import Engine, LoadedModel, engine_over, prompt_of
from tests.unit.storage_backends.stores import open_store, stored_keys

from pagefall.tiers.guarded_stack import guarded_stack
from pagefall_storage.faulty import BitFlip, Fail, Fault, Faulty, Hang, ShortRead, Torn, Vanish
from pagefall_storage.memory import MemoryBackend
from pagefall_storage.protocol import StorageBackend
from pagefall_storage.stacked import Stacked

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PROMPTS: Final = [prompt_of(seed, 150 + 20 * seed) for seed in range(6)]
DEADLINE_SECONDS: Final = 0.4


def stack_of(loaded: LoadedModel, near: StorageBackend, far: StorageBackend) -> Stacked:
    return guarded_stack(
        [near, far], deadline_seconds=DEADLINE_SECONDS, value_bytes=loaded.value_bytes, clock=time.monotonic
    )


@asynccontextmanager
async def filled(loaded: LoadedModel, truth: Truth, near: Faulty, far: Faulty) -> AsyncIterator[tuple[Engine, Stacked]]:
    """An engine whose prompts' pages are in both members and nowhere else."""
    stack = stack_of(loaded, near, far)
    async with engine_over(loaded, stack, deadline_seconds=DEADLINE_SECONDS) as engine:
        assert await num_from_storage(engine, truth) == 0
        await engine.leave_only_in("storage")
        yield engine, stack
        near.heal()
        far.heal()


async def num_from_storage(engine: Engine, truth: Truth) -> int:
    """Asks all prompts at once; each is answered as by a cold run. How many of their tokens came from the store."""
    answers = await asyncio.gather(*(engine.ask(prompt) for prompt in PROMPTS))
    assert [answer.token_ids for answer in answers] == [truth(prompt) for prompt in PROMPTS]
    return sum(answer.by_tier.get("storage", 0) for answer in answers)


def num_cacheable(loaded: LoadedModel) -> int:
    return sum(loaded.num_cacheable_pages(prompt) for prompt in PROMPTS) * loaded.page_size


@pytest.mark.parametrize("fault", [BitFlip(), Torn(), ShortRead(), Vanish()])
async def test_what_is_damaged_near_by_comes_from_farther_away_and_is_put_in_order(
    loaded: LoadedModel, truth: Truth, fault: Fault
) -> None:
    near, far = Faulty(MemoryBackend()), Faulty(MemoryBackend())
    async with filled(loaded, truth, near, far) as (engine, stack):
        near.inject(fault, on={"get"})
        assert await num_from_storage(engine, truth) == num_cacheable(loaded)
        assert engine.outcomes().keys() == {"hit"}
        await stack._fills.wait_until_done()
        near.heal()
        far.inject(Fail())
        await engine.leave_only_in("storage")
        assert await num_from_storage(engine, truth) == num_cacheable(loaded)


@pytest.mark.parametrize("fault", [Hang(), Fail(), Fail("timeout")])
@pytest.mark.parametrize("is_near", [True, False])
async def test_a_member_that_is_silent_or_broken_costs_no_page(
    loaded: LoadedModel, truth: Truth, fault: Fault, is_near: bool
) -> None:
    near, far = Faulty(MemoryBackend()), Faulty(MemoryBackend())
    async with filled(loaded, truth, near, far) as (engine, _):
        (near if is_near else far).inject(fault)
        for _ in range(2):
            assert await num_from_storage(engine, truth) == num_cacheable(loaded)
            await engine.leave_only_in("storage")
        assert engine.store().breaker == "closed"
        assert engine.outcomes().keys() == {"hit"}


async def test_pages_written_while_a_member_is_down_are_in_the_other(loaded: LoadedModel, truth: Truth) -> None:
    near, far = Faulty(MemoryBackend()), Faulty(MemoryBackend())
    far.inject(Hang())
    async with filled(loaded, truth, near, far) as (engine, _):
        assert await num_from_storage(engine, truth) == num_cacheable(loaded)


async def test_a_server_with_an_empty_store_of_its_own_reads_what_another_left_in_the_shared_one(
    loaded: LoadedModel, truth: Truth, tmp_path: Path
) -> None:
    async with open_store(tmp_path) as shared, filled(loaded, truth, Faulty(MemoryBackend()), Faulty(shared)):
        pass
    near = Faulty(MemoryBackend())
    async with open_store(tmp_path) as files:
        shared_again = Faulty(files)
        stack = stack_of(loaded, near, shared_again)
        async with engine_over(loaded, stack, deadline_seconds=DEADLINE_SECONDS) as engine:
            assert await num_from_storage(engine, truth) == num_cacheable(loaded)
            await engine.leave_only_in("storage")
            await stack._fills.wait_until_done()
            assert {name for prompt in PROMPTS for name in loaded.names(prompt)} <= await stored_keys(near)
            shared_again.inject(Fail())
            assert await num_from_storage(engine, truth) == num_cacheable(loaded)
            shared_again.heal()


async def test_a_member_that_comes_back_gets_the_pages_it_missed(loaded: LoadedModel, truth: Truth) -> None:
    near, far = Faulty(MemoryBackend()), Faulty(MemoryBackend())
    outage = far.inject(Fail(), on={"put"})
    async with filled(loaded, truth, near, far) as (engine, _):
        assert await stored_keys(far) == set()
        far.remove(outage)
        await engine.ask(prompt_of(99, 100))
        await engine.settle()

        async def is_complete() -> bool:
            return await stored_keys(near) == await stored_keys(far)

        for _ in range(100):
            if await is_complete():
                break
            await asyncio.sleep(0.02)
        assert await is_complete()
