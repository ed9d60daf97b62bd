from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from tests.unit.api.fake_engine import MODEL, WORDS, FakeEngine, http_client, listening, open_ai
from tests.unit.api.sse import events, parse

from pagefall.messages import SamplingParams
from pagefall.text.requests import ChatMessage, ChatPrompt

pytestmark = pytest.mark.anyio

MESSAGES = [{"role": "user", "content": "Hi"}]
ANSWER = "".join(WORDS)


async def chat(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json={"model": MODEL, "messages": MESSAGES, **fields})


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}),
        (
            {"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "low", "mood": "calm"}},
            {"reasoning_effort": "low", "mood": "calm"},
        ),
        ({"reasoning_effort": None}, {}),
    ],
)
async def test_the_effort_is_told_to_the_template(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], kwargs: dict[str, Any]
) -> None:
    assert (await chat(client, **fields)).status_code == 200
    prompt = engine.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template_kwargs == kwargs


async def test_an_answer_that_was_given_up_is_no_answer(engine: FakeEngine) -> None:
    engine.finish_reason = "abort"
    async with http_client(engine) as client:
        whole, streamed = await chat(client), await chat(client, stream=True)
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "aborted")
    *_, last, end = streamed.text.split("\n\n")
    assert end == ""
    assert parse(last)["error"]["code"] == "aborted"
    assert '"finish_reason":"abort"' not in streamed.text


async def test_a_whole_answer_has_openais_shape(client: httpx.AsyncClient) -> None:
    response = await chat(client)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.pop("id").startswith("chatcmpl-")
    assert body.pop("created") > 1_700_000_000
    assert body == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": ANSWER, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 1,
            "completion_tokens": 6,
            "total_tokens": 7,
            "prompt_tokens_details": {
                "cached_tokens": 3,
                "cached_tokens_by_tier": {"device": 2, "host": 1, "storage": 0},
            },
        },
    }


async def test_a_stream_names_the_role_once_and_then_sends_one_event_a_delta(client: httpx.AsyncClient) -> None:
    response = await chat(client, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events(response)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["delta"] for choice in choices[1:]] == [{"content": word} for word in WORDS[:-1]] + [{}]
    assert [choice["finish_reason"] for choice in choices] == [None] * 6 + ["stop"]


async def test_the_joined_stream_is_the_whole_answer(client: httpx.AsyncClient) -> None:
    for fields in ({}, {"max_tokens": 2}, {"logprobs": True, "top_logprobs": 2}):
        whole = (await chat(client, **fields)).json()["choices"][0]
        choices = [chunk["choices"][0] for chunk in events(await chat(client, stream=True, **fields))]
        assert "".join(choice["delta"].get("content", "") for choice in choices) == whole["message"]["content"]
        assert choices[-1]["finish_reason"] == whole["finish_reason"]
        if "logprobs" in fields:
            entries = [entry for choice in choices[1:] for entry in choice["logprobs"]["content"]]
            assert entries == whole["logprobs"]["content"]


async def test_usage_comes_as_a_chunk_of_its_own_and_is_null_before(client: httpx.AsyncClient) -> None:
    whole = (await chat(client)).json()
    *chunks, last = events(await chat(client, stream=True, stream_options={"include_usage": True}))
    assert all(chunk["usage"] is None for chunk in chunks)
    assert (last["choices"], last["usage"]) == ([], whole["usage"])


async def test_logprobs_have_openais_shape(client: httpx.AsyncClient) -> None:
    content = (await chat(client, logprobs=True, top_logprobs=2)).json()["choices"][0]["logprobs"]["content"]
    assert content[3] == {
        "token": "안녕",
        "logprob": -0.5,
        "bytes": list("안녕".encode()),
        "top_logprobs": [
            {"token": "top1", "logprob": -1.0, "bytes": [116, 111, 112, 49]},
            {"token": "top2", "logprob": -2.0, "bytes": [116, 111, 112, 50]},
        ],
    }


async def test_a_long_answer_with_logprobs_is_complete(engine: FakeEngine) -> None:
    engine.words = ["w"] * 300
    async with http_client(engine) as client:
        [choice] = (await chat(client, logprobs=True, top_logprobs=20)).json()["choices"]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["w"] * 300


async def test_a_probability_of_zero_is_a_number_json_has(client: httpx.AsyncClient) -> None:
    content = (await chat(client, logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert content[4]["logprob"] == -9999.0
    assert content[4]["top_logprobs"] == []


async def test_the_defaults_are_openais(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await chat(client)
    [request] = engine.requests
    assert request.sampling == SamplingParams()
    assert request.max_tokens is None
    assert (request.stop, request.stop_token_ids, request.ignore_eos) == ((), frozenset(), False)
    assert (request.cache_salt, request.priority) == ("", 0)


@pytest.mark.parametrize(
    ("sent", "name", "expected"),
    [
        ({"temperature": 0}, "temperature", 0.0),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"top_p": 0}, "top_p", 1e-6),
        ({"top_k": 7}, "top_k", 7),
        ({"top_k": -1}, "top_k", 0),
        ({"min_p": 0.1}, "min_p", 0.1),
        ({"presence_penalty": -2}, "presence_penalty", -2.0),
        ({"frequency_penalty": 1.5}, "frequency_penalty", 1.5),
        ({"repetition_penalty": 1.1}, "repetition_penalty", 1.1),
        ({"logit_bias": {"7": -100, "3": 1.5}}, "logit_bias", ((3, 1.5), (7, -100.0))),
        ({"seed": 42}, "seed", 42),
        ({"seed": -1}, "seed", 2**63 - 1),
        ({"logprobs": True}, "num_top_logprobs", 0),
        ({"logprobs": True, "top_logprobs": 20}, "num_top_logprobs", 20),
        ({"logprobs": False}, "num_top_logprobs", None),
        ({"temperature": None, "seed": None, "logit_bias": None}, "temperature", 1.0),
    ],
)
async def test_each_sampling_field_reaches_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine, sent: dict[str, Any], name: str, expected: object
) -> None:
    response = await chat(client, **sent)
    assert response.status_code == 200
    assert getattr(engine.requests[0].sampling, name) == expected


@pytest.mark.parametrize(
    ("sent", "name", "expected"),
    [
        ({"max_tokens": 5}, "max_tokens", 5),
        ({"max_completion_tokens": 6}, "max_tokens", 6),
        ({"max_completion_tokens": 6, "max_tokens": 6}, "max_tokens", 6),
        ({"stop": "END"}, "stop", ("END",)),
        ({"stop": ["a", "b"]}, "stop", ("a", "b")),
        ({"stop": []}, "stop", ()),
        ({"stop_token_ids": [2, 2, 7]}, "stop_token_ids", frozenset([2, 7])),
        ({"ignore_eos": True}, "ignore_eos", True),
        ({"cache_salt": "tenant"}, "cache_salt", "tenant"),
        ({"priority": -3}, "priority", -3),
    ],
)
async def test_each_other_field_reaches_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine, sent: dict[str, Any], name: str, expected: object
) -> None:
    await chat(client, **sent)
    assert getattr(engine.requests[0], name) == expected


async def test_the_messages_reach_the_template_in_its_own_words(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    response = await chat(
        client,
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
            {"role": "assistant", "content": None, "tool_calls": [], "refusal": None, "annotations": []},
            {"role": "system", "content": ""},
        ],
        chat_template_kwargs={"mood": "calm"},
    )
    assert response.status_code == 200
    assert engine.requests[0].prompt == ChatPrompt(
        messages=(
            ChatMessage("system", "Be brief."),
            ChatMessage("user", "a\nb", "Ann"),
            ChatMessage("assistant", ""),
            ChatMessage("system", ""),
        ),
        template_kwargs={"mood": "calm"},
    )


@pytest.mark.parametrize(
    ("sent", "begins", "continues"),
    [
        ({}, True, False),
        ({"add_generation_prompt": False}, False, False),
        ({"continue_final_message": True}, False, True),
        ({"continue_final_message": True, "add_generation_prompt": False}, False, True),
    ],
)
async def test_a_turn_is_begun_or_continued(
    client: httpx.AsyncClient, engine: FakeEngine, sent: dict[str, Any], begins: bool, continues: bool
) -> None:
    await chat(client, **sent)
    prompt = engine.requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert (prompt.add_generation_prompt, prompt.continue_final_message) == (begins, continues)


async def test_the_model_may_be_left_out(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/chat/completions", json={"messages": MESSAGES})
    assert response.json()["model"] == MODEL


async def test_openais_own_client_reads_answers_and_streams(engine: FakeEngine) -> None:
    async with listening(engine) as (host, port), open_ai(host, port) as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], logprobs=True, top_logprobs=1
        )
        assert answer.choices[0].message.content == ANSWER
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == 3
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == ANSWER
        assert chunks[-1].usage == answer.usage
        assert [model.id async for model in client.models.list()] == [MODEL]
        with pytest.raises(openai.NotFoundError) as raised:
            await client.chat.completions.create(model="other", messages=[{"role": "user", "content": "Hi"}])
        assert raised.value.code == "model_not_found"


async def test_a_failure_inside_a_stream_is_its_last_event(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.fault = ValueError("secret detail")
    response = await chat(client, stream=True)
    *_, last, empty = response.text.split("\n\n")
    assert empty == ""
    assert last.startswith('data: {"error":')
    assert "secret" not in response.text
    assert "[DONE]" not in response.text
    assert len(engine.aborted) == 1


async def test_a_finished_generation_is_closed_too(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await chat(client)
    await chat(client, stream=True)
    assert (len(engine.closed), engine.aborted) == (2, [])
