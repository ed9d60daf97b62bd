"""The counters add up and the gauges are true, whatever became of the requests."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.byte_tokenizer import byte_tokenizer
from tests.fake_model import FakeModel

from pagefall.actors.runner import DeviceThread
from pagefall.actors.tokenizer import TokenizerActor
from pagefall.app import running_engine
from pagefall.config import CacheConfig, InsightConfig, SchedulerConfig
from pagefall.errors import RequestError
from pagefall.messages import RequestId, StepPlan, StepResult
from pagefall.metrics.registry import Metrics
from pagefall.metrics.traffic import TrafficMetrics
from pagefall.text.requests import GenerateRequest, ModelCard, TokenPrompt

pytestmark = pytest.mark.anyio

NUM_PAGES = 96
PAGE_SIZE = 4
SCHEDULER = SchedulerConfig(max_running_requests=8, max_queued_requests=40, chunked_prefill_size=16)


class GatedModel(FakeModel):
    """A step waits for the gate."""

    def __init__(self) -> None:
        super().__init__(num_pages=NUM_PAGES, page_size=PAGE_SIZE)
        self.gate = threading.Event()

    def step(self, plan: StepPlan) -> StepResult:
        assert self.gate.wait(timeout=10)
        return super().step(plan)


@asynccontextmanager
async def metered_engine(model: FakeModel | None = None) -> AsyncIterator[tuple[TokenizerActor, Metrics]]:
    traffic = TrafficMetrics(InsightConfig())
    with DeviceThread() as thread:
        async with running_engine(
            model or FakeModel(num_pages=NUM_PAGES, page_size=PAGE_SIZE),
            byte_tokenizer(),
            ModelCard(id="fake", context_length=NUM_PAGES * PAGE_SIZE, vocab_size=257, created=0),
            thread=thread,
            num_pages=NUM_PAGES,
            eos_token_ids=frozenset(),
            cache=CacheConfig(page_size=PAGE_SIZE),
            scheduler=SCHEDULER,
            observers=traffic.observers,
        ) as engine:
            yield engine, Metrics(engine.stats, engine.controller_stats, traffic, model="fake", page_size=PAGE_SIZE)


def request(name: str, prompt: list[int], max_tokens: int = 200) -> GenerateRequest:
    return GenerateRequest(request_id=RequestId(name), prompt=TokenPrompt(tuple(prompt)), max_tokens=max_tokens)


def scrape(metrics: Metrics) -> Counter[str]:
    """Sums over all labels, and each sample by name and label values."""
    values = Counter[str]()
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if sample.labels:
                values[" ".join([sample.name, *sample.labels.values()])] = sample.value  # type: ignore[assignment]
            values[sample.name] += sample.value  # type: ignore[assignment]
    return values


def assert_nobody_is_served(values: Counter[str]) -> None:
    assert (values["pagefall_num_running_reqs"], values["pagefall_num_queue_reqs"]) == (0, 0)
    assert (values["pagefall_pages leased device"], values["pagefall_pages pinned device"]) == (0, 0)
    assert values["pagefall_pages free device"] + values["pagefall_pages cached device"] == NUM_PAGES
    assert values["pagefall_conservation_breaches_total"] == 0


async def test_after_mass_aborts_gauges_are_true_and_every_accepted_token_has_a_source() -> None:
    rng = random.Random(5)
    async with metered_engine() as (engine, metrics):
        num_accepted_tokens = num_accepted = num_refused = 0

        async def start_and_leave(index: int) -> None:
            nonlocal num_accepted_tokens, num_accepted, num_refused
            prompt = [7] * 20 + [index % 5] * rng.randrange(1, 60) + [index % 256]
            try:
                generation = await engine.generate(request(str(index), prompt))
            except RequestError:
                num_refused += 1
                return
            num_accepted += 1
            num_accepted_tokens += len(prompt)
            for _ in range(rng.choice([0, 0, 1, 5])):
                await anext(generation)
            await generation.aclose()

        for start in range(0, 240, 60):  # more at once than are let in
            await asyncio.gather(*(start_and_leave(index) for index in range(start, start + 60)))
            await engine.flush_cache(frozenset({"host"}))  # answered only after every cancel before it
            assert_nobody_is_served(scrape(metrics))
        values = scrape(metrics)
        assert num_refused > 0
        assert values["pagefall_refused_requests_total queue_full"] == num_refused
        assert values["pagefall_prompt_tokens_total"] == num_accepted_tokens == engine.stats().num_prompt_tokens
        assert values["pagefall_prompt_tokens_total unreached"] > 0
        assert values["pagefall_requests_total abort_client_gone"] == values["pagefall_requests_total"] == num_accepted
        assert values["pagefall_queue_seconds_count"] == num_accepted
        assert values["pagefall_request_seconds_count"] == 0


async def test_a_shutdown_that_aborts_leaves_true_gauges_too() -> None:
    model = GatedModel()
    async with metered_engine(model) as (engine, metrics):
        for index in range(30):
            await engine.generate(request(str(index), [index] * 30))
        values = scrape(metrics)
        assert values["pagefall_num_running_reqs"] + values["pagefall_num_queue_reqs"] > 0
        engine.stop_accepting()
        engine.abort_all()
        model.gate.set()
        await engine.drain()
        values = scrape(metrics)
        assert_nobody_is_served(values)
        assert values["pagefall_requests_total abort_shutdown"] == values["pagefall_requests_total"] == 30
        assert values["pagefall_prompt_tokens_total"] == 30 * 30
        with pytest.raises(RequestError):
            await engine.generate(request("late", [1]))
        assert scrape(metrics)["pagefall_refused_requests_total shutting_down"] == 1


async def test_what_is_served_to_its_end_is_timed_and_its_hits_show() -> None:
    async with metered_engine() as (engine, metrics):
        for name in ("cold", "warm"):
            generation = await engine.generate(request(name, list(range(41)), max_tokens=6))
            assert len([token_id async for delta in generation for token_id in delta.token_ids]) == 6
        values = scrape(metrics)
        assert_nobody_is_served(values)
        assert values["pagefall_prompt_tokens_total device"] == 40
        assert values["pagefall_prompt_tokens_total computed"] == 42
        assert values["pagefall_cache_hit_rate"] == pytest.approx(40 / 82)
        assert values["pagefall_generated_tokens_total"] == 12
        assert values["pagefall_requests_total length"] == 2
        for source in ("none", "device"):
            assert values[f"pagefall_time_to_first_token_seconds_count {source}"] == 1
            assert values[f"pagefall_inter_token_latency_seconds_count {source}"] == 5
            assert values[f"pagefall_request_seconds_count {source}"] == 1
