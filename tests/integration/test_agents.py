"""What agents send, turn after turn: each request is accepted, and each turn finds what the ones before left, the
answers too.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from string import ascii_lowercase
from typing import Any, Final, NamedTuple

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
NUM_ANSWER_TOKENS: Final = 96
CACHE: Final = CacheConfig(page_size=PAGE_SIZE)
PLAIN: Final[dict[str, Any]] = {"model": "default", "messages": [{"role": "user", "content": "Run the tests."}]}


@cache
def embedded() -> Tokenizer:
    return load_tokenizer(ensure_embedded())


@pytest.fixture(scope="module", params=["a template without tools", "a template with tools"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return embedded() if "without" in request.param else byte_tokenizer(chat_templates.CHATML_WITH_TOOLS)


class Speller(FakeModel):
    """Writes a token for each letter. Most tokenizers would have taken fewer, longer ones."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(num_pages=NUM_PAGES, page_size=PAGE_SIZE, vocab_size=len(ascii_lowercase))
        spelled = [tokenizer.encode(letter, add_special_tokens=False) for letter in ascii_lowercase]
        self._letters = [int(token_id) for [token_id] in spelled]

    def next_token(self, token_ids: TokenIds) -> int:
        return self._letters[super().next_token(token_ids)]


class AcceptsAll:
    """A probe that takes no process of its own."""

    def check(self, grammar: str) -> str | None:
        return None

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    """What strict tools need. Nothing is tried out: the model takes no notice of grammars."""
    facts = VocabularyFacts(
        tokenizer_json=tokenizer.to_json(),
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=tuple(tokenizer.eos_token_ids),
    )
    return Grammars(facts, probe=lambda _: AcceptsAll())


@pytest.fixture
async def client(tokenizer: Tokenizer, grammars: Grammars) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(tokenizer, grammars=grammars) as client:
        yield client


@asynccontextmanager
async def serving(
    tokenizer: Tokenizer, *, grammars: Grammars | None = None, cache: CacheConfig = CACHE
) -> AsyncIterator[httpx.AsyncClient]:
    card = ModelCard(id="default", context_length=NUM_PAGES * PAGE_SIZE, vocab_size=tokenizer.vocab_size, created=0)
    with DeviceThread() as thread:
        async with running_engine(
            Speller(tokenizer),
            tokenizer,
            card,
            thread=thread,
            num_pages=NUM_PAGES,
            eos_token_ids=tokenizer.eos_token_ids,
            cache=cache,
            scheduler=SchedulerConfig(chunked_prefill_size=8192),
            grammars=grammars,
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


class Turn(NamedTuple):
    """`num_cached` of the `num_prompt_tokens`. `following` is the next body: the answer has come back in it."""

    num_prompt_tokens: int
    num_answer_tokens: int
    num_cached: int
    following: dict[str, Any]


async def chat_turn(client: httpx.AsyncClient, body: dict[str, Any]) -> Turn:
    asked = {**body, "max_tokens": NUM_ANSWER_TOKENS}
    answer = (await client.post("/v1/chat/completions", json=asked)).raise_for_status().json()
    usage = answer["usage"]
    messages = [*body["messages"], answer["choices"][0]["message"], {"role": "user", "content": "Go on."}]
    return Turn(
        usage["prompt_tokens"],
        usage["completion_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        {**body, "messages": messages},
    )


async def messages_turn(client: httpx.AsyncClient, body: dict[str, Any]) -> Turn:
    asked = {**body, "max_tokens": NUM_ANSWER_TOKENS}
    answer = (await client.post("/v1/messages", json=asked)).raise_for_status().json()
    usage = answer["usage"]
    cached = usage["cache_read_input_tokens"]
    go_on = {"role": "user", "content": [{"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}}]}
    return Turn(
        usage["input_tokens"] + usage["cache_creation_input_tokens"] + cached,
        usage["output_tokens"],
        cached,
        {**body, "messages": [*body["messages"], {"role": "assistant", "content": answer["content"]}, go_on]},
    )


async def responses_turn(client: httpx.AsyncClient, body: dict[str, Any]) -> Turn:
    asked = {**body, "max_output_tokens": NUM_ANSWER_TOKENS}
    answer = (await client.post("/v1/responses", json=asked)).raise_for_status().json()
    usage = answer["usage"]
    return Turn(
        usage["input_tokens"],
        usage["output_tokens"],
        usage["input_tokens_details"]["cached_tokens"],
        {**body, "input": [*body["input"], *answer["output"], {"role": "user", "content": "Go on."}]},
    )


def body_for(endpoint: str) -> dict[str, Any]:
    """What an agent sends there, but that the answer shall come whole: that is easier to send back."""
    if endpoint == "chat":
        [first, *_] = turns_of("opencode")
        first.pop("stream_options")
    else:
        first = json.loads((FOLDER / "other_endpoints" / f"{endpoint}.json").read_text())
    assert first["stream"] is True
    return {**first, "stream": False}


ENDPOINTS: Final[dict[str, Callable[[httpx.AsyncClient, dict[str, Any]], Awaitable[Turn]]]] = {
    "chat": chat_turn,
    "messages": messages_turn,
    "responses": responses_turn,
}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_an_answer_that_comes_back_is_reused_like_the_prompt_before_it(
    client: httpx.AsyncClient, endpoint: str
) -> None:
    turn = await ENDPOINTS[endpoint](client, body_for(endpoint))
    for number in (1, 2):
        before, turn = turn, await ENDPOINTS[endpoint](client, turn.following)
        assert before.num_answer_tokens == NUM_ANSWER_TOKENS
        ceiling = (before.num_prompt_tokens + before.num_answer_tokens) // PAGE_SIZE * PAGE_SIZE
        assert turn.num_cached >= 0.95 * ceiling, f"turn {number}: {turn.num_cached} of {ceiling}"
        assert turn.num_cached > before.num_prompt_tokens + 0.5 * before.num_answer_tokens


async def test_flushing_the_device_forgets_how_answers_were_cut_into_tokens() -> None:
    async with serving(embedded()) as client:
        following = (await chat_turn(client, PLAIN)).following
        as_sampled = await chat_turn(client, following)
        assert as_sampled.num_prompt_tokens > len(tokens_of(following, embedded()))
        (await client.post("/flush_cache?tiers=host")).raise_for_status()
        assert (await chat_turn(client, following)).num_prompt_tokens == as_sampled.num_prompt_tokens
        (await client.post("/flush_cache?tiers=device")).raise_for_status()
        assert (await chat_turn(client, following)).num_prompt_tokens == len(tokens_of(following, embedded()))


@pytest.mark.parametrize(
    "cache", [CacheConfig(disable_answer_memory=True), CacheConfig(disable_radix_cache=True)], ids=["answers", "all"]
)
async def test_where_answers_are_not_remembered_prompts_have_the_tokenizers_own_tokens(cache: CacheConfig) -> None:
    async with serving(embedded(), cache=cache) as client:
        following = (await chat_turn(client, PLAIN)).following
        assert (await chat_turn(client, following)).num_prompt_tokens == len(tokens_of(following, embedded()))
