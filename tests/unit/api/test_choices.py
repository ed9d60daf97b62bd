"""`n` answers to a prompt, and prompts that stand before their answers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.unit.api.fake_engine import MODEL, WORDS, FakeEngine, listening, open_ai
from tests.unit.api.sse import events

pytestmark = pytest.mark.anyio

ANSWER = "".join(WORDS)
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"model": MODEL, "prompt": "Hi"},
}


def text_of(choice: dict[str, Any]) -> str:
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("path", BODIES)
async def test_each_choice_is_a_request_of_its_own_with_the_next_seed(
    client: httpx.AsyncClient, engine: FakeEngine, path: str
) -> None:
    body = (await client.post(path, json=BODIES[path] | {"n": 3, "seed": 2**63 - 2})).json()
    assert [(choice["index"], text_of(choice)) for choice in body["choices"]] == [(i, ANSWER) for i in range(3)]
    assert len({request.request_id for request in engine.requests}) == 3
    assert [request.sampling.seed for request in engine.requests] == [2**63 - 2, 2**63 - 1, 0]


@pytest.mark.parametrize("path", BODIES)
async def test_usage_counts_the_prompt_once_and_every_answer(client: httpx.AsyncClient, path: str) -> None:
    one = (await client.post(path, json=BODIES[path])).json()["usage"]
    three = (await client.post(path, json=BODIES[path] | {"n": 3})).json()["usage"]
    assert three["prompt_tokens"] == one["prompt_tokens"]
    assert three["prompt_tokens_details"] == one["prompt_tokens_details"]
    assert three["completion_tokens"] == 3 * one["completion_tokens"]
    streamed = await client.post(
        path, json=BODIES[path] | {"n": 3, "stream": True, "stream_options": {"include_usage": True}}
    )
    assert events(streamed)[-1]["usage"] == three


async def test_the_choices_of_several_prompts_lie_side_by_side(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    body = (await client.post("/v1/completions", json={"prompt": ["A", "BB"], "n": 2, "echo": True})).json()
    assert [choice["text"] for choice in body["choices"]] == [f"{p}{ANSWER}" for p in ("A", "A", "BB", "BB")]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("path", BODIES)
async def test_streamed_choices_are_interleaved_and_each_is_whole(client: httpx.AsyncClient, path: str) -> None:
    chunks = events(await client.post(path, json=BODIES[path] | {"n": 2, "stream": True}))
    texts = ["", ""]
    for chunk in chunks:
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["text"] if "text" in choice else choice["delta"].get("content", "")
    assert texts == [ANSWER, ANSWER]
    indices = [chunk["choices"][0]["index"] for chunk in chunks]
    assert indices != sorted(indices)
    finished = [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"][0]["finish_reason"]]
    assert finished == ["stop", "stop"]


async def test_best_of_may_only_be_n(client: httpx.AsyncClient) -> None:
    assert (await client.post("/v1/completions", json={"prompt": "Hi", "n": 2, "best_of": 2})).status_code == 200
    response = await client.post("/v1/completions", json={"prompt": "Hi", "n": 2, "best_of": 3})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "best_of")


async def test_no_tokens_may_be_asked_for(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.words = ()
    await client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 0, "echo": True, "logprobs": 2})
    [request] = engine.requests
    assert (request.max_tokens, request.echo, request.sampling.num_top_logprobs) == (0, True, 2)


async def test_openais_own_client_reads_several_choices(engine: FakeEngine) -> None:
    async with listening(engine) as (host, port), open_ai(host, port) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}], n=2)
        assert [choice.message.content for choice in answer.choices] == [ANSWER, ANSWER]
        texts = ["", ""]
        async for chunk in await client.completions.create(model=MODEL, prompt="Hi", n=2, echo=True, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert texts == [f"Hi{ANSWER}"] * 2
