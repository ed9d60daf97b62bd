"""Tools, calls and thoughts through `/v1/chat/completions`, in the shapes that OpenAI's clients read."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import openai
import pydantic
import pytest
from tests.unit.api.fake_engine import MODEL, FakeEngine, http_client, listening, open_ai
from tests.unit.api.sse import events

from pagefall.text.constraints import JsonSchema, Lark
from pagefall.text.replies.dialects import ReplyFormat
from pagefall.text.requests import ChatMessage, ChatPrompt, Tool, ToolCall

pytestmark = pytest.mark.anyio

ASK = [{"role": "user", "content": "Rain in Rome?"}]
SCHEMA: dict[str, Any] = {"properties": {"city": {"type": "string"}}, "required": ["city"], "type": "object"}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": SCHEMA}}
PING = {"type": "function", "function": {"name": "ping"}}
FORCED = {"type": "function", "function": {"name": "ping"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
PING_CALL = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'


class Weather(pydantic.BaseModel):
    city: str


async def chat(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": ASK, "tools": [WEATHER, PING], **fields}
    return await client.post("/v1/chat/completions", json=body)


async def refused(client: httpx.AsyncClient, **fields: Any) -> str:
    response = await chat(client, **fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["message"]
    return str(error["param"])


def says(engine: FakeEngine, text: str, *, piece: int = 3) -> None:
    engine.words = [text[start : start + piece] for start in range(0, len(text), piece)]


def prompt_of(engine: FakeEngine) -> ChatPrompt:
    prompt = engine.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


async def test_a_call_has_openais_shape(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    says(engine, f"Let me see.\n{CALL}\n{PING_CALL}")
    [choice] = (await chat(client)).json()["choices"]
    first, second = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": "Let me see.", "refusal": None}
    assert choice["finish_reason"] == "tool_calls"
    assert first.pop("id") != second.pop("id")
    assert first == {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    assert second == {"type": "function", "function": {"name": "ping", "arguments": "{}"}}


async def test_content_is_null_where_nothing_is_said(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    says(engine, CALL)
    [choice] = (await chat(client)).json()["choices"]
    assert choice["message"]["content"] is None


async def test_a_stream_tells_a_call_once_and_its_arguments_piece_by_piece(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    says(engine, f"See.\n{CALL}\n{PING_CALL}")
    choices = [chunk["choices"][0] for chunk in events(await chat(client, stream=True))]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "See."
    deltas = [delta for choice in choices for delta in choice["delta"].get("tool_calls", [])]
    heads = [delta for delta in deltas if "id" in delta]
    assert [(head["index"], head["type"], head["function"]) for head in heads] == [
        (0, "function", {"name": "weather", "arguments": ""}),
        (1, "function", {"name": "ping", "arguments": ""}),
    ]
    rest = [delta for delta in deltas if "id" not in delta]
    assert all(set(delta) == {"index", "function"} and set(delta["function"]) == {"arguments"} for delta in rest)
    assert "".join(delta["function"]["arguments"] for delta in rest if delta["index"] == 0) == '{"city": "Rome"}'
    assert sum(delta["index"] == 0 for delta in rest) > 3
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]


async def test_the_joined_stream_is_the_whole_answer_with_calls_too(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    for text in (CALL, f"a {CALL} b", CALL[:-20], "<tool_call>no</tool_call>", f"{CALL[:40]}"):
        says(engine, text)
        whole = (await chat(client)).json()["choices"][0]
        choices = [chunk["choices"][0] for chunk in events(await chat(client, stream=True))]
        content = "".join(choice["delta"].get("content") or "" for choice in choices)
        arguments = "".join(
            delta["function"]["arguments"] for choice in choices for delta in choice["delta"].get("tool_calls", [])
        )
        assert content == (whole["message"]["content"] or "")
        assert arguments == "".join(call["function"]["arguments"] for call in whole["message"].get("tool_calls", []))
        assert choices[-1]["finish_reason"] == whole["finish_reason"]


async def test_an_answer_cut_within_a_call_says_length(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    says(engine, CALL)
    [choice] = (await chat(client, max_tokens=18)).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"ci')


async def test_every_choice_has_its_own_calls(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    says(engine, CALL)
    choices = (await chat(client, n=3)).json()["choices"]
    assert len({choice["message"]["tool_calls"][0]["id"] for choice in choices}) == 3
    streamed = [chunk["choices"][0] for chunk in events(await chat(client, n=2, stream=True))]
    for index in range(2):
        mine = [choice["delta"] for choice in streamed if choice["index"] == index]
        assert mine[0]["role"] == "assistant"
        arguments = [call["function"]["arguments"] for delta in mine for call in delta.get("tool_calls", [])]
        assert json.loads("".join(arguments)) == {"city": "Rome"}


async def test_log_probabilities_come_with_calls_one_for_each_token(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    says(engine, CALL)
    whole = (await chat(client, logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    chunks = events(await chat(client, logprobs=True, stream=True))
    streamed = [entry for chunk in chunks[1:] for entry in chunk["choices"][0]["logprobs"]["content"]]
    assert streamed == whole
    assert len(whole) == len(engine.words)


async def test_the_older_functions_are_tools_and_are_called_in_the_older_shape(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    says(engine, CALL)
    older: dict[str, Any] = {"tools": None, "functions": [WEATHER["function"]], "function_call": "auto"}
    [choice] = (await chat(client, **older)).json()["choices"]
    assert choice["message"]["function_call"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert choice["finish_reason"] == "function_call"
    deltas = [chunk["choices"][0]["delta"] for chunk in events(await chat(client, stream=True, **older))]
    calls = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert calls[0] == {"name": "weather", "arguments": ""}
    assert "".join(call["arguments"] for call in calls) == '{"city": "Rome"}'
    said = {"role": "assistant", "content": None, "function_call": choice["message"]["function_call"]}
    told = {"role": "function", "name": "weather", "content": "wet"}
    assert (await chat(client, messages=[*ASK, said, told], **older)).status_code == 200
    assert prompt_of(engine).messages[2] == ChatMessage("tool", "wet", "weather", tool_call_id="call_weather")
    await chat(client, tools=None, functions=[WEATHER["function"]], function_call={"name": "weather"})
    assert isinstance(engine.requests[-1].constraint, Lark)


async def test_tools_and_calls_reach_the_template(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    called = {"id": "a", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [called], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "pong"}]},
        {"role": "assistant", "tool_calls": [called | {"id": "b"}]},  # interrupted: nobody answered
        {"role": "user", "content": "And?"},
    ]
    assert (await chat(client, messages=messages)).status_code == 200
    prompt = prompt_of(engine)
    ordered = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    assert prompt.tools == (Tool(name="weather", description="Now.", parameters=ordered), Tool(name="ping"))
    assert list(prompt.tools[0].parameters or {}) == ["type", "properties", "required"]
    ping = ToolCall(call_id="a", name="ping", arguments="{}")
    assert prompt.messages[1:3] == (
        ChatMessage("assistant", "", tool_calls=(ping,), reasoning_content="Hm."),
        ChatMessage("tool", "pong", tool_call_id="a"),
    )


async def test_tools_stay_in_the_prompt_where_none_may_be_called(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    says(engine, CALL)
    [choice] = (await chat(client, tool_choice="none")).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")
    assert len(prompt_of(engine).tools) == 2


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"tool_choice": "required"}, {"weather", "ping"}),
        ({"tool_choice": FORCED}, {"ping"}),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "required",
                        "tools": [{"type": "function", "function": {"name": "ping"}}],
                    },
                }
            },
            {"ping"},
        ),
    ],
)
async def test_a_call_that_must_be_is_forced_by_a_grammar(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], names: set[str]
) -> None:
    says(engine, PING_CALL)
    [choice] = (await chat(client, **fields)).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    constraint = engine.requests[-1].constraint
    assert isinstance(constraint, Lark)
    assert {name for name in ("weather", "ping") if f'\\"{name}\\"' in constraint.grammar} == names
    assert len(prompt_of(engine).tools) == 2


async def test_free_calls_are_held_to_a_grammar_where_tools_are_strict(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await chat(client)
    assert engine.requests[-1].constraint is None
    function = {"name": "f", "strict": True, "parameters": {**SCHEMA, "additionalProperties": False}}
    await chat(client, tools=[{"type": "function", "function": function}])
    assert isinstance(engine.requests[-1].constraint, Lark)


async def test_an_answer_in_json_leaves_room_for_calls(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    json_schema = {"name": "x", "schema": {"type": "object"}}
    asked = {"response_format": {"type": "json_schema", "json_schema": json_schema}}
    await chat(client, tools=None, **asked)
    assert isinstance(engine.requests[-1].constraint, JsonSchema)
    await chat(client, **asked)
    constraint = engine.requests[-1].constraint
    assert isinstance(constraint, Lark)
    assert "calls | answer" in constraint.grammar


async def test_one_call_at_most_without_parallel_calls(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    says(engine, CALL + PING_CALL)
    [choice] = (await chat(client, parallel_tool_calls=False)).json()["choices"]
    assert len(choice["message"]["tool_calls"]) == 1


CALLED = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "ping"}}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 5}}]}, "tools[0].function.parameters"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "strict": True, "parameters": SCHEMA}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [PING, PING]}, "tools"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice.function.name"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "some", "tools": []}}},
            "tool_choice.allowed_tools.mode",
        ),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"messages": [*ASK, {"role": "tool", "content": "x", "tool_call_id": "a"}]}, "messages[1].tool_call_id"),
        ({"messages": [CALLED, {"role": "tool", "content": "x", "tool_call_id": "b"}]}, "messages[1].tool_call_id"),
        ({"messages": [CALLED, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        (
            {"messages": [CALLED, *ASK, {"role": "tool", "content": "x", "tool_call_id": "a"}]},
            "messages[2].tool_call_id",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": CALLED["tool_calls"]}]},
            "messages[0].tool_calls",
        ),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "a"}]}, "messages[0].tool_call_id"),
    ],
)
async def test_what_cannot_be_called_or_answered_is_refused_by_name(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    assert await refused(client, **fields) == param


async def test_thoughts_are_a_field_of_their_own(engine: FakeEngine) -> None:
    engine.model = msgspec.structs.replace(engine.model, replies=ReplyFormat(thinking="qwen3"))
    says(engine, f"<think>\nHm.\n</think>\n\n{CALL}")
    async with http_client(engine) as client:
        [choice] = (await chat(client)).json()["choices"]
        assert choice["message"]["reasoning_content"] == "Hm."
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"
        deltas = [chunk["choices"][0]["delta"] for chunk in events(await chat(client, stream=True))]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm."
    assert "".join(delta.get("content", "") for delta in deltas) == ""


NAMED = {"name": "n", "schema": {"type": "object"}}
FORMAT = {"type": "json_schema", **NAMED}
AS_JSON: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK, "response_format": {"type": "json_schema", "json_schema": NAMED}},
    "/v1/messages": {"messages": ASK, "max_tokens": 50, "output_config": {"format": FORMAT}},
    "/v1/responses": {"input": "Rain in Rome?", "text": {"format": FORMAT}},
}


@pytest.mark.parametrize("path", AS_JSON)
@pytest.mark.parametrize("thinks", [False, True])
async def test_an_answer_in_json_is_no_thought_though_the_template_has_opened_one(
    engine: FakeEngine, path: str, thinks: bool
) -> None:
    engine.model = msgspec.structs.replace(engine.model, replies=ReplyFormat(thinking="qwen3"))
    engine.prompt_tail = "<think>\n"
    says(engine, ("Hm.\n</think>\n\n" if thinks else "") + '{"rain": 1}')
    kwargs = {"chat_template_kwargs": {"enable_thinking": thinks}}
    async with http_client(engine) as client:
        response = await client.post(path, json={**AS_JSON[path], **kwargs})
    assert response.status_code == 200, response.text
    body = response.json()
    match path:
        case "/v1/chat/completions":
            text = body["choices"][0]["message"]["content"]
        case "/v1/messages":
            text = body["content"][-1]["text"]
        case _:
            text = body["output"][-1]["content"][0]["text"]
    assert text == '{"rain": 1}'
    constraint = engine.requests[-1].constraint
    assert (isinstance(constraint, Lark) and constraint.opened is not None) == thinks


async def test_special_tokens_that_mark_calls_are_asked_for(engine: FakeEngine) -> None:
    replies = ReplyFormat(tools="mistral", special_tokens=(("[TOOL_CALLS]", 7),))
    engine.model = msgspec.structs.replace(engine.model, replies=replies)
    async with http_client(engine) as client:
        await chat(client)
        await chat(client, tools=None)
    assert [request.kept_special_token_ids for request in engine.requests] == [frozenset([7]), frozenset()]


async def test_openais_own_client_rebuilds_streamed_calls_and_goes_on(engine: FakeEngine) -> None:
    says(engine, f"See.\n{CALL}")
    async with listening(engine) as (host, port), open_ai(host, port) as client:
        async with client.chat.completions.stream(
            model=MODEL,
            messages=[{"role": "user", "content": "Rain?"}],
            tools=[openai.pydantic_function_tool(Weather, name="weather")],
        ) as stream:
            seen = [event.type async for event in stream]
            completion = await stream.get_final_completion()
        message = completion.choices[0].message
        assert "tool_calls.function.arguments.delta" in seen
        assert message.tool_calls is not None
        [call] = message.tool_calls
        assert call.function.parsed_arguments == Weather(city="Rome")
        says(engine, "It is dry.")
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=[
                {"role": "user", "content": "Rain?"},
                message.to_dict(),  # type: ignore[list-item]
                {"role": "tool", "tool_call_id": call.id, "content": "dry"},
            ],
        )
        assert answer.choices[0].message.content == "It is dry."
    assert prompt_of(engine).messages[1].tool_calls[0].call_id == call.id


async def test_the_tokens_of_a_prompt_with_tools_can_be_counted(client: httpx.AsyncClient) -> None:
    response = await client.post("/tokenize", json={"messages": ASK, "tools": [WEATHER]})
    assert response.status_code == 200
    response = await client.post("/tokenize", json={"messages": ASK, "tools": [{"type": "other"}]})
    assert response.json()["error"]["param"] == "tools[0].type"
