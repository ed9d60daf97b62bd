from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.byte_tokenizer import EOS
from tests.unit.actors.test_compiling import FakeGrammars

from pagefall.actors.compiling import ConstraintCompiler, GrammarCompiler
from pagefall.actors.encoding import PromptEncoder
from pagefall.actors.generation import TextGeneration
from pagefall.actors.kv_log import KvEventLog
from pagefall.actors.mailbox import Mailbox
from pagefall.actors.tokenizer import TokenizerActor, scheduler_mailbox_capacity
from pagefall.config import InsightConfig
from pagefall.errors import RequestError
from pagefall.insight.traffic import TrafficLog
from pagefall.messages import (
    Accepted,
    AttachStorage,
    CacheFlushed,
    Cancel,
    ControllerStats,
    DetachStorage,
    FinishReason,
    FlushCache,
    FromScheduler,
    PoolStats,
    Rejected,
    RequestId,
    RequestOutput,
    SchedulerStats,
    StepOutput,
    StorageChanged,
    Submit,
    Tier,
    ToScheduler,
)
from pagefall.text.constraints import Regex
from pagefall.text.grammar import grammar_text
from pagefall.text.requests import ChatMessage, ChatPrompt, GenerateRequest, ModelCard, TextDelta, TextPrompt
from pagefall.text.tokenizer import Tokenizer

pytestmark = pytest.mark.anyio

STATS = SchedulerStats(
    num_running=1, num_queued=2, device_pages=PoolStats(total=9, free=9, leased=0, cached=0, pinned=0)
)


class World:
    """The tokenizer with the test in the scheduler's place."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        encoder: PromptEncoder,
        *,
        max_outstanding: int,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.at_scheduler = Mailbox[ToScheduler](scheduler_mailbox_capacity(max_outstanding))
        self.to_tokenizer = Mailbox[FromScheduler](100)
        self.engine = TokenizerActor(
            self.to_tokenizer,
            self.at_scheduler.address,
            tokenizer,
            encoder,
            ConstraintCompiler(grammars, max_waiting=4),
            model=ModelCard(id="m", context_length=100, vocab_size=300, created=0),
            eos_token_ids=frozenset([EOS]),
            max_outstanding=max_outstanding,
            stats=lambda: STATS,
            traffic=TrafficLog(InsightConfig()),
            kv_log=KvEventLog(namespace=b"", page_size=16),
            controller_stats=ControllerStats,
        )

    async def received(self) -> list[ToScheduler]:
        await settle()
        return self.at_scheduler.take_all()

    async def say(self, message: FromScheduler) -> None:
        await self.to_tokenizer.address.send(message)
        await settle()

    async def say_tokens(self, name: str, text: bytes = b"", *, finish_reason: FinishReason | None = None) -> None:
        output = RequestOutput(request_id=RequestId(name), token_ids=tuple(text), finish_reason=finish_reason)
        await self.say(StepOutput(outputs=(output,)))

    async def accepted(self, name: str, **options: Any) -> TextGeneration:
        """A generation that the scheduler has accepted; its `Submit` is taken."""
        generating = asyncio.create_task(self.engine.generate(request(name, **options)))
        [submit] = await self.received()
        assert isinstance(submit, Submit)
        await self.say(Accepted(request_id=RequestId(name)))
        return await generating


@pytest.fixture
async def world(tokenizer: Tokenizer) -> AsyncIterator[World]:
    async with running(tokenizer) as world:
        yield world


@asynccontextmanager
async def running(
    tokenizer: Tokenizer, *, max_outstanding: int = 4, grammars: GrammarCompiler | None = None
) -> AsyncIterator[World]:
    with PromptEncoder(tokenizer, max_waiting=4) as encoder:
        world = World(tokenizer, encoder, max_outstanding=max_outstanding, grammars=grammars)
        task = asyncio.create_task(world.engine.run())
        try:
            yield world
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def request(name: str, text: str = "hello", **options: Any) -> GenerateRequest:
    return GenerateRequest(request_id=RequestId(name), prompt=TextPrompt(text), **options)


def cancelled(name: str, reason: Any) -> Cancel:
    return Cancel(request_id=RequestId(name), reason=reason)


async def test_a_request_is_encoded_and_submitted_with_everything_it_asked_for(world: World) -> None:
    wanted = request("a", max_tokens=7, stop_token_ids=frozenset([9]), cache_salt="s", priority=3)
    generating = asyncio.create_task(world.engine.generate(wanted))
    [submit] = await world.received()
    assert isinstance(submit, Submit)
    assert submit.token_ids.tolist() == list(b"hello")
    assert (submit.stop.max_tokens, submit.stop.stop_token_ids) == (7, frozenset([9, EOS]))
    assert (submit.cache_salt, submit.priority) == ("s", 3)
    assert not generating.done(), "the scheduler has not accepted it yet"
    await world.say(Accepted(request_id=RequestId("a")))
    assert isinstance(await generating, TextGeneration)


async def test_without_max_tokens_an_answer_may_fill_the_context_and_without_eos_only_own_stops_count(
    world: World,
) -> None:
    generating = asyncio.create_task(world.engine.generate(request("a", ignore_eos=True)))
    [submit] = await world.received()
    assert isinstance(submit, Submit)
    assert (submit.stop.max_tokens, submit.stop.stop_token_ids) == (95, frozenset())
    generating.cancel()


async def test_the_consumer_reads_deltas_up_to_the_last(world: World) -> None:
    generation = await world.accepted("a")
    await world.say_tokens("a", b"h")
    assert await anext(generation) == TextDelta(text="h", token_ids=(104,), prompt_tail="hello")
    await world.say_tokens("a", b"i", finish_reason="length")
    last = await anext(generation)
    assert (last.text, last.finish_reason) == ("i", "length")
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (5, 2)
    assert [delta async for delta in generation] == []


async def test_a_consumer_that_waits_is_woken(world: World) -> None:
    generation = await world.accepted("a")
    reading = asyncio.create_task(anext(generation))
    await settle()
    await world.say_tokens("a", b"h")
    assert (await reading).text == "h"


async def test_a_slow_consumer_gets_one_delta_and_holds_up_nobody(world: World) -> None:
    slow, quick = await world.accepted("slow"), await world.accepted("quick")
    for byte in b"hello":
        both = (RequestOutput(request_id=RequestId(name), token_ids=(byte,)) for name in ("slow", "quick"))
        await world.say(StepOutput(outputs=tuple(both)))
        assert (await anext(quick)).text == chr(byte)
    assert (await anext(slow)).text == "hello"


async def test_a_stop_string_ends_the_answer_and_tells_the_scheduler_once(world: World) -> None:
    generation = await world.accepted("a", stop=("END",))
    await world.say_tokens("a", b"so END")
    last = await anext(generation)
    assert (last.text, last.finish_reason) == ("so ", "stop")
    assert await world.received() == [cancelled("a", "stop")]
    await world.say_tokens("a", b"x")  # was on its way
    assert await world.received() == []
    await world.say_tokens("a", finish_reason="stop")
    assert [delta async for delta in generation] == []


async def test_a_consumer_that_leaves_cancels_once(world: World) -> None:
    generation = await world.accepted("a")
    await world.say_tokens("a", b"h")
    await generation.aclose()
    await generation.aclose()
    assert await world.received() == [cancelled("a", "abort")]
    assert [delta async for delta in generation] == []


async def test_leaving_a_complete_answer_cancels_nothing(world: World) -> None:
    generation = await world.accepted("a")
    await world.say_tokens("a", b"h", finish_reason="length")
    await generation.aclose()
    assert await world.received() == []


async def test_a_request_cancelled_before_it_was_accepted_is_withdrawn(world: World) -> None:
    generating = asyncio.create_task(world.engine.generate(request("a")))
    await world.received()
    generating.cancel()
    assert await world.received() == [cancelled("a", "abort")]
    await world.say(Accepted(request_id=RequestId("a")))
    await world.say_tokens("a", finish_reason="abort")
    assert world.engine.num_outstanding == 0


@pytest.mark.parametrize("length", [5, 5000])
async def test_a_request_cancelled_while_it_is_encoded_never_reaches_the_scheduler(world: World, length: int) -> None:
    generating = asyncio.create_task(world.engine.generate(request("a", "x" * length)))
    generating.cancel()
    assert await world.received() == []
    assert world.engine.num_outstanding == 0


async def test_a_rejected_request_is_a_503_that_says_when_to_come_back(world: World) -> None:
    generating = asyncio.create_task(world.engine.generate(request("a")))
    await world.received()
    await world.say(Rejected(request_id=RequestId("a"), num_queued=12))
    with pytest.raises(RequestError, match="12 requests wait") as refused:
        await generating
    error = refused.value
    assert (error.status, error.type, error.retry_after_seconds) == (503, "service_unavailable_error", 1)
    assert world.engine.num_outstanding == 0


async def test_a_request_larger_than_the_pool_is_told_the_numbers(world: World) -> None:
    generating = asyncio.create_task(world.engine.generate(request("a", max_tokens=60)))
    await world.received()
    await world.say(Rejected(request_id=RequestId("a"), num_queued=0, reason="never_fits", num_pool_tokens=64))
    with pytest.raises(RequestError, match=r"65 tokens.*holds 64") as refused:
        await generating
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")


async def test_a_prompt_that_is_too_long_is_refused_and_frees_its_place(world: World) -> None:
    for _ in range(10):
        with pytest.raises(RequestError, match="maximum context length is 100 tokens"):
            await world.engine.generate(request("a", "x" * 100))
    chat = ChatPrompt(messages=(ChatMessage("user", "x" * 100),))
    with pytest.raises(RequestError) as refused:
        await world.engine.generate(GenerateRequest(request_id=RequestId("b"), prompt=chat))
    assert refused.value.param == "messages"
    assert await world.received() == []


async def test_the_front_door_lets_in_no_more_than_may_run_and_wait(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, max_outstanding=2) as world:
        generation = await world.accepted("a")
        await world.accepted("b")
        for _ in range(10_000):
            with pytest.raises(RequestError, match="full: 2 requests run or wait") as refused:
                await world.engine.generate(request("c"))
            assert refused.value.status == 503
        assert await world.received() == []
        # A request whose client has left keeps its place until the scheduler has ended it.
        await generation.aclose()
        with pytest.raises(RequestError):
            await world.engine.generate(request("c"))
        await world.say_tokens("a", finish_reason="abort")
        await world.received()
        await world.accepted("c")


async def test_start_and_abort_storms_never_overfill_the_schedulers_mailbox(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, max_outstanding=2) as world:
        refused = 0
        for index in range(200):
            generating = asyncio.create_task(world.engine.generate(request(str(index))))
            await asyncio.sleep(0)
            generating.cancel()
            [outcome] = await asyncio.gather(generating, return_exceptions=True)
            refused += isinstance(outcome, RequestError)
        assert refused == 198
        assert len(await world.received()) == 4


async def test_flushing_waits_for_the_schedulers_count(world: World) -> None:
    flushing = asyncio.create_task(world.engine.flush_cache({"host", "storage"}))
    [flush] = await world.received()
    assert isinstance(flush, FlushCache)
    assert flush.tiers == {"host", "storage"}
    flushed = CacheFlushed(flush_id=flush.flush_id, num_pages={"host": 5, "storage": 0}, storage_error="gone")
    await world.say(flushed)
    assert await flushing == flushed


@pytest.mark.parametrize(("tier", "forgets"), [("device", True), ("host", False)])
async def test_flushing_the_device_forgets_the_answers_too(
    world: World, monkeypatch: pytest.MonkeyPatch, tier: Tier, forgets: bool
) -> None:
    forgotten: list[bool] = []
    monkeypatch.setattr(world.engine._encoder, "forget_answers", lambda: forgotten.append(True))
    flushing = asyncio.create_task(world.engine.flush_cache({tier}))
    [flush] = await world.received()
    assert isinstance(flush, FlushCache)
    await world.say(CacheFlushed(flush_id=flush.flush_id, num_pages={}))
    await flushing
    assert forgotten == [True] * forgets


async def test_a_requests_grammar_is_held_until_the_scheduler_has_ended_it(tokenizer: Tokenizer) -> None:
    grammars = FakeGrammars()
    async with running(tokenizer, grammars=grammars) as world:
        held = grammar_text(Regex(pattern="a"))
        for name in ("one", "two"):
            await world.accepted(name, constraint=Regex(pattern="a"))
        with pytest.raises(RequestError, match="maximum context length"):
            await world.engine.generate(request("three", "x" * 200, constraint=Regex(pattern="a")))
        assert grammars.held == {held: 2}
        await world.say_tokens("one", b"a", finish_reason="stop")
        assert grammars.held == {held: 1}
        world.engine.abort_all()
        assert grammars.held == {held: 1}
        await world.say_tokens("two", finish_reason="abort")
        assert grammars.held == {held: 0}


async def test_too_many_flushes_at_once_are_refused(world: World) -> None:
    flushing = [asyncio.create_task(world.engine.flush_cache()) for _ in range(17)]
    await settle()
    [outcome] = [task.exception() for task in flushing if task.done()]
    assert isinstance(outcome, RequestError)
    for task in flushing:
        task.cancel()


async def test_draining_refuses_newcomers_and_waits_for_those_inside(world: World) -> None:
    generation = await world.accepted("a")
    draining = asyncio.create_task(world.engine.drain())
    await settle()
    assert not draining.done()
    assert not world.engine.ready
    with pytest.raises(RequestError, match="shutting down"):
        await world.engine.generate(request("b"))
    await world.say_tokens("a", b"h", finish_reason="length")
    await draining
    assert (await anext(generation)).text == "h"


async def test_aborting_all_ends_every_answer_properly(world: World) -> None:
    generation = await world.accepted("a")
    world.engine.abort_all()
    assert await world.received() == [cancelled("a", "abort")]
    await world.say_tokens("a", finish_reason="abort")
    assert (await anext(generation)).finish_reason == "abort"


async def test_when_the_tokenizer_ends_nobody_is_left_waiting(tokenizer: Tokenizer) -> None:
    async with running(tokenizer) as world:
        generation = await world.accepted("a")
        reading = asyncio.create_task(anext(generation))
        waiting = asyncio.create_task(world.engine.generate(request("b")))
        flushing = asyncio.create_task(world.engine.flush_cache())
        detaching = asyncio.create_task(world.engine.detach_storage())
        await settle()
        world.engine.close()
        outcomes = await asyncio.gather(reading, waiting, flushing, detaching, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [RequestError] * 4
    await generation.aclose()


async def test_a_change_of_the_store_ends_with_the_schedulers_word(world: World) -> None:
    attaching = asyncio.create_task(world.engine.attach_storage("file", {"path": "x"}))
    assert await world.received() == [AttachStorage(backend="file", extra_config={"path": "x"})]
    assert not attaching.done()
    await world.say(StorageChanged(is_attached=True))
    await attaching
    detaching = asyncio.create_task(world.engine.detach_storage())
    assert await world.received() == [DetachStorage()]
    await world.say(StorageChanged(is_attached=False))
    await detaching


@pytest.mark.parametrize(
    ("changed", "status", "message"),
    [
        (
            StorageChanged(is_attached=True, error="unknown field", param="extra_config"),
            400,
            "unknown field. The store that was attached stays.",
        ),
        (
            StorageChanged(is_attached=False, error="no answer within 5 s"),
            503,
            "The store does not answer: no answer within 5 s. No store is attached.",
        ),
    ],
)
async def test_a_store_that_is_refused_is_an_error_that_names_the_field(
    world: World, changed: StorageChanged, status: int, message: str
) -> None:
    attaching = asyncio.create_task(world.engine.attach_storage("file", {}))
    await settle()
    await world.say(changed)
    with pytest.raises(RequestError) as refused:
        await attaching
    assert (refused.value.status, refused.value.message, refused.value.param) == (status, message, changed.param)


async def test_one_change_of_the_store_goes_after_the_other_though_its_client_has_left(world: World) -> None:
    attaching = asyncio.create_task(world.engine.attach_storage("file", {}))
    await settle()
    attaching.cancel()
    with pytest.raises(RequestError) as refused:
        await world.engine.detach_storage()
    assert refused.value.status == 409
    await world.say(StorageChanged(is_attached=True))
    detaching = asyncio.create_task(world.engine.detach_storage())
    await settle()
    await world.say(StorageChanged(is_attached=False))
    await detaching


async def test_a_server_that_ends_changes_its_store_no_more(world: World) -> None:
    world.engine.stop_accepting()
    with pytest.raises(RequestError, match="shutting down"):
        await world.engine.detach_storage()
    assert await world.received() == []


async def test_the_rest_of_the_engines_protocol(world: World) -> None:
    assert world.engine.ready
    assert world.engine.model.id == "m"
    assert world.engine.stats() is STATS
    assert (await world.engine.tokenize(TextPrompt("hi"))).tolist() == list(b"hi")
    assert await world.engine.detokenize([104, 105, EOS]) == "hi</s>"
