from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tests import chat_templates
from tests.byte_tokenizer import byte_tokenizer

from pagefall.errors import RequestError
from pagefall.text.requests import ChatMessage, Tool, ToolCall
from pagefall.text.tokenizer import Tokenizer
from pagefall.text.tool_schema import canonical_schema

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["b", "a"], "default": {"z": 1, "y": 2}},
        "area": {"anyOf": [{"description": "d", "type": "null"}, {"$ref": "#/$defs/x"}]},
    },
    "required": ["city", "area"],
    "$defs": {"x": {"type": "object", "properties": {"type": {"type": "integer"}}}},
}
WEATHER = Tool(name="weather", description="Now.", parameters=canonical_schema(SCHEMA))
ASK = ChatMessage("user", "Rain?")


def call(arguments: str, call_id: str = "call_1") -> ToolCall:
    return ToolCall(call_id=call_id, name="weather", arguments=arguments)


def calling(*calls: ToolCall, content: str = "") -> ChatMessage:
    return ChatMessage("assistant", content, tool_calls=calls)


def answer(content: str, call_id: str = "call_1") -> ChatMessage:
    return ChatMessage("tool", content, tool_call_id=call_id)


def shuffled(value: Any, random: random.Random) -> Any:
    if isinstance(value, dict):
        keys = random.sample(sorted(value), len(value))
        return {key: shuffled(value[key], random) for key in keys}
    return [shuffled(element, random) for element in value] if isinstance(value, list) else value


def test_a_schemas_keys_have_one_order_whatever_the_clients_was() -> None:
    texts = {json.dumps(canonical_schema(shuffled(SCHEMA, random.Random(seed)))) for seed in range(20)}
    assert len(texts) == 1
    assert json.loads(texts.pop()) == SCHEMA
    assert list(canonical_schema(SCHEMA)) == ["type", "properties", "required", "$defs"]
    assert list(canonical_schema(SCHEMA)["properties"]["area"]["anyOf"][0]) == ["type", "description"]


def test_a_template_that_knows_tools_gets_them_in_the_usual_form() -> None:
    tokenizer = byte_tokenizer(chat_templates.CHATML_WITH_TOOLS)
    text = tokenizer.apply_chat_template([ASK], tools=[WEATHER, Tool(name="ping")])
    [first, second] = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert first == {
        "type": "function",
        "function": {"name": "weather", "description": "Now.", "parameters": SCHEMA},
    }
    assert second["function"] == {"name": "ping", "parameters": {"type": "object", "properties": {}}}


def test_calls_are_given_as_objects_and_as_text_to_templates_that_print_it() -> None:
    turns = [ASK, calling(call('{"city":"Rome"}'), content="Wait."), answer("no")]
    as_object = byte_tokenizer(chat_templates.CHATML_WITH_TOOLS).apply_chat_template(turns, tools=[WEATHER])
    assert 'Wait.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>' in as_object
    as_text = byte_tokenizer(chat_templates.PRINTS_STRINGS).apply_chat_template(turns, tools=[WEATHER])
    assert '{"name": "weather", "arguments": {"city":"Rome"}}' in as_text


@pytest.mark.parametrize("arguments", ["", "{}", '{"city": "lo', "[1]", "not JSON", "{" * 5000])
def test_arguments_that_are_no_object_do_not_fail_the_turns_after_them(arguments: str) -> None:
    for template in (chat_templates.CHATML_WITH_TOOLS, chat_templates.PRINTS_STRINGS):
        tokenizer = byte_tokenizer(template)
        assert "weather" in tokenizer.apply_chat_template([ASK, calling(call(arguments)), answer("?")], tools=[WEATHER])


def test_parallel_calls_are_told_one_by_one_to_a_template_that_refuses_them() -> None:
    tokenizer = byte_tokenizer(chat_templates.ONE_CALL)
    turns = [
        ASK,
        calling(call('{"city": "Rome"}', "a"), call('{"city": "Oslo"}', "b")),
        answer("dry", "b"),
        answer("wet", "a"),
        ChatMessage("user", "Thanks"),
    ]
    text = tokenizer.apply_chat_template(turns, tools=[WEATHER]).replace("<|start_header_id|>", "|")
    assert text[1:].replace("<|end_header_id|>", ":") == (
        "user:Rain?|assistant:Rome|tool:wet|assistant:Oslo|tool:dry|user:Thanks"
    )


def test_ids_of_other_servers_are_made_short_for_templates_that_want_them_so() -> None:
    tokenizer = byte_tokenizer(chat_templates.SHORT_IDS)
    text = tokenizer.apply_chat_template([ASK, calling(call("{}", "call_long_one")), answer("no", "call_long_one")])
    [(short, told)] = [(text.split("[CALL_ID]")[1][:9], text.split("[TOOL_RESULTS]")[1][:9])]
    assert short == told
    assert short.isalnum()
    kept = tokenizer.apply_chat_template([ASK, calling(call("{}", "abcDEF123"))])
    assert "[CALL_ID]abcDEF123" in kept


def test_reasoning_is_given_to_templates_that_write_it() -> None:
    tokenizer = byte_tokenizer(chat_templates.THINKS)
    thought = ChatMessage("assistant", "Yes.", reasoning_content="Hm.")
    text = tokenizer.apply_chat_template([ASK, thought], add_generation_prompt=False)
    assert text.endswith("<think>\nHm.\n</think>\n\nYes.<|im_end|>\n")


def test_a_template_without_tools_is_told_of_them_in_the_system_message(embedded: Tokenizer) -> None:
    assert not embedded.knows_tools
    text = embedded.apply_chat_template([ChatMessage("system", "Be brief."), ASK], tools=[WEATHER])
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    [line] = [line for line in text.splitlines() if line.startswith('{"type"')]
    assert json.loads(line)["function"]["parameters"] == SCHEMA
    alone = embedded.apply_chat_template([ASK], tools=[WEATHER])
    assert alone.startswith("<|im_start|>system\n# Tools\n")


def test_calls_and_their_answers_are_plain_turns_for_such_a_template(embedded: Tokenizer) -> None:
    turns = [
        ASK,
        calling(call('{"city":  "Rome"}', "a"), call("{}", "b"), content="Wait."),
        answer("wet", "a"),
        answer("dry", "b"),
    ]
    text = embedded.apply_chat_template(turns)
    assert text.endswith(
        '<|im_start|>assistant\nWait.\n<tool_call>\n{"name": "weather", "arguments": {"city":  "Rome"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nwet\n</tool_response>\n<tool_response>\ndry\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_what_no_form_of_the_conversation_suits_is_the_requests_fault() -> None:
    tokenizer = byte_tokenizer(chat_templates.ONE_CALL)
    with pytest.raises(RequestError) as raised:
        tokenizer.apply_chat_template([ASK, calling(call('{"town": "Rome"}'))], tools=[WEATHER])
    assert raised.value.param == "messages"
