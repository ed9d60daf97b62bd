from __future__ import annotations

import json

import pytest

from pagefall.router.bodies import Body, prompt_text, read_body
from pagefall.text.requests import ChatMessage, ChatPrompt, TextPrompt, TokenPrompt


def body(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def messages(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text} for text in texts]


def test_what_routing_needs_of_a_chat_is_read_and_the_rest_passed_over() -> None:
    content = body(
        model="m",
        messages=messages("Hi"),
        cache_salt="s",
        user="u",
        max_completion_tokens=9,
        stream=True,
        new={"x": []},
    )
    read = read_body(content, "chat")
    assert isinstance(read.prompt, ChatPrompt)
    assert [message.content for message in read.prompt.messages] == ["Hi"]
    assert (read.model, read.cache_salt, read.user, read.max_tokens, read.stream) == ("m", "s", "u", 9, True)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("text", TextPrompt("text")),
        (["first", "second"], TextPrompt("first")),
        ([1, 2], TokenPrompt((1, 2))),
        ([[3], [4]], TokenPrompt((3,))),
        ("", None),
        ([], None),
        ([1, "x"], None),
        ([-1], None),
        (7, None),
    ],
)
def test_of_a_completions_prompts_the_first_is_read(prompt: object, expected: object) -> None:
    assert read_body(body(prompt=prompt), "completions").prompt == expected


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'"x"', b'{"messages": 1e999', b"[" * 100_000])
def test_what_is_no_request_is_read_as_nothing(content: bytes) -> None:
    assert read_body(content, "chat") == Body()


def test_a_field_of_the_wrong_type_does_not_hide_the_others() -> None:
    read = read_body(body(model=5, messages=messages("Hi"), cache_salt=[], user={}, stream="yes", max_tokens=3), "chat")
    assert read.prompt is not None
    assert (read.model, read.cache_salt, read.user, read.stream, read.max_tokens) == (None, "", "", False, 3)


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "function"}]},
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"messages": []},
    ],
)
def test_a_prompt_that_is_not_ours_to_write_is_left_to_its_text(more: dict[str, object]) -> None:
    assert read_body(body(**{"messages": messages("Hi"), **more}), "chat").prompt is None


def test_what_routing_needs_of_a_message_in_anthropics_shape_is_read() -> None:
    block = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    read = read_body(body(model="m", system=[block], messages=messages("Hi"), max_tokens=9, stream=True), "messages")
    assert read.prompt == ChatPrompt(messages=(ChatMessage("system", "Be brief."), ChatMessage("user", "Hi")))
    assert (read.model, read.max_tokens, read.stream) == ("m", 9, True)
    assert read_body(body(messages=[{"role": "robot", "content": "x"}]), "messages").prompt is None
    assert read_body(body(messages=messages("Hi"), tools=[{"name": "f"}]), "messages").prompt is None


def test_what_routing_needs_of_a_response_is_read() -> None:
    read = read_body(body(instructions="Be brief.", input="Hi", max_output_tokens=9), "responses")
    assert read.prompt == ChatPrompt(messages=(ChatMessage("system", "Be brief."), ChatMessage("user", "Hi")))
    assert read.max_tokens == 9
    assert read_body(body(input="Hi", previous_response_id="resp_1"), "responses").prompt is None
    assert read_body(body(input=[{"type": "unknown"}]), "responses").prompt is None


@pytest.mark.parametrize("system", ["system", "instructions"])
def test_the_text_of_a_prompt_begins_with_what_its_template_writes_first(system: str) -> None:
    name = "messages" if system == "system" else "input"
    first, second = (prompt_text(body(**{name: messages(text), system: "Be brief."})) for text in ("a", "b"))
    assert first.startswith('"Be brief."')
    assert first != second


def test_the_text_of_the_next_turn_begins_with_the_text_of_this_one() -> None:
    first, second = (
        prompt_text(body(messages=messages("a"))),
        prompt_text(body(messages=messages("a", "b"), stream=True)),
    )
    assert first
    assert second.startswith(first)
    assert not prompt_text(body(messages=messages("a", "b"), tools=[{"x": 1}])).startswith(first)
