"""All actors and the lower tiers together, over a model whose tokens tell whether its pages were right."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.fake_model import FakeModel
from tests.fake_tiers import TIERS, fake_tiers, tiered_engine

from pagefall import app
from pagefall.actors.base import ActorCrash
from pagefall.actors.generation import TextGeneration
from pagefall.actors.tokenizer import TokenizerActor
from pagefall.config import SchedulerConfig, TierConfig
from pagefall.messages import RequestId, StepPlan, StepResult, Tier
from pagefall.text.requests import GenerateRequest, TokenPrompt, Usage
from pagefall_storage.faulty import Faulty, Hang, Operation
from pagefall_storage.memory import MemoryBackend

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

NUM_PAGES = 64
DOCUMENT = list(range(100, 141))  # ten pages of four, and the token that is always computed
STRANGER = [1, 2, 3, 4, 5]
PATIENT = msgspec.structs.replace(TIERS, hicache_storage_prefetch_policy="wait_complete", hicache_storage_deadline=30.0)
SCHEDULER = SchedulerConfig(max_running_requests=4, max_queued_requests=100, chunked_prefill_size=16)


class GatedModel(FakeModel):
    """A step waits for the gate. `begun` is set at each."""

    def __init__(self) -> None:
        super().__init__(num_pages=NUM_PAGES, page_size=4)
        self.gate, self.begun = threading.Event(), threading.Event()
        self.gate.set()

    def step(self, plan: StepPlan) -> StepResult:
        self.begun.set()
        assert self.gate.wait(timeout=10)
        return super().step(plan)


class Rig:
    def __init__(self, config: TierConfig = PATIENT, *, has_store: bool = True, num_host_pages: int = 128) -> None:
        self.model = GatedModel()
        self.store = Faulty(MemoryBackend())
        self.tiers, self.copier = fake_tiers(
            self.model, self.store if has_store else None, num_host_pages=num_host_pages, config=config
        )
        self.engine: TokenizerActor

    @asynccontextmanager
    async def running(self, *, grace_seconds: float = 10.0) -> AsyncIterator[TokenizerActor]:
        engine = tiered_engine(self.model, self.tiers, SCHEDULER, grace_seconds=grace_seconds)
        async with engine as self.engine:
            yield self.engine

    async def begin(self, name: str, prompt: list[int], *, max_tokens: int = 3) -> TextGeneration:
        return await self.engine.generate(
            GenerateRequest(
                request_id=RequestId(name), prompt=TokenPrompt(tuple(prompt)), max_tokens=max_tokens, ignore_eos=True
            )
        )

    async def answer(self, name: str, prompt: list[int]) -> dict[str, int]:
        """What came from where. Checks the answer."""
        return await self.end(await self.begin(name, prompt), prompt)

    async def end(self, generation: TextGeneration, prompt: list[int], *, num_tokens: int = 3) -> dict[str, int]:
        token_ids: list[int] = []
        usage: Usage | None = None
        async for delta in generation:
            token_ids += delta.token_ids
            usage = delta.usage or usage
        assert token_ids == self.model.answer_alone(prompt, num_tokens)
        assert usage is not None
        return {tier: count for tier, count in usage.cached_tokens_by_tier.items() if count}

    async def until(self, condition: Callable[[], bool]) -> None:
        """Lets all others run; time does not matter, only that it happens."""
        while not condition():
            await asyncio.sleep(0.001)

    async def until_written(self, num_pages: int) -> None:
        await self.until(lambda: self.pages_moved("host_to_storage") >= num_pages)

    def pages_moved(self, direction: str) -> int:
        stats = self.engine.controller_stats()
        assert stats is not None
        moved = {str(key): value.num_pages for key, value in stats.transfers.items()}
        return moved.get(direction, 0)

    async def forget_all_but_the_store(self) -> None:
        await self.until(lambda: self.is_at_rest)
        await self.engine.flush_cache({"device", "host"})

    @property
    def is_at_rest(self) -> bool:
        stats = self.engine.stats()
        assert stats.host_pages is not None
        pools = (stats.device_pages, stats.host_pages)
        return all(pool.pinned == pool.leased == 0 and pool.free + pool.cached == pool.total for pool in pools)


async def test_a_prompt_comes_from_the_nearest_tier_that_still_has_it() -> None:
    rig = Rig()
    async with rig.running() as engine:
        assert await rig.answer("cold", DOCUMENT) == {}
        await rig.until_written(10)
        assert await rig.answer("device", DOCUMENT) == {"device": 40}
        await rig.until(lambda: rig.is_at_rest)
        await engine.flush_cache({"device"})
        assert await rig.answer("host", DOCUMENT) == {"host": 40}
        await rig.forget_all_but_the_store()
        assert await rig.answer("storage", DOCUMENT) == {"storage": 40}
        await rig.until(lambda: rig.is_at_rest)
        flushed = await engine.flush_cache({"device", "host", "storage"})
        assert flushed.num_pages["storage"] >= 10
        assert await rig.answer("cold again", DOCUMENT) == {}


async def test_a_copy_to_the_host_that_fails_leaves_the_page_on_the_device() -> None:
    rig = Rig()
    rig.copier.fails_every = 1
    async with rig.running() as engine:
        await rig.answer("cold", DOCUMENT)
        await rig.until(lambda: rig.is_at_rest)
        assert await rig.answer("again", DOCUMENT) == {"device": 40}
        await rig.until(lambda: rig.is_at_rest)
        stats = engine.stats()
    assert stats.host_pages is not None
    assert stats.host_pages.cached == 0


@pytest.mark.parametrize("tiers", [("device",), ("device", "host")])
async def test_a_copy_to_the_device_that_fails_is_computed(tiers: tuple[Tier, ...]) -> None:
    rig = Rig()
    async with rig.running() as engine:
        await rig.answer("cold", DOCUMENT)
        await rig.until_written(10)
        await rig.until(lambda: rig.is_at_rest)
        await engine.flush_cache(set(tiers))
        rig.copier.fails_every = 1
        assert await rig.answer("hit", DOCUMENT) == {}


@pytest.mark.parametrize("operation", ["contains", "get"])
async def test_requests_that_wait_for_the_store_never_delay_one_that_does_not(operation: Operation) -> None:
    rig = Rig()
    async with rig.running():
        await rig.answer("cold", DOCUMENT)
        await rig.until_written(10)
        await rig.forget_all_but_the_store()
        frozen = rig.store.inject(Hang(), on={operation})
        waiting = [asyncio.create_task(rig.answer(f"wait {number}", DOCUMENT)) for number in range(6)]
        await rig.until(lambda: frozen.num_strikes > 0)
        for number in range(3):
            num_steps = len(rig.model.plans)
            assert await rig.answer(f"stranger {number}", STRANGER[number:]) in ({}, {"device": 4})
            assert len(rig.model.plans) - num_steps == 3, "a step for the prompt and its token, and one for each other"
        assert not any(task.done() for task in waiting)
        rig.store.heal()
        assert {"storage": 40} in await asyncio.gather(*waiting)


def hold(rig: Rig, point: str) -> tuple[Callable[[], bool], Callable[[], None]]:
    """Holds everything at a point of the pipeline: whether something has come there, and what lets it go on."""
    copier, model = rig.copier, rig.model
    match point:
        case "offload":
            copier.offloading.clear()
            num_before = copier.num_offloads
            return lambda: copier.num_offloads > num_before, copier.offloading.set
        case "load back":
            copier.loading.clear()
            num_loads = copier.num_loads
            return lambda: copier.num_loads > num_loads, copier.loading.set
        case "step":
            model.begun.clear()
            model.gate.clear()
            return model.begun.is_set, model.gate.set
        case _:
            frozen = rig.store.inject(Hang(), on={"contains" if point == "lookup" else "get"})
            return lambda: frozen.num_strikes > 0, rig.store.heal


@pytest.mark.parametrize("point", ["lookup", "fetch", "load back", "step", "offload"])
async def test_a_client_that_leaves_at_any_point_leaves_no_page_behind(point: str) -> None:
    rig = Rig()
    async with rig.running() as engine:
        await rig.answer("cold", DOCUMENT)
        await rig.until_written(10)
        await rig.forget_all_but_the_store()
        is_reached, release = hold(rig, point)
        generation = await rig.begin("leaves", [*DOCUMENT[:-1], *STRANGER], max_tokens=100)
        await rig.until(is_reached)
        await generation.aclose()
        if point != "step":  # whose forward writes its pages until it is over
            await rig.until(lambda: engine.num_outstanding == 0)
        release()
        await rig.until(lambda: engine.num_outstanding == 0 and rig.is_at_rest)
        await rig.answer("after", DOCUMENT)
        await rig.until(lambda: rig.is_at_rest)


async def test_a_crash_of_the_controller_ends_the_engine_and_says_why() -> None:
    rig = Rig(has_store=False)  # of which the configuration knows nothing

    async def ask() -> None:
        async with rig.running():
            await rig.answer("cold", DOCUMENT)

    with pytest.raises(ExceptionGroup) as failures:
        await ask()
    assert failures.group_contains(ActorCrash, match="CacheController crashed: RuntimeError: asked for a store")


async def test_what_waits_to_be_written_is_written_before_the_engine_has_ended() -> None:
    rig = Rig()
    held = rig.store.inject(Hang(), on={"put"})
    async with rig.running():
        await rig.answer("cold", DOCUMENT)
        await rig.answer("another", STRANGER * 5)
        await rig.until(lambda: held.num_strikes > 0)
        asyncio.get_running_loop().call_soon(rig.store.heal)
    assert rig.pages_moved("host_to_storage") == 10 + 6


async def test_a_store_that_is_frozen_at_the_end_is_given_up_after_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_LAST_TRANSFERS_SECONDS", 0.05)
    rig = Rig()  # whose store has half a minute for each operation
    held = rig.store.inject(Hang(), on={"put"})
    async with asyncio.timeout(5):
        async with rig.running(grace_seconds=0.05):
            await rig.answer("cold", DOCUMENT)
            await rig.until(lambda: held.num_strikes > 0)
    assert rig.pages_moved("host_to_storage") == 0


async def test_a_host_pool_of_one_page_and_a_crowd_that_comes_and_goes_never_overfill_a_mailbox() -> None:
    rig = Rig(msgspec.structs.replace(TIERS, hicache_prefetch_threshold=1), num_host_pages=1)
    async with rig.running() as engine:

        async def come_and_go(number: int) -> None:
            generation = await rig.begin(str(number), [number % 7] * 4 + [number % 256], max_tokens=5)
            if number % 2:
                await generation.aclose()
            else:
                await rig.end(generation, [number % 7] * 4 + [number % 256], num_tokens=5)

        for first in range(0, 800, 80):
            await asyncio.gather(*(come_and_go(number) for number in range(first, first + 80)))
        await rig.until(lambda: engine.num_outstanding == 0 and rig.is_at_rest)
