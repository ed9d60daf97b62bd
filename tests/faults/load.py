"""Requests that come without end while a store fails under them, and what they may not notice of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from tests.faults.conftest import Truth
from tests.faults.rig import NUM_ANSWER_TOKENS, Clock, Engine, LoadedModel, engine_over, prompt_of, until

from pagefall.messages import Tier
from pagefall.tiers.breaker import CircuitBreaker
from pagefall_storage.faulty import Faulty
from pagefall_storage.protocol import Key, StorageBackend

PROMPTS: Final = [prompt_of(seed, 150 + 10 * seed) for seed in range(6)]
_NEIGHBOURS_PROMPT: Final = prompt_of(99, 12)
"""Shorter than a page: nothing of it is ever in a store."""
_NUM_NEIGHBOUR_TOKENS: Final = 300

_NUM_WORKERS: Final = 4
DEADLINE_SECONDS: Final = 2.0
"""Of an operation, where a test waits for it to pass: much longer than one takes on a busy machine."""


class Asked(msgspec.Struct, frozen=True):
    """A prompt that was answered as by a cold run. `num_waited`: tokens of the neighbour's until its first token."""

    number: int
    by_tier: dict[Tier, int]
    num_waited: int


class Load:
    """Workers ask for `PROMPTS`, of which nothing is left on the device or the host whenever one is asked for. A
    neighbour, who needs no store, has long answers written beside them. The first wrong answer, error or stalled
    neighbour ends the test.
    """

    def __init__(self, engine: Engine, truth: Truth) -> None:
        self._engine = engine
        self._truth = truth
        self.asked: list[Asked] = []
        """In the order in which they were answered."""
        self._next_number = 0
        self._num_neighbour_tokens = 0
        self._num_neighbour_answers = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._be_the_neighbour())
            for _ in range(_NUM_WORKERS):
                tasks.create_task(self._work())

    async def go_on(self) -> list[Asked]:
        """Until as many as there are prompts were asked and answered from now on; these."""
        first = self._next_number

        def later() -> list[Asked]:
            return [asked for asked in self.asked if asked.number >= first]

        await until(lambda: len(later()) >= len(PROMPTS))
        return later()

    async def _work(self) -> None:
        while True:
            number = self._next_number
            self._next_number += 1
            prompt = PROMPTS[number % len(PROMPTS)]
            await self._engine.flush("device", "host")
            before, num_answers = self._num_neighbour_tokens, self._num_neighbour_answers
            at_tokens = list[int]()

            def note(_: int, at_tokens: list[int] = at_tokens) -> None:
                at_tokens.append(self._num_neighbour_tokens)

            answer = await self._engine.ask(prompt, on_tokens=note)
            assert answer.token_ids == self._truth(prompt), "a wrong answer"
            its_tokens = self._num_neighbour_tokens - before
            if self._num_neighbour_answers == num_answers:  # else it may have waited for its turn in between
                assert its_tokens >= NUM_ANSWER_TOKENS // 2, "it has a token in every step, some held back as no text"
            self.asked.append(Asked(number, answer.by_tier, at_tokens[0] - before))

    async def _be_the_neighbour(self) -> None:
        def count(num_tokens: int) -> None:
            self._num_neighbour_tokens += num_tokens

        while True:
            answer = await self._engine.ask(_NEIGHBOURS_PROMPT, num_tokens=_NUM_NEIGHBOUR_TOKENS, on_tokens=count)
            assert answer.token_ids == self._truth(_NEIGHBOURS_PROMPT, _NUM_NEIGHBOUR_TOKENS)
            self._num_neighbour_answers += 1


class Scene:
    """An engine under load over a store, whose breaker's clock stands still."""

    def __init__(self, engine: Engine, load: Load, store: Faulty, clock: Clock) -> None:
        self.engine = engine
        self.load = load
        self._store = store
        self._clock = clock

    async def assert_one_wait(self) -> None:
        """The store has just become silent. Some wait until the deadline; the neighbour has its tokens meanwhile."""
        num_answered = len(self.load.asked)
        await self.load.go_on()
        num_waited = max(asked.num_waited for asked in self.load.asked[num_answered:])
        assert num_waited >= 2 * NUM_ANSWER_TOKENS, "the neighbour waited too"
        assert self.failures()["timeout"] >= 1

    async def until_left_alone(self) -> list[Asked]:
        """The breaker opens, and service goes on without the store. What was asked for since."""
        await self.engine.until_breaker("open")
        num_calls = self._store.num_calls.copy()
        asked = await self.load.go_on()
        assert self._store.num_calls == num_calls
        return asked

    async def until_used_again(self) -> None:
        """Its time is over, and the breaker closes."""
        self._clock.now += 100.0
        await self.engine.until_breaker("closed")

    def failures(self) -> dict[str, int]:
        """Of the store, by kind."""
        return self.engine.store().num_storage_failures


@asynccontextmanager
async def under_load(
    loaded: LoadedModel, truth: Truth, store: StorageBackend, *, deadline_seconds: float = 5 * DEADLINE_SECONDS
) -> AsyncIterator[Scene]:
    """The store has the pages of all prompts. Leaving this takes the load away, and finds full service: each of them
    comes from the store, as it did before.
    """
    truth(_NEIGHBOURS_PROMPT, _NUM_NEIGHBOUR_TOKENS)  # takes its time, and the loop's, so not while the load is on it
    counted, clock, breaker = Faulty(store), Clock(), CircuitBreaker(random=lambda: 1.0)
    async with engine_over(loaded, counted, deadline_seconds=deadline_seconds, breaker=breaker, clock=clock) as engine:
        await _assert_full_service(engine, loaded, truth)
        load = Load(engine, truth)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(load.run())
            yield Scene(engine, load, counted, clock)
            running.cancel()
        await _assert_full_service(engine, loaded, truth)
        assert engine.store().breaker == "closed"


async def _assert_full_service(engine: Engine, loaded: LoadedModel, truth: Truth) -> None:
    await engine.leave_only_in("storage")
    await asyncio.gather(*map(engine.ask, PROMPTS))  # what is missing there is written
    await engine.leave_only_in("storage")
    answers = await asyncio.gather(*map(engine.ask, PROMPTS))
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert answer.token_ids == truth(prompt)
        assert answer.by_tier == {"storage": loaded.num_cacheable_pages(prompt) * loaded.page_size}


def num_stored_tokens(asked: list[Asked]) -> int:
    """That came from the store."""
    return sum(one.by_tier.get("storage", 0) for one in asked)


def page_names(loaded: LoadedModel) -> list[Key]:
    """Of all prompts' pages."""
    return [name for prompt in PROMPTS for name in loaded.names(prompt)]
