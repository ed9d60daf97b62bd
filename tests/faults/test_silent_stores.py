"""A store that never answers: the first request waits once, nobody does afterwards, and nothing needs a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import AsyncExitStack

import anyio
import pytest
from tests.fake_backend import FakeBackend
from tests.faults.conftest import Truth
from tests.faults.rig import Clock, Engine, LoadedModel, engine_over, prompt_of, until

from pagefall.config import PrefetchPolicy, TierConfig
from pagefall.tiers.assembly import lower_tiers
from pagefall.tiers.breaker import CircuitBreaker
from pagefall.tiers.copier import CpuCopier
from pagefall.tiers.host_memory import HostMemory
from pagefall_storage.faulty import Faulty, Hang, Operation
from pagefall_storage.memory import MemoryBackend

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PROMPTS = [prompt_of(seed, 200) for seed in range(4)]
PROMPT = PROMPTS[0]
SHORTER_THAN_A_PAGE = prompt_of(9, 12)
DEADLINE_SECONDS = 0.1
PATIENT = 1000.0


def breaker() -> CircuitBreaker:
    """Open for one second of the test's clock, then two, then four."""
    return CircuitBreaker(random=lambda: 1.0)


async def assert_answered(engine: Engine, truth: Truth) -> None:
    for prompt in PROMPTS:
        assert (await engine.ask(prompt)).token_ids == truth(prompt)


async def assert_healed(engine: Engine, loaded: LoadedModel, truth: Truth, clock: Clock) -> None:
    """The store answers again, and time has passed: it is used without a restart."""
    clock.now += 100.0
    await engine.leave_only_in("storage")
    await engine.ask(PROMPT)
    await engine.until_breaker("closed")
    await assert_answered(engine, truth)  # what is used again is written, where it could not be before
    await engine.leave_only_in("storage")
    hit = await engine.ask(PROMPT)
    assert hit.token_ids == truth(PROMPT)
    assert hit.by_tier == {"storage": loaded.num_cacheable_pages(PROMPT) * loaded.page_size}


@pytest.mark.parametrize(
    ("silent", "prefetch"),
    [
        (None, "wait_complete"),
        (None, "timeout"),
        (None, "best_effort"),
        (None, "auto"),
        ({"get"}, "wait_complete"),
        ({"get"}, "timeout"),
        ({"put"}, "wait_complete"),
    ],
)
async def test_one_operation_is_waited_for_and_then_none_until_the_store_answers_again(
    loaded: LoadedModel, truth: Truth, silent: Collection[Operation] | None, prefetch: PrefetchPolicy
) -> None:
    store, clock = Faulty(MemoryBackend()), Clock()
    async with engine_over(
        loaded, store, prefetch=prefetch, deadline_seconds=DEADLINE_SECONDS, breaker=breaker(), clock=clock
    ) as engine:
        if silent != {"put"}:
            await assert_answered(engine, truth)
            await engine.leave_only_in("storage")
        store.inject(Hang(), on=silent)
        await assert_answered(engine, truth)
        await engine.settle()
        assert engine.store().breaker == "open"
        assert engine.store().num_storage_failures["timeout"] >= 1
        calls = store.num_calls.copy()
        await engine.flush("device", "host")
        await assert_answered(engine, truth)
        await engine.settle()
        assert store.num_calls == calls, "it was left alone"
        clock.now += 1.0
        await engine.flush("device", "host")
        await assert_answered(engine, truth)
        await engine.settle()
        if silent != {"put"}:  # a probe reads, and finds a store that does not take pages to be alive
            await engine.until_breaker("open")
            assert sum((store.num_calls - calls).values()) <= 2, "one probe: whether it has the key, and its value"
        store.heal()
        if prefetch == "wait_complete":
            await assert_healed(engine, loaded, truth, clock)


async def test_others_go_on_while_a_request_waits_for_the_store(loaded: LoadedModel, truth: Truth) -> None:
    store = Faulty(MemoryBackend())
    async with engine_over(loaded, store, deadline_seconds=PATIENT) as engine:
        await engine.ask(PROMPT)
        await engine.leave_only_in("storage")
        await engine.ask(PROMPTS[1])  # on the device
        store.inject(Hang(), on={"contains", "get"})
        waiting = asyncio.create_task(engine.ask(PROMPT))
        await until(lambda: engine.stats().num_queued == 1)
        neighbour = await engine.ask(PROMPTS[1])
        assert (neighbour.token_ids, neighbour.by_tier) == (truth(PROMPTS[1]), {"device": 192})
        assert (await engine.ask(SHORTER_THAN_A_PAGE)).token_ids == truth(SHORTER_THAN_A_PAGE)
        assert not waiting.done()
        store.heal()
        hit = await waiting
        assert (hit.token_ids, hit.by_tier) == (truth(PROMPT), {"storage": 192})


async def test_reads_that_do_not_end_when_they_are_cancelled_keep_their_pages_and_no_one_waiting(
    loaded: LoadedModel, truth: Truth
) -> None:
    store, clock = FakeBackend(), Clock()
    store.is_stubborn = True
    async with engine_over(loaded, store, deadline_seconds=DEADLINE_SECONDS, breaker=breaker(), clock=clock) as engine:
        await assert_answered(engine, truth)
        await engine.leave_only_in("storage")
        gate = store.gates["get"] = asyncio.Event()
        await assert_answered(engine, truth)
        assert engine.store().breaker == "open"
        calls = list(store.calls)
        await engine.flush("device", "host")
        await assert_answered(engine, truth)
        assert store.calls == calls
        host = engine.stats().host_pages
        assert host is not None
        assert host.leased == loaded.num_cacheable_pages(PROMPT), "the read may still write to them"
        gate.set()
        await assert_healed(engine, loaded, truth, clock)
        host = engine.stats().host_pages
        assert host is not None
        assert host.leased == 0


async def test_writes_that_do_not_end_when_they_are_cancelled_keep_their_pages_and_no_one_waiting(
    loaded: LoadedModel, truth: Truth
) -> None:
    store, clock = FakeBackend(), Clock()
    store.is_stubborn = True
    gate = store.gates["put"] = asyncio.Event()
    async with engine_over(loaded, store, deadline_seconds=DEADLINE_SECONDS, breaker=breaker(), clock=clock) as engine:
        for _ in range(2):
            await assert_answered(engine, truth)
            await engine.flush("device", "host")
        await engine.until_breaker("open")
        assert store.num_calls("put") == 1
        gate.set()
        await assert_healed(engine, loaded, truth, clock)


@pytest.mark.parametrize("is_stubborn", [False, True])
async def test_an_engine_ends_in_bounded_time_whatever_the_store_does(
    loaded: LoadedModel, truth: Truth, is_stubborn: bool
) -> None:
    store = FakeBackend()
    store.is_stubborn = is_stubborn
    gates = store.gates
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(
            engine_over(loaded, store, deadline_seconds=PATIENT, prefetch="best_effort", grace_seconds=0.2)
        )
        await engine.ask(PROMPT)
        await engine.leave_only_in("storage")
        gate = gates["contains"] = gates["get"] = gates["put"] = asyncio.Event()
        await assert_answered(engine, truth)
        with anyio.fail_after(5):
            await stack.aclose()
        assert store.is_closed
        gate.set()


@pytest.mark.parametrize("is_stubborn", [False, True])
async def test_a_store_that_is_silent_or_broken_at_the_start_is_no_reason_not_to_start(
    loaded: LoadedModel, is_stubborn: bool
) -> None:
    store = FakeBackend()
    store.is_stubborn = is_stubborn
    gate = store.gates["get"] = asyncio.Event()
    config = TierConfig(
        enable_hierarchical_cache=True,
        hicache_storage_backend="given",
        hicache_storage_deadline=DEADLINE_SECONDS,
    )
    memory = HostMemory(loaded.model.kv_pool.page_bytes, 8, pinned=False)
    host = memory, CpuCopier(loaded.model.kv_pool, memory)
    with anyio.fail_after(5):
        tiers = await lower_tiers(config, host, store, loaded.namespace)
    assert tiers.storage is not None
    assert tiers.storage.stats().breaker == "open"
    gate.set()
    store.errors["get"] = ZeroDivisionError()
    tiers = await lower_tiers(config, host, store, loaded.namespace)
    assert tiers.storage is not None
    assert tiers.storage.stats().num_storage_failures == {"error": 1}
