"""`/v1/messages`, with Anthropic's own client over a real socket, and by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import msgspec
import pytest
from tests import chat_templates
from tests.byte_tokenizer import CHAT_TEMPLATE, byte_tokenizer
from tests.unit.api.fake_engine import MODEL, WORDS, FakeEngine, http_client, listening

from pagefall.config import HttpConfig
from pagefall.errors import RequestError
from pagefall.messages import PrefixReport
from pagefall.text.constraints import JsonSchema, Lark
from pagefall.text.replies.dialects import ReplyFormat
from pagefall.text.requests import ChatMessage, ChatPrompt, PinRequest, ToolCall

pytestmark = pytest.mark.anyio

ANSWER = "".join(WORDS)
CALL = ('Let me see. <tool_call>\n{"name": "weather", ', '"arguments": {"city": "Oslo"}}', "\n</tool_call>", "")
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "Of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@asynccontextmanager
async def client_of(engine: FakeEngine, **settings: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with (
        listening(engine, HttpConfig(**settings)) as (host, port),
        anthropic.AsyncAnthropic(base_url=f"http://{host}:{port}", api_key="key", max_retries=0) as client,
    ):
        yield client


async def post(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}], **fields}
    return await client.post("/v1/messages", json={name: value for name, value in body.items() if value is not None})


def events(response: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    """The events of a complete stream, by name."""
    *blocks, empty = response.text.split("\n\n")
    assert empty == ""
    found: list[tuple[str, dict[str, Any]]] = []
    for block in blocks:
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), msgspec.json.decode(data.removeprefix("data: "))))
    assert all(name == data["type"] for name, data in found)
    return found


async def prompt_of(client: httpx.AsyncClient, engine: FakeEngine, **fields: Any) -> ChatPrompt:
    assert (await post(client, **fields)).status_code == 200
    prompt = engine.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


async def test_anthropics_client_gets_an_answer_whole_and_streamed(engine: FakeEngine) -> None:
    question: list[anthropic.types.MessageParam] = [{"role": "user", "content": "Hi"}]
    async with client_of(engine) as client:
        whole = await client.messages.create(model=MODEL, max_tokens=50, messages=question)
        async with client.messages.stream(model=MODEL, max_tokens=50, messages=question) as stream:
            texts = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
        counted = await client.messages.count_tokens(model=MODEL, messages=question)
    assert [block.text for block in whole.content if block.type == "text"] == [ANSWER] == ["".join(texts)]
    assert texts == list(WORDS[:-1])
    assert [block.text for block in final.content if block.type == "text"] == [ANSWER]
    for message in (whole, final):
        assert (message.role, message.model, message.type) == ("assistant", MODEL, "message")
        assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
        assert (message.usage.cache_read_input_tokens, message.usage.output_tokens) == (3, 6)
    assert counted.input_tokens == 1


async def test_anthropics_client_calls_a_tool_and_brings_its_result(engine: FakeEngine) -> None:
    engine.words = CALL
    tool: anthropic.types.ToolParam = {
        "name": "weather",
        "description": "Of a city.",
        "input_schema": WEATHER["input_schema"],
    }
    turns: list[anthropic.types.MessageParam] = [{"role": "user", "content": "How is Oslo?"}]
    async with client_of(engine) as client:
        async with client.messages.stream(model=MODEL, max_tokens=50, messages=turns, tools=[tool]) as stream:
            message = await stream.get_final_message()
        whole = await client.messages.create(model=MODEL, max_tokens=50, messages=turns, tools=[tool])
        text, call = message.content
        assert text.type == "text"
        assert text.text.strip() == "Let me see."
        assert call.type == "tool_use"
        assert (call.name, call.input) == ("weather", {"city": "Oslo"})
        assert message.stop_reason == whole.stop_reason == "tool_use"
        assert [block.type for block in whole.content] == ["text", "tool_use"]
        turns += [
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}]},
        ]
        engine.words = WORDS
        await client.messages.create(model=MODEL, max_tokens=50, messages=turns, tools=[tool])
    prompt = engine.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert [tool.name for tool in prompt.tools] == ["weather"]
    assert prompt.messages == (
        ChatMessage("user", "How is Oslo?"),
        ChatMessage(
            "assistant",
            text.text,
            tool_calls=(ToolCall(call_id=call.id, name="weather", arguments='{"city": "Oslo"}'),),
        ),
        ChatMessage("tool", "Rain.", tool_call_id=call.id),
    )


@pytest.mark.parametrize("template", [chat_templates.PRINTS_STRINGS, CHAT_TEMPLATE])
async def test_a_call_comes_back_as_the_text_that_is_in_the_cache(
    client: httpx.AsyncClient, engine: FakeEngine, template: str
) -> None:
    written = '<tool_call>\n{"name": "weather", "arguments": {"city": "Łódź", "days": [1, 2]}}\n</tool_call>'
    engine.words = (written, "")
    asked = [{"role": "user", "content": "How is Łódź?"}]
    content = (await post(client, messages=asked, tools=[WEATHER])).json()["content"]
    first = engine.requests[-1].prompt
    assert isinstance(first, ChatPrompt)
    result = {"type": "tool_result", "tool_use_id": content[0]["id"], "content": "Rain."}
    turns = [*asked, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    second = await prompt_of(client, engine, messages=turns, tools=[WEATHER])
    tokenizer = byte_tokenizer(template)
    before, after = (tokenizer.apply_chat_template(prompt.messages, tools=prompt.tools) for prompt in (first, second))
    assert after.startswith(before + written)


async def test_anthropics_client_raises_its_own_errors(engine: FakeEngine) -> None:
    async with client_of(engine, api_key="other") as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.messages.create(model=MODEL, max_tokens=5, messages=[{"role": "user", "content": "Hi"}])
        with pytest.raises(anthropic.NotFoundError) as found:
            await client.with_options(api_key="other").messages.create(
                model="none", max_tokens=5, messages=[{"role": "user", "content": "Hi"}]
            )
        assert isinstance(found.value.body, dict)
        assert found.value.body["error"]["type"] == "not_found_error"


async def test_the_events_come_in_anthropics_order(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.words = CALL
    response = await post(client, stream=True, tools=[WEATHER])
    assert response.headers["content-type"].startswith("text/event-stream")
    told = events(response)
    names = [name for name, _ in told]
    assert names[:4] == ["message_start", "ping", "content_block_start", "content_block_delta"]
    assert names[-2:] == ["message_delta", "message_stop"]
    blocks = [(data["index"], name) for name, data in told if name in ("content_block_start", "content_block_stop")]
    assert blocks == [
        (0, "content_block_start"),
        (0, "content_block_stop"),
        (1, "content_block_start"),
        (1, "content_block_stop"),
    ]
    pieces = [data["delta"]["partial_json"] for _, data in told if "partial_json" in data.get("delta", {})]
    assert msgspec.json.decode("".join(pieces)) == {"city": "Oslo"}
    assert told[-2][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


async def test_thoughts_are_blocks_of_their_own(engine: FakeEngine) -> None:
    engine.model = msgspec.structs.replace(engine.model, replies=ReplyFormat(thinking="qwen3"))
    engine.words = ("<think>", "hm", "</think>", "Yes.", "")
    async with http_client(engine) as client:
        body = (await post(client)).json()
        told = events(await post(client, stream=True))
    assert body["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "Yes.", "citations": None},
    ]
    deltas = [data["delta"] for name, data in told if name == "content_block_delta"]
    assert deltas == [{"type": "thinking_delta", "thinking": "hm"}, {"type": "text_delta", "text": "Yes."}]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"max_tokens": 2}, "max_tokens"), ({}, "end_turn"), ({"max_tokens": 5000}, "end_turn")],
)
async def test_the_stop_reason_is_anthropics(client: httpx.AsyncClient, fields: dict[str, Any], reason: str) -> None:
    assert (await post(client, **fields)).json()["stop_reason"] == reason


async def test_a_stop_sequence_is_named(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.stop_string = "END"
    body = (await post(client, stop_sequences=["END"])).json()
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "END")
    assert engine.requests[-1].stop == ("END",)


async def test_a_limit_beyond_the_context_is_the_contexts_end() -> None:
    engine = FakeEngine(context_length=4)
    async with http_client(engine) as client:
        body = (await post(client, max_tokens=5000)).json()
        assert (body["stop_reason"], body["usage"]["output_tokens"]) == ("model_context_window_exceeded", 3)
        body = (await post(client, max_tokens=3)).json()
        assert body["stop_reason"] == "max_tokens"
        # Below the context's length, but not with the prompt.
        long = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "x"}]
        body = (await post(client, max_tokens=3, messages=long)).json()
        assert (body["stop_reason"], body["usage"]["output_tokens"]) == ("model_context_window_exceeded", 2)


async def test_what_an_answer_used_adds_up_to_the_prompt(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.num_pinned_tokens = 37
    messages = [{"role": role, "content": "x"} for role in ("user", "assistant") * 19] + [
        {"role": "user", "content": "y"}
    ]
    engine.reports = [report(num_prompt_tokens=39, num_cached=3)]
    told = dict(events(await post(client, stream=True, messages=messages)))
    # Of the 37 tokens that are to be kept, those of two whole pages are.
    expected = {"input_tokens": 7, "cache_creation_input_tokens": 29, "cache_read_input_tokens": 3}
    assert told["message_start"]["message"]["usage"] == {**expected, "output_tokens": 0}
    assert told["message_delta"]["usage"] == {**expected, "output_tokens": 6}


def report(*, num_prompt_tokens: int, num_cached: int) -> PrefixReport:
    computed = num_prompt_tokens - num_cached
    return PrefixReport(
        page_size=16,
        num_prompt_tokens=num_prompt_tokens,
        num_tokens_by_source={"device": num_cached, "host": 0, "storage": 0, "computed": computed, "unreached": 0},
        num_known_tokens=num_cached,
        misses=(),
    )


async def test_breakpoints_become_pins(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    def marked(text: str, **control: str) -> dict[str, Any]:
        return {"type": "text", "text": text, "cache_control": {"type": "ephemeral", **control}}

    await post(
        client,
        system=[{"type": "text", "text": "Be brief."}, marked("Really.", ttl="1h")],
        tools=[{**WEATHER, "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": [marked("Hi")]},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, marked("b", ttl="5m")]},
        ],
    )
    assert engine.requests[-1].pins == (
        PinRequest(num_messages=1, ttl_seconds=3600.0),
        PinRequest(num_messages=2, ttl_seconds=300.0),
        PinRequest(num_messages=4, ttl_seconds=300.0),
    )


@pytest.mark.parametrize("is_marked", [True, False])
async def test_a_breakpoint_of_the_whole_request_keeps_all_of_it(
    client: httpx.AsyncClient, engine: FakeEngine, is_marked: bool
) -> None:
    await post(client, cache_control={"type": "ephemeral"} if is_marked else None)
    assert engine.requests[-1].pins == ((PinRequest(num_messages=1, ttl_seconds=300.0),) if is_marked else ())


async def test_blocks_become_turns_of_the_template(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo", "days": 1.0}}
    prompt = await prompt_of(
        client,
        engine,
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cch=1234"},
            {"type": "text", "text": "Be brief."},
        ],
        messages=[
            {"role": "user", "content": "one"},
            {"role": "user", "content": [{"type": "text", "text": "two"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, use]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "Rain."}]},
                    {"type": "text", "text": "three"},
                ],
            },
        ],
    )
    assert prompt.messages == (
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "one\ntwo"),
        ChatMessage(
            "assistant",
            "",
            tool_calls=(ToolCall(call_id="t1", name="weather", arguments='{"city": "Oslo", "days": 1.0}'),),
            reasoning_content="hm",
        ),
        ChatMessage("tool", "Rain.", tool_call_id="t1"),
        ChatMessage("user", "three"),
    )
    assert prompt.add_generation_prompt


async def test_a_last_message_of_the_assistant_is_continued(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]
    prompt = await prompt_of(client, engine, messages=turns)
    assert (prompt.continue_final_message, prompt.add_generation_prompt) == (True, False)


async def test_thinking_switches_the_template(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    kinds = ({"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, None)
    kwargs = [(await prompt_of(client, engine, thinking=kind)).template_kwargs for kind in kinds]
    assert [known.get("enable_thinking") for known in kwargs] == [True, False, None]


async def test_the_choice_of_a_tool_and_a_schema_become_constraints(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    for choice, constrained in [
        ({"type": "auto"}, False),
        ({"type": "any"}, True),
        ({"type": "tool", "name": "weather"}, True),
        ({"type": "none"}, False),
    ]:
        await post(client, tools=[WEATHER], tool_choice=choice)
        assert isinstance(engine.requests[-1].constraint, Lark) == constrained
    schema = {"type": "object", "properties": {}}
    await post(client, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert engine.requests[-1].constraint == JsonSchema(schema=schema, param="output_config.format")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x"}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "y"}]}]},
            "messages[0]",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a", "input_schema": {"type": "string"}}]}, "tools[0].input_schema"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "none"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"temperature": 3}, "temperature"),
        ({"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "2d"}}]}, "ttl"),
        (
            {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}] * 5},
            "cache_control",
        ),
    ],
)
async def test_what_cannot_be_had_is_named_in_anthropics_shape(
    client: httpx.AsyncClient, fields: dict[str, Any], named: str
) -> None:
    response = await post(client, **fields)
    assert response.status_code == 400
    body = response.json()
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert named in body["error"]["message"]


async def test_failures_on_the_way_have_the_shape_too(engine: FakeEngine) -> None:
    async with http_client(engine) as client:
        assert (await client.get("/v1/messages")).json()["type"] == "error"
        assert (await client.post("/v1/messages", content=b"{")).json()["error"]["type"] == "invalid_request_error"
        engine.refusal = RequestError("Full.", status=503, type="service_unavailable_error", retry_after_seconds=1)
        response = await post(client)
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json()["error"] == {"type": "overloaded_error", "message": "Full."}


async def test_an_error_in_a_stream_is_its_last_event(engine: FakeEngine) -> None:
    engine.fault = RuntimeError("a bug")
    async with http_client(engine) as client:
        told = events(await post(client, stream=True))
    assert told[-1][1]["error"]["type"] == "api_error"
    assert "a bug" not in told[-1][1]["error"]["message"]


async def test_an_answer_that_was_given_up_is_no_answer(engine: FakeEngine) -> None:
    engine.finish_reason = "abort"
    async with http_client(engine) as client:
        assert (await post(client)).status_code == 503
        assert events(await post(client, stream=True))[-1][0] == "error"


@pytest.mark.parametrize("headers", [{"x-api-key": "key"}, {"authorization": "Bearer key"}])
async def test_a_key_may_come_in_either_header(engine: FakeEngine, headers: dict[str, str]) -> None:
    async with http_client(engine, HttpConfig(api_key="key")) as client:
        assert (await post(client)).status_code == 401
        client.headers.update(headers)
        assert (await post(client)).status_code == 200
