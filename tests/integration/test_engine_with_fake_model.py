"""All actors together, without HTTP, over a model whose tokens tell whether its pages were right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.byte_tokenizer import byte_tokenizer
from tests.fake_model import FakeModel

from pagefall.actors.base import ActorCrash
from pagefall.actors.generation import TextGeneration
from pagefall.actors.runner import DeviceThread
from pagefall.actors.tokenizer import TokenizerActor
from pagefall.app import running_engine
from pagefall.config import CacheConfig, SchedulerConfig
from pagefall.errors import RequestError
from pagefall.messages import RequestId, StepPlan, StepResult
from pagefall.text.requests import GenerateRequest, ModelCard, TextDelta, TokenPrompt
from pagefall.text.tokenizer import Tokenizer

pytestmark = pytest.mark.anyio

NUM_PAGES = 256
SCHEDULER = SchedulerConfig(max_running_requests=16, max_queued_requests=100)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


@pytest.fixture
def model() -> FakeModel:
    return FakeModel(num_pages=NUM_PAGES, page_size=4)


@asynccontextmanager
async def engine_over(
    model: FakeModel, tokenizer: Tokenizer, scheduler: SchedulerConfig = SCHEDULER
) -> AsyncIterator[TokenizerActor]:
    with DeviceThread() as thread:
        async with running_engine(
            model,
            tokenizer,
            ModelCard(id="fake", context_length=NUM_PAGES * 4, vocab_size=257, created=0),
            thread=thread,
            num_pages=NUM_PAGES,
            eos_token_ids=frozenset(),
            cache=CacheConfig(page_size=4),
            scheduler=scheduler,
        ) as engine:
            yield engine


def request(name: str, prompt: list[int], **options: Any) -> GenerateRequest:
    return GenerateRequest(request_id=RequestId(name), prompt=TokenPrompt(tuple(prompt)), **options)


def prompt_of(index: int) -> list[int]:
    """Every prompt begins like its neighbours' and ends differently."""
    return [7] * 20 + [index % 5] * 8 + [index % 256, index // 256]


async def collect(engine: TokenizerActor, wanted: GenerateRequest) -> list[TextDelta]:
    generation = await engine.generate(wanted)
    return [delta async for delta in generation]


def token_ids(deltas: list[TextDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


def assert_at_baseline(engine: TokenizerActor) -> None:
    stats = engine.stats()
    assert (stats.num_running, stats.num_queued, engine.num_outstanding) == (0, 0, 0)
    assert (stats.device_pages.leased, stats.device_pages.pinned) == (0, 0)
    assert stats.device_pages.free + stats.device_pages.cached == NUM_PAGES


async def test_a_crowd_gets_the_same_answers_as_each_alone(model: FakeModel, tokenizer: Tokenizer) -> None:
    async with engine_over(model, tokenizer) as engine:
        crowd = [collect(engine, request(str(index), prompt_of(index), max_tokens=12)) for index in range(100)]
        for index, deltas in enumerate(await asyncio.gather(*crowd)):
            assert token_ids(deltas) == model.answer_alone(prompt_of(index), 12)
            assert deltas[-1].finish_reason == "length"
        assert engine.stats().num_cached_tokens > 90 * 20
        assert_at_baseline(engine)


async def test_the_next_turn_finds_the_last_one_in_the_cache(model: FakeModel, tokenizer: Tokenizer) -> None:
    async with engine_over(model, tokenizer) as engine:
        first = prompt_of(0)
        answer = token_ids(await collect(engine, request("a", first, max_tokens=11)))
        deltas = await collect(engine, request("b", [*first, *answer, 1, 2, 3], max_tokens=1))
        usage = deltas[-1].usage
        assert usage is not None
        assert usage.cached_tokens == 40
        assert usage.cached_tokens_by_tier == {"device": 40, "host": 0, "storage": 0}


async def test_five_hundred_starts_and_aborts_return_every_page_and_place(
    model: FakeModel, tokenizer: Tokenizer
) -> None:
    async with engine_over(model, tokenizer) as engine:

        async def start_and_leave(index: int) -> None:
            wanted = request(str(index), prompt_of(index), max_tokens=500)
            if index % 3 == 0:  # before it is accepted
                generating = asyncio.create_task(engine.generate(wanted))
                await asyncio.sleep(0)
                generating.cancel()
                await asyncio.gather(generating, return_exceptions=True)
            else:
                generation = await engine.generate(wanted)
                if index % 3 == 1:
                    await anext(generation)
                await generation.aclose()

        for start in range(0, 500, 50):
            await asyncio.gather(*(start_and_leave(index) for index in range(start, start + 50)))
        await engine.flush_cache()  # answered only after every cancel before it
        assert_at_baseline(engine)
        assert await collect(engine, request("after", prompt_of(0), max_tokens=3))


async def test_ten_thousand_submissions_past_the_limit_are_refused_politely(
    model: FakeModel, tokenizer: Tokenizer
) -> None:
    async with engine_over(model, tokenizer) as engine:
        crowd = [collect(engine, request(str(index), prompt_of(index), max_tokens=3)) for index in range(10_000)]
        outcomes = await asyncio.gather(*crowd, return_exceptions=True)
        served = [outcome for outcome in outcomes if isinstance(outcome, list)]
        refused = [outcome for outcome in outcomes if isinstance(outcome, RequestError)]
        assert len(served) + len(refused) == 10_000
        assert len(served) >= 116
        assert {(error.status, error.retry_after_seconds) for error in refused} == {(503, 1)}
        assert_at_baseline(engine)


async def test_leaving_the_engine_serves_what_it_has_accepted(model: FakeModel, tokenizer: Tokenizer) -> None:
    async with engine_over(model, tokenizer) as engine:
        generation = await engine.generate(request("a", prompt_of(0), max_tokens=30))
    assert token_ids([delta async for delta in generation]) == model.answer_alone(prompt_of(0), 30)
    assert_at_baseline(engine)
    with pytest.raises(RequestError, match="shutting down"):
        await engine.generate(request("b", [1]))


async def test_an_error_in_the_body_ends_the_engine_at_once(model: FakeModel, tokenizer: Tokenizer) -> None:
    generations: list[TextGeneration] = []

    async def fail_beside_a_running_request() -> None:
        async with engine_over(model, tokenizer) as engine:
            generations.append(await engine.generate(request("a", prompt_of(0), max_tokens=900)))
            raise KeyError("body")

    with pytest.raises(ExceptionGroup) as failures:
        await fail_beside_a_running_request()
    assert failures.group_contains(KeyError)
    with pytest.raises(RequestError, match="The server stopped"):
        _ = [delta async for delta in generations[0]]


async def test_a_crash_of_the_model_ends_the_engine_and_every_wait(tokenizer: Tokenizer) -> None:
    class BrokenModel(FakeModel):
        def step(self, plan: StepPlan) -> StepResult:
            if plan.step == 3:
                raise ArithmeticError("bad luck")
            return super().step(plan)

    model = BrokenModel(num_pages=NUM_PAGES, page_size=4)

    async def answer() -> None:
        async with engine_over(model, tokenizer) as engine:
            await collect(engine, request("a", [1], max_tokens=9))

    with pytest.raises(ExceptionGroup) as failures:
        await answer()
    assert failures.group_contains(ActorCrash, match="Scheduler crashed: ArithmeticError: bad luck")
    assert len(model.plans) == 3
