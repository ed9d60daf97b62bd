"""`/v1/responses`, with OpenAI's own client over a real socket, and by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import openai
import pydantic
import pytest
from openai.types.responses import FunctionToolParam, ResponseInputParam
from tests.unit.api.fake_engine import MODEL, WORDS, FakeEngine, http_client, listening, open_ai

from pagefall.config import HttpConfig
from pagefall.errors import RequestError
from pagefall.text.constraints import AnyJson, JsonSchema, Lark
from pagefall.text.replies.dialects import ReplyFormat
from pagefall.text.requests import ChatMessage, ChatPrompt, ToolCall

pytestmark = pytest.mark.anyio

ANSWER = "".join(WORDS)
CALL = ('Let me see. <tool_call>\n{"name": "weather", ', '"arguments": {"city": "Oslo"}}', "\n</tool_call>", "")
THOUGHT = ("<think>", "h", "m", "</think>", "Yes.", "")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: FunctionToolParam = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}


class City(pydantic.BaseModel):
    city: str


@asynccontextmanager
async def client_of(engine: FakeEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    async with listening(engine) as address, open_ai(*address) as client:
        yield client


async def post(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "input": "Hi", **fields}
    return await client.post("/v1/responses", json={name: value for name, value in body.items() if value is not None})


async def made(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await post(client, **fields)
    assert response.status_code == 200, response.text
    body = response.json()
    assert isinstance(body, dict)
    return body


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a complete stream, whose names and numbers are right."""
    *blocks, empty = response.text.split("\n\n")
    assert empty == ""
    found: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = msgspec.json.decode(data.removeprefix("data: "))
        assert (name, event["sequence_number"]) == (f"event: {event['type']}", number)
        found.append(event)
    return found


def turns(engine: FakeEngine) -> tuple[ChatMessage, ...]:
    prompt = engine.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in items]


async def test_openais_client_gets_a_response_whole_and_streamed(engine: FakeEngine) -> None:
    async with client_of(engine) as client:
        whole = await client.responses.create(model=MODEL, input="Hi", instructions="Be brief.")
        async with client.responses.stream(model=MODEL, input="Hi", instructions="Be brief.") as stream:
            texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        counted = await client.responses.input_tokens.count(model=MODEL, input="Hi")
    assert whole.output_text == final.output_text == "".join(texts) == ANSWER
    assert texts == list(WORDS[:-1])
    for response in (whole, final):
        assert (response.status, response.object, response.model) == ("completed", "response", MODEL)
        assert response.usage is not None
        assert (response.usage.input_tokens_details.cached_tokens, response.usage.output_tokens) == (3, 6)
        assert (response.instructions, response.error, response.incomplete_details) == ("Be brief.", None, None)
    assert whole.id != final.id
    assert turns(engine) == (ChatMessage("system", "Be brief."), ChatMessage("user", "Hi"))
    assert counted.input_tokens == 1


async def test_openais_client_goes_on_from_a_response_and_reads_and_deletes_it(engine: FakeEngine) -> None:
    async with client_of(engine) as client:
        first = await client.responses.create(model=MODEL, input="one", instructions="Be brief.")
        second = await client.responses.create(model=MODEL, input="two", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        # Instructions are of one response only.
        assert turns(engine) == (
            ChatMessage("user", "one"),
            ChatMessage("assistant", ANSWER),
            ChatMessage("user", "two"),
        )
        assert await client.responses.retrieve(second.id) == second
        listed = await client.responses.input_items.list(second.id, order="asc")
        assert [(item.type, getattr(item, "role", None)) for item in listed.data] == [
            ("message", "user"),
            ("message", "assistant"),
            ("message", "user"),
        ]
        await client.responses.delete(second.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(second.id)
        with pytest.raises(openai.BadRequestError, match="not found"):
            await client.responses.create(model=MODEL, input="three", previous_response_id=second.id)
        with pytest.raises(openai.BadRequestError, match="synchronous"):
            await client.responses.cancel(first.id)


async def test_openais_client_calls_a_tool_and_brings_its_output_in_either_way(engine: FakeEngine) -> None:
    engine.words = CALL
    async with client_of(engine) as client:
        async with client.responses.stream(model=MODEL, input="How is Oslo?", tools=[WEATHER]) as stream:
            first = await stream.get_final_response()
        message, call = first.output
        assert (message.type, call.type) == ("message", "function_call")
        assert call.type == "function_call"
        assert (call.name, msgspec.json.decode(call.arguments)) == ("weather", {"city": "Oslo"})
        output: ResponseInputParam = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."},
        ]
        engine.words = WORDS
        await client.responses.create(model=MODEL, input=output, previous_response_id=first.id, tools=[WEATHER])
        by_the_server = turns(engine)
        whole: list[Any] = [
            {"role": "user", "content": "How is Oslo?"},
            *(item.model_dump(exclude={"parsed_arguments"}) for item in first.output),
            *output,
        ]
        await client.responses.create(model=MODEL, input=whole, tools=[WEATHER])
        by_the_client = turns(engine)
    assert by_the_server == by_the_client
    assert by_the_server[1:] == (
        ChatMessage(
            "assistant",
            first.output_text,
            tool_calls=(ToolCall(call_id=call.call_id, name="weather", arguments=call.arguments),),
        ),
        ChatMessage("tool", "Rain.", tool_call_id=call.call_id),
    )


async def test_openais_client_parses_what_a_schema_asks_for(engine: FakeEngine) -> None:
    engine.words = ('{"city": ', '"Oslo"}', "")
    async with client_of(engine) as client:
        parsed = await client.responses.parse(model=MODEL, input="Where?", text_format=City)
    assert parsed.output_parsed == City(city="Oslo")
    constraint = engine.requests[-1].constraint
    assert isinstance(constraint, JsonSchema)
    assert constraint.param == "text.format"


async def test_the_events_come_in_openais_order(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.model = msgspec.structs.replace(engine.model, replies=ReplyFormat(thinking="qwen3"))
    engine.words = ("<think>", "hm", "</think>", *CALL)
    response = await post(client, stream=True, tools=[WEATHER])
    assert response.headers["content-type"].startswith("text/event-stream")
    told = events(response)
    kinds = [event["type"].removeprefix("response.") for event in told]
    once = [kind for number, kind in enumerate(kinds) if number == 0 or kinds[number - 1] != kind]
    assert once == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert told[-1]["response"]["output"] == done
    for kind, item, field in [("reasoning_text", 0, "text"), ("output_text", 1, "text")]:
        deltas = [event["delta"] for event in told if event["type"] == f"response.{kind}.delta"]
        assert "".join(deltas) == done[item]["content"][0][field]
    arguments = [event["delta"] for event in told if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(arguments) == done[2]["arguments"]
    assert {event["item_id"] for event in told if event.get("output_index") == 2 and "item_id" in event} == {
        done[2]["id"]
    }


@pytest.mark.parametrize("words", [WORDS, CALL, THOUGHT, ("",)])
@pytest.mark.parametrize("limit", [None, 2])
async def test_the_stream_ends_with_the_response_that_comes_whole(words: tuple[str, ...], limit: int | None) -> None:
    engine = FakeEngine(words=words)
    engine.model = msgspec.structs.replace(engine.model, replies=ReplyFormat(thinking="qwen3"))
    async with http_client(engine) as client:
        whole = await made(client, tools=[WEATHER], max_output_tokens=limit)
        told = events(await post(client, stream=True, tools=[WEATHER], max_output_tokens=limit))
    streamed = told[-1]["response"]
    assert without_ids(streamed["output"]) == without_ids(whole["output"])
    assert whole["output"]
    for field in ("status", "usage", "incomplete_details", "max_output_tokens"):
        assert streamed[field] == whole[field]
    is_cut = limit is not None and len(words) > limit
    assert whole["status"] == ("incomplete" if is_cut else "completed")
    assert told[-1]["type"] == f"response.{whole['status']}"
    assert whole["incomplete_details"] == ({"reason": "max_output_tokens"} if is_cut else None)


async def test_a_thought_is_an_item_and_counts_as_reasoning(engine: FakeEngine) -> None:
    engine.model = msgspec.structs.replace(engine.model, replies=ReplyFormat(thinking="qwen3"))
    engine.words = THOUGHT
    async with http_client(engine) as client:
        body = await made(client)
        thought, message = body["output"]
        assert (thought["type"], thought["content"]) == ("reasoning", [{"type": "reasoning_text", "text": "hm"}])
        assert message["content"][0]["text"] == "Yes."
        assert 2 <= body["usage"]["output_tokens_details"]["reasoning_tokens"] <= 4
        await made(client, previous_response_id=body["id"])
    assert turns(engine)[1] == ChatMessage("assistant", "Yes.", reasoning_content="hm")


async def test_log_probabilities_come_where_they_are_asked_for(client: httpx.AsyncClient) -> None:
    [plain] = (await made(client))["output"]
    assert plain["content"][0]["logprobs"] == []
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    [item] = (await made(client, **fields))["output"]
    logprobs = item["content"][0]["logprobs"]
    assert [logprob["token"] for logprob in logprobs] == list(WORDS[:-1])
    assert [len(logprob["top_logprobs"]) for logprob in logprobs] == [2] * 5
    told = events(await post(client, stream=True, **fields))
    deltas = [event["logprobs"] for event in told if event["type"] == "response.output_text.delta"]
    assert [logprob for delta in deltas for logprob in delta] == logprobs


async def test_items_become_turns_of_the_template(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await made(
        client,
        instructions="Be brief.",
        input=[
            {"role": "developer", "content": "Really."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": t} for t in ("a", "b")]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}', "status": "completed"},
            {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"role": "assistant", "content": "Done."},
            {"role": "user", "content": "Thanks."},
        ],
    )
    calls = (ToolCall(call_id="c1", name="f", arguments='{"x": 1}'), ToolCall(call_id="c2", name="f", arguments="{}"))
    assert turns(engine) == (
        ChatMessage("system", "Be brief.\n\nReally."),
        ChatMessage("user", "a\nb"),
        ChatMessage("assistant", "", tool_calls=calls, reasoning_content="hm"),
        ChatMessage("tool", "two", tool_call_id="c2"),
        ChatMessage("tool", "one", tool_call_id="c1"),
        ChatMessage("assistant", "Done."),
        ChatMessage("user", "Thanks."),
    )


async def test_the_fields_reach_the_engine(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    body = await made(
        client,
        temperature=0.5,
        top_p=0.9,
        seed=7,
        max_output_tokens=20,
        stop=["END"],
        cache_salt="salt",
        reasoning={"effort": "none", "summary": "auto"},
        metadata={"a": "b"},
        user="u",
        include=["reasoning.encrypted_content"],
        truncation="disabled",
        service_tier="auto",
    )
    request = engine.requests[-1]
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.seed) == (0.5, 0.9, 7)
    assert (request.max_tokens, request.stop, request.cache_salt) == (20, ("END",), "salt")
    assert isinstance(request.prompt, ChatPrompt)
    assert request.prompt.template_kwargs["enable_thinking"] is False
    assert (body["temperature"], body["top_p"], body["max_output_tokens"]) == (0.5, 0.9, 20)
    assert (body["metadata"], body["user"], body["truncation"]) == ({"a": "b"}, "u", "disabled")


async def test_formats_and_choices_become_constraints(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await made(client, text={"format": {"type": "json_object"}})
    assert engine.requests[-1].constraint == AnyJson()
    for choice, is_forced in [
        ("auto", False),
        ("none", False),
        ("required", True),
        ({"type": "function", "name": "weather"}, True),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}, True),
    ]:
        body = await made(client, tools=[WEATHER], tool_choice=choice)
        assert isinstance(engine.requests[-1].constraint, Lark) == is_forced
        assert body["tools"][0]["name"] == "weather"


async def test_a_response_is_seen_only_with_the_key_that_made_it(client: httpx.AsyncClient) -> None:
    body = await made(client)
    path = f"/v1/responses/{body['id']}"
    other = {"authorization": "Bearer other"}
    assert (await client.get(path)).json() == body
    for method, where in [("GET", path), ("GET", f"{path}/input_items"), ("DELETE", path)]:
        response = await client.request(method, where, headers=other)
        assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")
    refused = await client.post("/v1/responses", json={"input": "x", "previous_response_id": body["id"]}, headers=other)
    assert refused.json()["error"]["code"] == "previous_response_not_found"
    assert (await client.get(path)).status_code == 200


async def test_what_must_not_be_kept_is_not(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    body = await made(client, store=False)
    assert body["store"] is False
    assert (await client.get(f"/v1/responses/{body['id']}")).status_code == 404
    async with http_client(engine, HttpConfig(max_stored_responses=0)) as other:
        body = await made(other)
        assert body["store"] is False
        assert (await other.get(f"/v1/responses/{body['id']}")).status_code == 404


async def test_input_items_come_in_pages(client: httpx.AsyncClient) -> None:
    body = await made(client, input=[{"role": "user", "content": str(number)} for number in range(5)])

    async def page(**query: str) -> dict[str, Any]:
        response = await client.get(f"/v1/responses/{body['id']}/input_items", params=query)
        assert response.status_code == 200
        found = response.json()
        assert isinstance(found, dict)
        return found

    def texts(found: dict[str, Any]) -> list[str]:
        return [item["content"][0]["text"] for item in found["data"]]

    first = await page(limit="2")
    assert (texts(first), first["has_more"]) == (["4", "3"], True)
    rest = await page(after=first["last_id"])
    assert (texts(rest), rest["has_more"]) == (["2", "1", "0"], False)
    assert texts(await page(order="asc", limit="1")) == ["0"]
    for query in ({"limit": "0"}, {"limit": "x"}, {"order": "up"}, {"after": "none"}):
        response = await client.get(f"/v1/responses/{body['id']}/input_items", params=query)
        assert (response.status_code, response.json()["error"]["param"]) == (400, next(iter(query)))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}, "input[0].call_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**WEATHER, "strict": True, "parameters": {"type": "object", "properties": {"a": {}}}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "none"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {}, "strict": True}}}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"response_format": {"type": "text"}}, "response_format"),
        ({"include": ["everything"]}, "include[0]"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"max_output_tokens": 5000}, "input"),
        ({"input": "refuse"}, "input"),
    ],
)
async def test_what_cannot_be_had_is_named(client: httpx.AsyncClient, fields: dict[str, Any], param: str) -> None:
    response = await post(client, **fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert (error["param"] or "").startswith(param)


async def test_errors_count_items_from_those_that_were_sent(client: httpx.AsyncClient) -> None:
    body = await made(client, input=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    response = await post(client, previous_response_id=body["id"], input=[{"role": "robot", "content": "x"}])
    assert response.json()["error"]["param"] == "input[0].role"


async def test_an_error_in_a_stream_fails_the_response(engine: FakeEngine) -> None:
    engine.fault = RuntimeError("a bug")
    async with http_client(engine) as client:
        told = events(await post(client, stream=True))
        assert told[-1]["type"] == "response.failed"
        failed = told[-1]["response"]
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert "a bug" not in failed["error"]["message"]
        assert (await client.get(f"/v1/responses/{failed['id']}")).status_code == 404


async def test_an_answer_that_was_given_up_is_no_response(engine: FakeEngine) -> None:
    engine.finish_reason = "abort"
    async with http_client(engine) as client:
        assert (await post(client)).status_code == 503
        assert events(await post(client, stream=True))[-1]["type"] == "response.failed"


async def test_a_refusal_keeps_its_status_in_a_stream_too(engine: FakeEngine) -> None:
    engine.refusal = RequestError("Full.", status=503, type="service_unavailable_error", retry_after_seconds=1)
    async with http_client(engine) as client:
        response = await post(client, stream=True)
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
