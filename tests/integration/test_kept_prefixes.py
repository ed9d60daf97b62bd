"""Prefixes that a client asked to keep, from its messages down to the pages of the device."""

from __future__ import annotations

import pytest
from tests.byte_tokenizer import byte_tokenizer
from tests.fake_model import FakeModel

from pagefall.actors.runner import DeviceThread
from pagefall.actors.tokenizer import TokenizerActor
from pagefall.app import running_engine
from pagefall.config import CacheConfig, SchedulerConfig
from pagefall.messages import RequestId
from pagefall.text.requests import ChatMessage, ChatPrompt, GenerateRequest, ModelCard, PinRequest, TokenPrompt

pytestmark = pytest.mark.anyio

NUM_PAGES = 128
PAGE_SIZE = 4
RULES = "Answer in one word, whatever it is that you are asked by anybody."


def asked(name: str, *pins: PinRequest) -> GenerateRequest:
    messages = (ChatMessage("system", RULES), ChatMessage("user", name))
    return GenerateRequest(
        request_id=RequestId(name), prompt=ChatPrompt(messages=messages), pins=pins, max_tokens=1, ignore_eos=True
    )


async def run(engine: TokenizerActor, request: GenerateRequest) -> tuple[int, int]:
    """Tokens that were cached, and that are kept."""
    deltas = [delta async for delta in await engine.generate(request)]
    assert deltas[-1].usage is not None
    return deltas[-1].usage.cached_tokens, deltas[0].num_pinned_tokens


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_kept_prefix_outlives_more_than_the_cache_holds(is_kept: bool) -> None:
    tokenizer = byte_tokenizer()
    head = len(f"system: {RULES}\n")
    pins = (PinRequest(num_messages=1, ttl_seconds=300.0),) if is_kept else ()
    with DeviceThread() as thread:
        async with running_engine(
            FakeModel(num_pages=NUM_PAGES, page_size=PAGE_SIZE),
            tokenizer,
            ModelCard(id="fake", context_length=NUM_PAGES * PAGE_SIZE, vocab_size=257, created=0),
            thread=thread,
            num_pages=NUM_PAGES,
            eos_token_ids=frozenset(),
            cache=CacheConfig(page_size=PAGE_SIZE),
            scheduler=SchedulerConfig(max_running_requests=4, max_queued_requests=10),
        ) as engine:
            assert await run(engine, asked("first", *pins)) == (0, head if is_kept else 0)
            for number in range(12):
                prompt = TokenPrompt((number,) * 200)
                await run(engine, GenerateRequest(request_id=RequestId(str(number)), prompt=prompt, max_tokens=1))
            cached, _ = await run(engine, asked("second"))
    assert cached == (head // PAGE_SIZE * PAGE_SIZE if is_kept else 0)
