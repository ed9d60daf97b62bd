"""Lines of logs as observations, or an error that names the field."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.byte_tokenizer import byte_tokenizer
from tests.chat_templates import CHATML_WITH_TOOLS

from pagefall.cli.request_lines import BadLineError, LineReader
from pagefall.insight.diagnosis.observations import Observation
from pagefall.insight.records import RequestRecord
from pagefall.insight.request_log import ended_line
from pagefall.messages import MissedPages, PrefixReport, RequestId
from pagefall.text.requests import ChatMessage, ChatPrompt, TextPrompt

READER = LineReader(byte_tokenizer(), 16)
MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
CHAT = ChatPrompt(messages=(ChatMessage("system", "Be kind."), ChatMessage("user", "Hi")))
RENDERED = "system: Be kind.\nuser: Hi\nassistant: "


def read(line: Any) -> list[Observation]:
    return list(READER.read(json.dumps(line).encode()))


def text_of(observation: Observation) -> str:
    return bytes(observation.token_ids.tolist()).decode()


def test_a_chat_is_rendered_by_the_template() -> None:
    [observation] = read({"model": "any", "messages": MESSAGES, "temperature": 0, "stream": True})
    assert observation.prompt == CHAT
    assert text_of(observation) == RENDERED


def test_a_line_of_a_batch_file_is_its_body() -> None:
    [observation] = read(
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": MESSAGES}}
    )
    assert observation.prompt == CHAT


def test_what_stands_beside_the_body_counts() -> None:
    line = {"time": 12.5, "worker": 3, "cache_salt": "ann", "body": {"messages": MESSAGES}}
    [observation] = read(line)
    assert (observation.time, observation.worker, observation.cache_salt) == (12.5, "3", "ann")


def test_times_may_be_text() -> None:
    [utc] = read({"time": "2026-11-30T02:14:05", "prompt": "x"})
    [zoned] = read({"time": "2026-11-30T03:14:05+01:00", "prompt": "x"})
    assert utc.time == zoned.time == 1796004845


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("abc", ["abc"]),
        (["abc", "de"], ["abc", "de"]),
        ([97, 98], ["ab"]),
        ([[97], [98, 99]], ["a", "bc"]),
    ],
)
def test_a_completion_has_a_prompt_or_several(prompt: Any, texts: list[str]) -> None:
    observations = read({"prompt": prompt})
    assert [text_of(observation) for observation in observations] == texts
    is_text = isinstance(prompt, str) or isinstance(prompt[0], str)
    assert all((observation.prompt is not None) == is_text for observation in observations)


def test_parts_of_text_developers_and_tool_calls_are_text() -> None:
    [observation] = read(
        {
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind."}]},
                {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
            ]
        }
    )
    assert isinstance(observation.prompt, ChatPrompt)
    assert [(m.role, m.content) for m in observation.prompt.messages] == [
        ("system", "Be\nkind."),
        ("assistant", '[{"id":"1"}]'),
    ]


def test_tools_stand_before_the_messages_in_the_order_sent() -> None:
    [observation] = read({"messages": MESSAGES, "tools": [{"b": 1, "a": 2}]})
    assert observation.tools == [{"b": 1, "a": 2}]
    assert text_of(observation) == '[{"b":1,"a":2}]\n' + RENDERED


WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}, "type": "object"}},
}
CALLS = [
    {"role": "user", "content": "Rain?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
    },
    {"role": "tool", "content": "no", "tool_call_id": "c1"},
]


def test_tools_and_calls_are_what_the_template_makes_of_them() -> None:
    tokenizer = byte_tokenizer(CHATML_WITH_TOOLS)
    line = {"messages": CALLS, "tools": [WEATHER]}
    [observation] = LineReader(tokenizer, 16).read(json.dumps(line).encode())
    assert isinstance(observation.prompt, ChatPrompt)
    text = text_of(observation)
    assert text == tokenizer.apply_chat_template(observation.prompt.messages, tools=observation.prompt.tools)
    assert text.startswith("<|im_start|>system\n# Tools\n<tools>\n")
    assert '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>' in text


def test_the_keys_of_a_schema_have_the_order_in_which_the_server_writes_them() -> None:
    other = {"function": dict(reversed(WEATHER["function"].items())), "type": "function"}
    [one], [two] = read({"messages": CALLS, "tools": [WEATHER]}), read({"messages": CALLS, "tools": [other]})
    assert json.dumps(one.tools) == json.dumps(two.tools)
    assert text_of(one) == text_of(two)


def test_a_request_log_brings_the_tools_and_calls_of_the_request() -> None:
    [sent] = read({"messages": CALLS, "tools": [WEATHER]})
    assert isinstance(sent.prompt, ChatPrompt)
    record = RequestRecord(
        request_id=RequestId("r"),
        prompt=sent.prompt,
        token_ids=sent.token_ids,
        cache_salt="",
        max_tokens=1,
        arrived_at=1000.0,
        began_at=1.0,
    )
    [logged] = read_line(record, redact=False)
    assert (logged.prompt, logged.tools) == (sent.prompt, sent.tools)
    assert text_of(logged) == text_of(sent)


def test_a_request_log_brings_what_the_server_counted() -> None:
    report = PrefixReport(
        page_size=16,
        num_prompt_tokens=40,
        num_tokens_by_source={"device": 16, "host": 0, "storage": 0, "computed": 24, "unreached": 0},
        num_known_tokens=32,
        misses=(MissedPages(reason="evicted", first_page=1, num_pages=1, num_tokens=16),),
        saved_seconds=0.25,
    )
    [bare] = read({"messages": MESSAGES})
    record = RequestRecord(
        request_id=RequestId("r"),
        prompt=CHAT,
        token_ids=bare.token_ids,
        cache_salt="ann",
        max_tokens=1,
        arrived_at=1000.0,
        began_at=1.0,
        report=report,
        finish_reason="stop",
    )
    [observation] = read_line(record, redact=False)
    assert observation.prompt == CHAT
    assert observation.cache_salt not in ("", "ann")
    assert observation.report is not None
    assert observation.report.num_tokens_by_source["device"] == 16
    assert (observation.report.num_known_tokens, observation.report.saved_seconds) == (32, 0.25)
    assert [(miss.reason, miss.num_tokens) for miss in observation.report.misses] == [("evicted", 16)]
    with pytest.raises(BadLineError, match="redacted"):
        read_line(record, redact=True)


def read_line(record: RequestRecord, *, redact: bool) -> list[Observation]:
    return list(READER.read(msgspec.json.encode(ended_line(record, redact_prompts=redact))))


@pytest.mark.parametrize(
    "line", [b"", b"  \n", b'{"event": "refused", "time": 1, "reason": "queue_full"}', b'{"event":"lost"}']
)
def test_lines_that_are_no_requests_are_passed_over(line: bytes) -> None:
    assert list(READER.read(line)) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "Expected `object`"),
        (b"{}", "messages or prompt is missing"),
        (b'{"body": {}}', "body.messages or body.prompt is missing"),
        (b'{"messages": []}', "messages: it is empty"),
        (b'{"messages": [{"role": 3}]}', r"messages\[0\]\.role: Expected `str`"),
        (b'{"messages": [{"content": "x"}]}', r"messages\[0\]: .*role"),
        (b'{"messages": [{"role": "user", "content": "refuse"}]}', "messages: .*no such turns"),
        (
            b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            r"messages\[0\]\.content\[0\]: 'image_url'",
        ),
        (b'{"messages": [{"role": "user", "content": "x"}], "prompt": "x"}', "contradict each other"),
        (b'{"prompt": []}', "prompt: it is empty"),
        (b'{"prompt": [1, "x"]}', "prompt: not all of it are token ids"),
        (b'{"prompt": ["x", 1]}', "prompt: it mixes"),
        (b'{"prompt": [-1]}', "prompt: not all of it are token ids"),
        (b'{"prompt": "x", "time": "noon"}', "time: 'noon'"),
    ],
)
def test_a_line_that_cannot_be_used_names_the_field(line: bytes, words: str) -> None:
    with pytest.raises(BadLineError, match=words):
        list(READER.read(line))


def test_text_prompts_keep_their_text() -> None:
    [observation] = read({"prompt": "abc"})
    assert observation.prompt == TextPrompt("abc")
