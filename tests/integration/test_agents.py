"""What agents send, turn after turn: each request is accepted, and each turn finds what the ones before left."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import numpy as np
import pytest
from tests import chat_templates
from tests.byte_tokenizer import byte_tokenizer
from tests.fake_model import FakeModel

from pagefall.actors.runner import DeviceThread
from pagefall.api.app import create_app
from pagefall.api.wire_chat import ChatCompletionRequest, chat_prompt, chat_tools
from pagefall.app import running_engine
from pagefall.config import CacheConfig, HttpConfig, SchedulerConfig
from pagefall.messages import TokenIds
from pagefall.model.embedded import ensure_embedded
from pagefall.text.grammars import Grammars
from pagefall.text.matchers import VocabularyFacts
from pagefall.text.requests import ModelCard
from pagefall.text.tokenizer import Tokenizer, load_tokenizer

pytestmark = pytest.mark.anyio

FOLDER: Final = Path(__file__).parents[1] / "fixtures" / "agents"
AGENTS: Final = sorted(path.stem for path in FOLDER.glob("*.json"))
PAGE_SIZE: Final = 16
NUM_PAGES: Final = 4096


@pytest.fixture(scope="module")
def embedded() -> Tokenizer:
    return load_tokenizer(ensure_embedded())


@pytest.fixture(params=["a template without tools", "a template with tools"])
def tokenizer(request: pytest.FixtureRequest, embedded: Tokenizer) -> Tokenizer:
    return embedded if "without" in request.param else byte_tokenizer(chat_templates.CHATML_WITH_TOOLS)


class AcceptsAll:
    """A probe that takes no process of its own."""

    def check(self, grammar: str) -> str | None:
        return None

    def close(self) -> None:
        """Nothing to end."""


def grammars_of(tokenizer: Tokenizer) -> Grammars:
    """What strict tools need. Nothing is tried out: the model takes no notice of grammars."""
    facts = VocabularyFacts(
        tokenizer_json=tokenizer.to_json(),
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=tuple(tokenizer.eos_token_ids),
    )
    return Grammars(facts, probe=lambda _: AcceptsAll())


@pytest.fixture
async def client(tokenizer: Tokenizer) -> AsyncIterator[httpx.AsyncClient]:
    card = ModelCard(id="default", context_length=NUM_PAGES * PAGE_SIZE, vocab_size=tokenizer.vocab_size, created=0)
    with DeviceThread() as thread:
        async with running_engine(
            FakeModel(num_pages=NUM_PAGES, page_size=PAGE_SIZE),
            tokenizer,
            card,
            thread=thread,
            num_pages=NUM_PAGES,
            eos_token_ids=frozenset(),
            cache=CacheConfig(page_size=PAGE_SIZE),
            scheduler=SchedulerConfig(chunked_prefill_size=8192),
            grammars=grammars_of(tokenizer),
        ) as engine:
            transport = httpx.ASGITransport(create_app(engine, HttpConfig()))
            async with httpx.AsyncClient(transport=transport, base_url="http://server", timeout=60) as client:
                yield client


def turns_of(agent: str) -> list[dict[str, Any]]:
    turns = json.loads((FOLDER / f"{agent}.json").read_text())["turns"]
    assert isinstance(turns, list)
    return turns


def tokens_of(body: dict[str, Any], tokenizer: Tokenizer) -> TokenIds:
    wire = msgspec.convert(body, ChatCompletionRequest)
    tools = chat_tools(wire).shown
    prompt = chat_prompt(
        wire.messages, add_generation_prompt=None, continue_final_message=False, template_kwargs={}, tools=tools
    )
    text = tokenizer.apply_chat_template(prompt.messages, tools=prompt.tools)
    return tokenizer.encode(text, add_special_tokens=False)


def num_common(one: TokenIds, other: TokenIds) -> int:
    shorter = min(len(one), len(other))
    differs = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differs[0]) if len(differs) else shorter


async def num_cached(client: httpx.AsyncClient, body: dict[str, Any]) -> int:
    """As the usage says. The answer is short, whatever the agent would have taken."""
    asked = {**body, "max_tokens": 2}
    if body.get("stream"):
        asked["stream_options"] = {"include_usage": True}
    response = await client.post("/v1/chat/completions", json=asked)
    assert response.status_code == 200, response.text
    if not body.get("stream"):
        usage = response.json()["usage"]
    else:
        *_, last, done, _ = response.text.split("\n\n")
        assert done == "data: [DONE]"
        usage = json.loads(last.removeprefix("data: "))["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert isinstance(cached, int)
    return cached


@pytest.mark.parametrize("agent", AGENTS)
async def test_each_turn_is_accepted_and_reuses_what_it_shares_with_the_turns_before(
    client: httpx.AsyncClient, tokenizer: Tokenizer, agent: str
) -> None:
    earlier: list[TokenIds] = []
    for number, body in enumerate(turns_of(agent)):
        token_ids = tokens_of(body, tokenizer)
        cached = await num_cached(client, body)
        ceiling = max((num_common(token_ids, before) for before in earlier), default=0) // PAGE_SIZE * PAGE_SIZE
        if earlier:  # agents append: the turn before is a head of this one
            assert ceiling >= 0.95 * (len(earlier[-1]) - PAGE_SIZE), f"turn {number} does not go on from the last"
        assert cached >= 0.95 * ceiling, f"turn {number}: {cached} of {ceiling}"
        earlier.append(token_ids)
