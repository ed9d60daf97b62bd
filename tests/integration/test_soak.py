"""Ten thousand requests over tiers that are slow, full and faulty: nothing is wrong, nothing grows, nothing is left."""

from __future__ import annotations

import asyncio
import logging
import random
import resource
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
import pytest
from tests.fake_model import FakeModel
from tests.fake_tiers import TIERS, fake_tiers, tiered_engine

from pagefall import app
from pagefall.actors.tokenizer import TokenizerActor
from pagefall.config import PrefetchPolicy, SchedulerConfig, WritePolicy
from pagefall.messages import RequestId, SchedulerStats
from pagefall.scheduling import plan
from pagefall.scheduling.state import SchedulerState
from pagefall.text.requests import GenerateRequest, TokenPrompt
from pagefall.tiers.breaker import CircuitBreaker
from pagefall_storage.faulty import BitFlip, Fail, Faulty, Hang, ShortRead, Slow, Torn, Vanish
from pagefall_storage.protocol import StorageBackend
from pagefall_storage.registry import open_backend

pytestmark = pytest.mark.anyio

PAGE_SIZE: Final = 4
NUM_PAGES: Final = 64
NUM_HOST_PAGES: Final = 256
NUM_CLIENTS: Final = 24
DOCUMENTS: Final = [np.random.default_rng(seed).integers(0, 256, 64).tolist() for seed in range(24)]
RSS_SLACK_BYTES: Final = 8 * 2**20
CORRUPT: Final = ("corrupt:short", "corrupt:checksum", "corrupt:damaged header")

Backend = Literal["memory", "file"]
Leaving = Literal["never", "unaccepted", "accepted", "first token", "some time", "stop string"]


LEAVING: Final[dict[Leaving, int]] = {
    "never": 10,
    "unaccepted": 1,
    "accepted": 1,
    "first token": 1,
    "some time": 2,
    "stop string": 1,
}


class Soak:
    """`NUM_CLIENTS` clients that ask, wait or leave, and ask again."""

    def __init__(self, engine: TokenizerActor, model: FakeModel) -> None:
        self.ended = Counter[Leaving]()
        self._engine = engine
        self._model = model
        self._rng = random.Random(7)
        self._num_begun = 0

    async def run_until(self, num_requests: int) -> None:
        async with asyncio.TaskGroup() as clients:
            for _ in range(NUM_CLIENTS):
                clients.create_task(self._client(num_requests))

    async def _client(self, num_requests: int) -> None:
        while self._num_begun < num_requests:
            number = self._num_begun = self._num_begun + 1
            if number % 100 == 0:
                self._model.plans.clear()
                await self._engine.flush_cache({"device", "host"} if number % 200 else {"device"})
            await self._ask(number)

    async def _ask(self, number: int) -> None:
        rng = self._rng
        document = rng.choice(DOCUMENTS)
        prompt = document[: rng.randrange(1, 65)] + [rng.randrange(256) for _ in range(rng.randrange(4))]
        num_tokens = rng.choice((1, 2, 4, 8, 24))
        right = self._model.answer_alone(prompt, num_tokens)
        (leaving,) = rng.choices(list(LEAVING), list(LEAVING.values()))
        request = GenerateRequest(
            request_id=RequestId(str(number)),
            prompt=TokenPrompt(tuple(prompt)),
            max_tokens=num_tokens,
            ignore_eos=True,
            stop=("e",) if leaving == "stop string" else (),
        )
        if leaving == "unaccepted":
            generating = asyncio.ensure_future(self._engine.generate(request))
            await asyncio.sleep(0)
            generating.cancel()
            await asyncio.gather(generating, return_exceptions=True)
        else:
            generation = await self._engine.generate(request)
            token_ids: list[int] = []
            if leaving == "first token":
                token_ids += (await anext(generation)).token_ids
            elif leaving == "some time":
                await asyncio.sleep(rng.random() * 0.02)
            if leaving in ("never", "stop string"):
                async for delta in generation:
                    token_ids += delta.token_ids
                assert len(token_ids) == num_tokens or leaving == "stop string"
            else:
                await generation.aclose()
            assert token_ids == right[: len(token_ids)]
        self.ended[leaving] += 1


@asynccontextmanager
async def faulty_store(backend: Backend, folder: Path) -> AsyncIterator[Faulty]:
    """Some of all that can go wrong, all the time."""
    limits: dict[str, object] = {"max_bytes": 200 * (128 + 4 * PAGE_SIZE)}
    place: dict[str, object] = {"path": str(folder), "min_free_bytes": 0} if backend == "file" else {}
    inner: StorageBackend = await open_backend(backend, limits | place, value_bytes=128 + 4 * PAGE_SIZE)
    store = Faulty(inner, seed=3)
    for spoiling in (BitFlip(), Torn(), ShortRead(), Vanish()):
        store.inject(spoiling, rate=0.01)
    store.inject(Fail(), on={"get"}, rate=0.01)
    store.inject(Fail("full"), on={"put"}, rate=0.05)
    store.inject(Slow(0.01), rate=0.1)
    yield store


async def hang_now_and_then(store: Faulty) -> None:
    """Anything; and every time a read too, which else would seldom be met: lookups that hang keep reads from it."""
    while True:
        await asyncio.sleep(0.5)
        rule = store.inject(Hang(), times=3)
        await asyncio.sleep(0.2)
        store.remove(rule)
        rule = store.inject(Hang(), on={"get"}, times=1)
        while not rule.num_strikes:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        store.remove(rule)


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def assert_at_baseline(stats: SchedulerStats) -> None:
    assert (stats.num_running, stats.num_queued, stats.num_conservation_breaches) == (0, 0, 0)
    assert stats.host_pages is not None
    for pool, total in ((stats.device_pages, NUM_PAGES), (stats.host_pages, NUM_HOST_PAGES)):
        assert (pool.leased, pool.pinned) == (0, 0)
        assert pool.free + pool.cached == pool.total == total


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("backend", "write", "prefetch"),
    [("memory", "write_through", "auto"), ("file", "write_back", "wait_complete")],
)
async def test_ten_thousand_requests_are_answered_rightly_and_leave_nothing_behind(
    backend: Backend,
    write: WritePolicy,
    prefetch: PrefetchPolicy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)  # the faults have a line each, and caplog keeps them all
    states: list[SchedulerState] = []

    def remembered(**arguments: object) -> SchedulerState:
        states.append(SchedulerState(**arguments))  # type: ignore[arg-type]
        return states[-1]

    monkeypatch.setattr(app, "SchedulerState", remembered)
    monkeypatch.setattr(plan, "RESERVE_TOKENS", 0)  # so that pages run out
    tasks = asyncio.all_tasks()
    model = FakeModel(num_pages=NUM_PAGES, page_size=PAGE_SIZE)
    async with faulty_store(backend, tmp_path) as store:
        tiers, copier = fake_tiers(
            model,
            store,
            num_host_pages=NUM_HOST_PAGES,
            config=msgspec.structs.replace(
                TIERS,
                hicache_write_policy=write,
                hicache_storage_prefetch_policy=prefetch,
                hicache_storage_deadline=0.1,
            ),
            breaker=CircuitBreaker(open_seconds=0.02, max_open_seconds=0.1),
        )
        copier.fails_every = 50
        scheduler = SchedulerConfig(max_running_requests=8, max_queued_requests=100, chunked_prefill_size=64)
        async with tiered_engine(model, tiers, scheduler) as engine:
            hanging = asyncio.create_task(hang_now_and_then(store))
            soak = Soak(engine, model)
            await soak.run_until(4_000)
            warm_bytes = rss_bytes()
            await soak.run_until(10_000)
            grown_bytes = rss_bytes() - warm_bytes
            hanging.cancel()
            controller = engine.controller_stats()
    assert grown_bytes < RSS_SLACK_BYTES
    (state,) = states
    state.cache.check()
    stats = state.stats()
    assert_at_baseline(stats)
    assert state.tiers is not None
    assert state.tiers.is_quiet
    # All of it has happened, and often.
    assert sum(soak.ended.values()) == 10_000
    assert min(soak.ended.values()) > 300
    assert min(stats.num_device_tokens, stats.num_host_tokens, stats.num_storage_tokens) > 5_000
    assert stats.num_preemptions > 100
    assert controller is not None
    assert min(controller.num_storage_outcomes[name] for name in ("hit", "miss", "timeout", "error", *CORRUPT)) > 0
    assert asyncio.all_tasks() == tasks
