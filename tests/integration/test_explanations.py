"""Constructed misses, one for each cause and place: the explanation names the right reason, token and character.

All actors and the tiers are real but for the model and the tokenizer, of which a token is a byte.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import pytest
from tests.byte_tokenizer import byte_tokenizer
from tests.fake_model import FakeModel
from tests.fake_tiers import fake_tiers

from pagefall.actors.generation import TextGeneration
from pagefall.actors.runner import DeviceThread
from pagefall.actors.tokenizer import TokenizerActor
from pagefall.app import running_engine
from pagefall.config import CacheConfig, PrefetchPolicy, SchedulerConfig, TierConfig
from pagefall.insight.explanation import ExplainedMiss, Explanation
from pagefall.messages import RequestId, StepPlan, StepResult
from pagefall.text.requests import ChatMessage, ChatPrompt, GenerateRequest, ModelCard, Prompt, TextPrompt, TokenPrompt
from pagefall.tiers.breaker import CircuitBreaker
from pagefall_storage.faulty import BitFlip, Fail, Fault, Faulty, Hang, Operation, Slow, Vanish
from pagefall_storage.memory import MemoryBackend

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PAGE_SIZE: Final = 4

TEMPLATE: Final = (
    "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}<s>system\nBe kind.<e>\n{% endif %}"
    "<s>{{ m['role'] }}\n{{ m['content'] }}<e>\n{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
"""SmolLM2's, with shorter words."""

TRIMMING: Final = TEMPLATE.replace("m['content']", "m['content'] | trim")

DOCUMENT: Final = TextPrompt("a document of just forty bytes, and so on")
"""Ten pages, and the token that is always computed."""

NUM_WHOLE: Final = 40


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SteadyModel(FakeModel):
    """Every step takes the same time, or so it says."""

    forward_seconds = 1e-6

    def step(self, plan: StepPlan) -> StepResult:
        return msgspec.structs.replace(super().step(plan), forward_seconds=self.forward_seconds, sample_seconds=0.0)


class Rig:
    """An engine with as many tiers as are asked for. Its clock stands still, unless told otherwise."""

    def __init__(
        self,
        *,
        num_pages: int = 256,
        num_host_pages: int | None = None,
        has_store: bool = False,
        prefetch: PrefetchPolicy = "wait_complete",
        threshold: int = 8,
        deadline_seconds: float = 30.0,
        template: str = TEMPLATE,
        cache: CacheConfig = CacheConfig(page_size=PAGE_SIZE),  # noqa: B008 - frozen
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.model = SteadyModel(num_pages=num_pages, page_size=PAGE_SIZE)
        self.clock = Clock()
        self.store = Faulty(MemoryBackend())
        self.breaker = CircuitBreaker()
        self.tiers = None
        if num_host_pages is not None:
            config = TierConfig(
                enable_hierarchical_cache=True,
                hicache_storage_backend="memory" if has_store else None,
                hicache_storage_prefetch_policy=prefetch,
                hicache_prefetch_threshold=threshold,
                hicache_storage_deadline=deadline_seconds,
            )
            self.tiers, self.copier = fake_tiers(
                self.model,
                self.store if has_store else None,
                num_host_pages=num_host_pages,
                config=config,
                breaker=self.breaker,
            )
        self.engine: TokenizerActor
        self._template = template
        self._cache = cache
        self._clock = clock or self.clock
        self._names = (f"request-{number}" for number in itertools.count())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        num_pages = len(self.model.slots)
        with DeviceThread() as thread:
            async with running_engine(
                self.model,
                byte_tokenizer(self._template),
                ModelCard(id="fake", context_length=num_pages * PAGE_SIZE, vocab_size=257, created=0),
                thread=thread,
                num_pages=num_pages,
                eos_token_ids=frozenset(),
                cache=self._cache,
                scheduler=SchedulerConfig(max_running_requests=4, max_queued_requests=10, chunked_prefill_size=4096),
                tiers=self.tiers,
                clock=self._clock,
            ) as self.engine:
                yield

    async def begin(self, prompt: Prompt, *, salt: str = "", max_tokens: int = 1) -> tuple[RequestId, TextGeneration]:
        name = RequestId(next(self._names))
        request = GenerateRequest(
            request_id=name, prompt=prompt, max_tokens=max_tokens, ignore_eos=True, cache_salt=salt
        )
        return name, await self.engine.generate(request)

    async def ask(self, prompt: Prompt, *, salt: str = "", max_tokens: int = 1) -> Explanation:
        """The request, to its end, explained."""
        name, generation = await self.begin(prompt, salt=salt, max_tokens=max_tokens)
        async for _ in generation:
            pass
        return await self.explain(name)

    async def explain(self, name: RequestId) -> Explanation:
        record = self.engine.traffic.get(name)
        assert record is not None
        explained = await self.engine.explain(record)
        assert sum(explained.num_tokens_by_source.values()) == explained.num_prompt_tokens
        num_missed = sum(miss.num_tokens for miss in explained.misses)
        assert num_missed + explained.num_cached_tokens == explained.num_prompt_tokens
        return explained

    async def flush(self, *tiers: Any) -> None:
        await until(self._is_at_rest)
        await self.engine.flush_cache(set(tiers))

    async def leave_only_in_the_store(self, num_pages: int = NUM_WHOLE // PAGE_SIZE) -> None:
        await until(lambda: self._num_written() >= num_pages)
        await self.flush("device", "host")

    def _num_written(self) -> int:
        stats = self.engine.controller_stats()
        moved = None if stats is None else stats.transfers.get("host_to_storage")
        return 0 if moved is None else moved.num_pages

    def _is_at_rest(self) -> bool:
        stats = self.engine.stats()
        pools = [stats.device_pages, *([] if stats.host_pages is None else [stats.host_pages])]
        return all(pool.pinned == pool.leased == 0 and pool.free + pool.cached == pool.total for pool in pools)


async def until(condition: Callable[[], bool]) -> None:
    """Lets all others run; time does not matter, only that it happens."""
    while not condition():
        await asyncio.sleep(0.001)


def reasons(explained: Explanation) -> list[tuple[str, int, int]]:
    """Reason, first token, number of tokens."""
    return [(miss.reason, miss.first_token, miss.num_tokens) for miss in explained.misses]


def first(explained: Explanation, reason: str, *, first_token: int = 0) -> ExplainedMiss:
    miss = explained.misses[0]
    assert (miss.reason, miss.first_token) == (reason, first_token)
    return miss


def chat(
    *contents: str, roles: tuple[str, ...] = ("system", "user", "assistant", "user"), **settings: Any
) -> ChatPrompt:
    return ChatPrompt(messages=tuple(map(ChatMessage, roles, contents)), **settings)


CONTINUED: Final[dict[str, Any]] = {"add_generation_prompt": False, "continue_final_message": True}
NO_SYSTEM: Final[dict[str, Any]] = {"roles": ("user", "assistant", "user")}

DIVERGED: Final[dict[str, tuple[ChatPrompt, ChatPrompt, tuple[int | None, str, int | None]]]] = {
    "in the system prompt": (
        chat("It is 12:47. You are kind.", "Hello"),
        chat("It is 12:45. You are kind.", "Hello"),
        (0, "content", 10),
    ),
    "at the first character of the system prompt": (chat("A b c d", "u"), chat("X b c d", "u"), (0, "content", 0)),
    "in the user's message": (chat("s", "What is a dog?"), chat("s", "What is a cat?"), (1, "content", 10)),
    "at token 3": (
        chat("x", "u", roles=("system", "user")),
        chat("x", "u", roles=("user", "user")),
        (0, "template", None),
    ),
    "at the first token of a page": (chat("12345X", "u"), chat("12345Y", "u"), (0, "content", 5)),
    "at the second token of a page": (chat("123456X", "u"), chat("123456Y", "u"), (0, "content", 6)),
    "at the last token of a page": (chat("12345678X", "u"), chat("12345678Y", "u"), (0, "content", 8)),
    "after multi-byte characters": (chat("안녕하세요 👋 one", "u"), chat("안녕하세요 👋 two", "u"), (0, "content", 8)),
    "within a multi-byte character": (chat("안녕 👋👍", "u"), chat("안녕 👋👎", "u"), (0, "content", 4)),
    "in a message that repeats another": (
        chat("s", "same text", "same text", "same text 1"),
        chat("s", "same text", "same text", "same text 2"),
        (3, "content", 10),
    ),
    "in a content that looks like the template": (
        chat("s", "a<e>\n<s>assistant\nb"),
        chat("s", "a<e>\n<s>assistant\nc"),
        (1, "content", 18),
    ),
    "in the template, by a system prompt that it adds": (
        chat("Be kind!", "u"),
        chat("u", **NO_SYSTEM),
        (0, "template", None),
    ),
    "behind a system prompt that the template adds": (
        chat("one", **NO_SYSTEM),
        chat("two", **NO_SYSTEM),
        (0, "content", 0),
    ),
    "in a role": (
        chat("s", "u", roles=("system", "assistant")),
        chat("s", "u", roles=("system", "user")),
        (1, "template", None),
    ),
    "where a message ends that went on": (chat("s", "and so on, on"), chat("s", "and so on"), (1, "content", 9)),
    "in a message to be continued": (
        chat("s", "u", "I think not, and so", **CONTINUED),
        chat("s", "u", "I think so, and so on", **CONTINUED),
        (2, "content", 8),
    ),
    "in a content that the template trims": (
        chat("  s  ", "\n\n one 1 "),
        chat("  s  ", "\n\n one 2 "),
        (1, "content", 7),
    ),
}


@pytest.mark.parametrize("place", DIVERGED)
async def test_a_prompt_that_diverged_names_the_message_and_its_first_character_that_differs(place: str) -> None:
    theirs, ours, expected = DIVERGED[place]
    template = TRIMMING if "trims" in place else TEMPLATE
    rig = Rig(template=template)
    async with rig.running():
        before = await rig.ask(theirs)
        explained = await rig.ask(ours)
    found = explained.divergence
    assert found is not None
    assert found.has_other
    assert found.other_request_id == before.request_id
    assert (found.message_index, found.message_part, found.message_character) == expected
    ours_text, theirs_text = (rendered(prompt, template) for prompt in (ours, theirs))
    token = num_common(ours_text.encode(), theirs_text.encode())
    assert found.token_index == token
    assert found.character == num_common(ours_text, theirs_text)
    assert explained.num_cached_tokens == token // PAGE_SIZE * PAGE_SIZE
    first(explained, "diverged", first_token=token // PAGE_SIZE * PAGE_SIZE)
    assert found.snippet is not None
    assert found.snippet.before == ours_text[max(0, found.character - 60) : found.character]
    assert found.snippet.prompt == ours_text[found.character : found.character + 60]
    assert found.snippet.other is not None
    theirs_rest = theirs_text[found.character :]
    assert theirs_rest.startswith(found.snippet.other[: len(theirs_rest)])


def rendered(prompt: ChatPrompt, template: str) -> str:
    return byte_tokenizer(template).apply_chat_template(
        prompt.messages,
        add_generation_prompt=prompt.add_generation_prompt,
        continue_final_message=prompt.continue_final_message,
    )


def num_common(one: bytes | str, other: bytes | str) -> int:
    return next(index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)


async def test_a_prompt_that_nobody_asked_before_is_new() -> None:
    rig = Rig()
    async with rig.running():
        explained = await rig.ask(DOCUMENT)
    assert reasons(explained) == [("never_seen", 0, 40), ("page_tail", 40, 1)]
    assert explained.divergence is None


async def test_the_next_turn_of_a_conversation_is_new_behind_the_answer() -> None:
    rig = Rig()
    tokens = tuple(DOCUMENT.text.encode())
    async with rig.running():
        _, generation = await rig.begin(DOCUMENT, max_tokens=4)
        answer = tuple([token_id async for delta in generation for token_id in delta.token_ids])
        turn = await rig.ask(TokenPrompt((*tokens, *answer, *b" and then more of it")))
    # The last token of an answer is not computed, so its page is no whole one.
    assert reasons(turn) == [("never_seen", 44, 20), ("page_tail", 64, 1)]
    assert turn.divergence is not None
    assert (turn.divergence.token_index, turn.divergence.has_other) == (45, False)
    assert turn.divergence.is_decoded_text
    assert turn.divergence.snippet is not None
    assert turn.divergence.snippet.prompt == " and then more of it"
    assert turn.divergence.snippet.other is None


async def test_of_a_prompt_that_is_cached_the_page_with_its_last_token_is_left() -> None:
    rig = Rig()
    async with rig.running():
        await rig.ask(DOCUMENT)
        assert reasons(await rig.ask(DOCUMENT)) == [("page_tail", 40, 1)]


async def test_a_full_device_pool_is_why_a_page_went() -> None:
    rig = Rig(num_pages=16)
    async with rig.running():
        await rig.ask(DOCUMENT)
        rig.clock.now = 100.0
        await rig.ask(TextPrompt("?" * 60))
        rig.clock.now = 142.0
        miss = first(await rig.ask(DOCUMENT), "evicted")
    assert (miss.tier, miss.cause, miss.seconds_ago, miss.num_tokens) == ("device", "pool_full", 42.0, 40)
    assert "evicted from device memory 42 s earlier because it was full" in miss.explanation


async def test_a_flush_of_the_device_is_why_a_page_went() -> None:
    rig = Rig()
    async with rig.running():
        await rig.ask(DOCUMENT)
        await rig.flush("device")
        rig.clock.now = 5.0
        miss = first(await rig.ask(DOCUMENT), "evicted")
    assert (miss.tier, miss.cause, miss.seconds_ago) == ("device", "flushed", 5.0)


async def test_a_full_host_pool_is_why_a_page_went() -> None:
    rig = Rig(num_host_pages=16)
    async with rig.running():
        await rig.ask(DOCUMENT)
        await rig.flush("device")
        for letter in "?!":
            await rig.ask(TextPrompt(letter * 60))
            await rig.flush("device")
        miss = first(await rig.ask(DOCUMENT), "evicted")
    assert (miss.tier, miss.cause) == ("host", "pool_full")


async def test_a_flush_of_the_host_is_why_a_page_went() -> None:
    rig = Rig(num_host_pages=64)
    async with rig.running():
        await rig.ask(DOCUMENT)
        await until(lambda: (rig.engine.stats().host_pages or rig.engine.stats().device_pages).cached >= 10)
        await rig.flush("device")
        await rig.flush("host")
        miss = first(await rig.ask(DOCUMENT), "evicted")
    assert (miss.tier, miss.cause) == ("host", "flushed")


async def test_a_page_that_left_the_store_meanwhile_was_there() -> None:
    rig = Rig(num_host_pages=64, has_store=True)
    async with rig.running():
        await rig.ask(DOCUMENT)
        await rig.leave_only_in_the_store()
        keys = [value.key async for value in rig.store.scan()]
        await rig.store.delete(keys)
        miss = first(await rig.ask(DOCUMENT), "evicted")
    assert (miss.tier, miss.cause) == ("storage", "gone_from_store")


async def test_another_salt_is_told_to_operators() -> None:
    rig = Rig()
    async with rig.running():
        await rig.ask(DOCUMENT, salt="one")
        explained = await rig.ask(DOCUMENT, salt="two")
    assert reasons(explained) == [("other_salt", 0, 40), ("page_tail", 40, 1)]


async def test_few_tokens_are_not_asked_of_the_store() -> None:
    rig = Rig(num_host_pages=64, has_store=True, threshold=100)
    async with rig.running():
        await rig.ask(DOCUMENT)
        await rig.leave_only_in_the_store()
        assert reasons(await rig.ask(DOCUMENT)) == [("below_threshold", 0, 40), ("page_tail", 40, 1)]


async def test_loading_that_would_take_longer_is_told_with_the_numbers() -> None:
    rig = Rig(num_host_pages=64, has_store=True, prefetch="auto", clock=time.monotonic)
    other = TextPrompt("something else that is forty bytes long!!")
    async with rig.running():
        await rig.ask(DOCUMENT)
        await rig.ask(other)
        await rig.leave_only_in_the_store(20)
        rig.store.inject(Slow(0.2), on={"get"})
        await rig.ask(other)  # so the store is known to be slow
        explained = await rig.ask(DOCUMENT)
    miss = first(explained, "slower_than_recompute")
    assert miss.load_seconds is not None
    assert miss.compute_seconds is not None
    assert miss.load_seconds > miss.compute_seconds
    assert "would have taken" in miss.explanation


FAULTS: Final[dict[str, tuple[Fault, Operation, str, str]]] = {
    "a lookup that does not answer": (Hang(), "contains", "timed_out", "asking what it has took too long"),
    "a read that does not end": (Hang(), "get", "timed_out", "reading it took too long"),
    "a lookup that fails": (Fail(), "contains", "store_down", "it failed"),
    "a read that fails": (Fail(), "get", "store_down", "it failed"),
    "a bit that flipped": (BitFlip(), "get", "corrupt", "damaged"),
    "a value that vanished": (Vanish(), "get", "evicted", "does not have it any more"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_the_store_did_wrong_is_told(fault: str) -> None:
    injected, operation, reason, words = FAULTS[fault]
    is_hanging = isinstance(injected, Hang)
    rig = Rig(num_host_pages=64, has_store=True, deadline_seconds=1.0 if is_hanging else 30.0)
    async with rig.running():
        await rig.ask(DOCUMENT)
        await rig.leave_only_in_the_store()
        rig.store.inject(injected, on={operation})
        explained = await rig.ask(DOCUMENT)
        rig.store.heal()
    assert words in first(explained, reason).explanation
    assert reasons(explained)[-1] == ("page_tail", 40, 1)


async def test_one_damaged_page_is_told_from_those_around_it() -> None:
    rig = Rig(num_host_pages=64, has_store=True)
    async with rig.running():
        await rig.ask(TextPrompt(DOCUMENT.text[: 3 * PAGE_SIZE + 1]))
        await rig.leave_only_in_the_store(3)
        head = {value.key async for value in rig.store.scan()}
        await rig.ask(TextPrompt(DOCUMENT.text[: 4 * PAGE_SIZE + 1]))
        await rig.leave_only_in_the_store(4)
        [fourth] = {value.key async for value in rig.store.scan()} - head
        await rig.ask(DOCUMENT)
        await rig.leave_only_in_the_store()
        rig.store.inject(BitFlip(), on={"get"}, keys={fourth})
        explained = await rig.ask(DOCUMENT)
    assert reasons(explained) == [("corrupt", 12, 4), ("page_tail", 40, 1)]
    assert explained.num_tokens_by_source["storage"] == 36


async def test_a_store_whose_breaker_is_open_is_not_asked() -> None:
    rig = Rig(num_host_pages=64, has_store=True)
    async with rig.running():
        await rig.ask(DOCUMENT)
        await rig.leave_only_in_the_store()
        rig.store.inject(Fail())
        for _ in range(4):
            explained = await rig.ask(DOCUMENT)
            await rig.flush("device", "host")
        rig.store.heal()
    assert "was not asked" in first(explained, "store_down").explanation


async def test_best_effort_does_not_wait_for_the_store() -> None:
    rig = Rig(num_host_pages=64, has_store=True, prefetch="best_effort")
    async with rig.running():
        await rig.ask(DOCUMENT)
        await rig.leave_only_in_the_store()
        rig.store.inject(Hang(), on={"contains"})
        explained = await rig.ask(DOCUMENT)
        rig.store.heal()
    assert "the store had not said what it has" in first(explained, "timed_out").explanation


async def test_a_host_pool_without_room_for_what_the_store_has() -> None:
    rig = Rig(num_host_pages=12, has_store=True)
    async with rig.running():
        await rig.ask(DOCUMENT)
        await rig.leave_only_in_the_store()
        explained = await rig.ask(DOCUMENT)
    assert explained.num_tokens_by_source["storage"] == 24
    assert reasons(explained) == [("no_room", 24, 16), ("page_tail", 40, 1)]


async def test_a_copy_to_the_device_that_fails_is_told() -> None:
    rig = Rig(num_host_pages=64)
    async with rig.running():
        await rig.ask(DOCUMENT)
        await until(lambda: rig.copier.num_offloads > 0)
        await rig.flush("device")
        rig.copier.fails_every = 1
        first(await rig.ask(DOCUMENT), "copy_failed")


async def test_without_a_cache_that_is_the_reason() -> None:
    rig = Rig(cache=CacheConfig(page_size=PAGE_SIZE, disable_radix_cache=True))
    async with rig.running():
        await rig.ask(DOCUMENT)
        assert reasons(await rig.ask(DOCUMENT)) == [("cache_disabled", 0, 41)]


async def test_a_request_that_is_given_up_in_the_queue_has_reached_nothing() -> None:
    rig = Rig(num_host_pages=64, has_store=True)
    async with rig.running():
        await rig.ask(DOCUMENT)
        await rig.leave_only_in_the_store()
        rig.store.inject(Hang(), on={"contains"})
        name, generation = await rig.begin(DOCUMENT)
        await generation.aclose()
        record = rig.engine.traffic.get(name)
        assert record is not None
        await until(lambda: record.ended_at is not None)
        rig.store.heal()
        explained = await rig.explain(name)
    assert (explained.state, explained.abort_reason) == ("ended", "client_gone")
    assert reasons(explained) == [("unreached", 0, 41)]
