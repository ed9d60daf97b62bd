from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.unit.insight.made_up import PAGE_SIZE, chat, record_of

from pagefall.config import InsightConfig
from pagefall.errors import ConfigError
from pagefall.insight.request_log import (
    MAX_PROMPT_CHARACTERS,
    EndedLine,
    LogLine,
    LostLine,
    RefusedLine,
    RequestLog,
    ended_line,
    request_log,
    salt_hash,
)
from pagefall.insight.traffic import TrafficLog
from pagefall.messages import Divergence, MissedPages, PrefixReport, RequestId, RequestOutput, TokenIds
from pagefall.text.requests import (
    ChatMessage,
    ChatPrompt,
    GenerateRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
    Tool,
    ToolCall,
)

TOKENS: TokenIds = np.arange(40, dtype=np.uint32)
REPORT = PrefixReport(
    page_size=PAGE_SIZE,
    num_prompt_tokens=40,
    num_tokens_by_source={"device": 16, "host": 0, "storage": 0, "computed": 24, "unreached": 0},
    num_known_tokens=32,
    misses=(
        MissedPages(reason="other_salt", first_page=1, num_pages=1, num_tokens=16),
        MissedPages(reason="page_tail", first_page=2, num_pages=1, num_tokens=8),
    ),
    divergence=Divergence(
        token_index=20,
        has_other=True,
        is_cached=True,
        window_start=18,
        other_token_ids=(1, 2, 3),
        other_request_id=RequestId("before"),
    ),
    saved_seconds=0.5,
    queue_seconds=0.25,
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lines(path: Path) -> list[LogLine]:
    return [msgspec.json.decode(line, type=LogLine) for line in path.read_bytes().splitlines()]


def test_a_request_is_a_line_when_it_ends(tmp_path: Path) -> None:
    clock = Clock()
    log = RequestLog(str(tmp_path / "log"), redact_prompts=False)
    traffic = TrafficLog(InsightConfig(), observers=[log], clock=clock, unix_clock=lambda: 1000.0 + clock.now)
    name = RequestId("chatcmpl-1")
    request = GenerateRequest(request_id=name, prompt=chat("s", "u"), cache_salt="tenant", http_request_id="trace-1")
    traffic.begin(request, TOKENS, max_tokens=9, began_at=0.0)
    traffic.accept(name)
    for at in (2.0, 2.5, 3.5):
        clock.now = at
        traffic.push(RequestOutput(request_id=name, token_ids=(7,), prefix=REPORT if at == 2.0 else None))
    clock.now = 4.0
    traffic.push(RequestOutput(request_id=name, token_ids=(8,), finish_reason="stop"))
    assert log.close()
    assert msgspec.json.decode((tmp_path / "log").read_bytes()) == {
        "event": "ended",
        "time": 1000.0,
        "request_id": "chatcmpl-1",
        "http_request_id": "trace-1",
        "num_prompt_tokens": 40,
        "num_cached_tokens": 16,
        "num_known_tokens": 32,
        "num_generated_tokens": 4,
        "num_tokens_by_source": {"device": 16, "host": 0, "storage": 0, "computed": 24, "unreached": 0},
        "num_missed_tokens": {"other_salt": 16, "page_tail": 8},
        "divergence": {"token_index": 20, "has_other": True, "is_cached": True, "other_request_id": "before"},
        "finish_reason": "stop",
        "ttft_seconds": 2.0,
        "mean_itl_seconds": 0.666667,
        "total_seconds": 4.0,
        "queue_seconds": 0.25,
        "saved_seconds": 0.5,
        "cache_salt_hash": salt_hash("tenant"),
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
    }


def test_a_salt_is_never_in_clear() -> None:
    assert salt_hash("") is None
    digest = salt_hash("tenant")
    assert digest is not None
    assert (len(digest), digest) == (12, salt_hash("tenant"))
    assert digest != salt_hash("tenant2")
    line = msgspec.json.encode(ended_line(ended("x", cache_salt="tenant"), redact_prompts=False))
    assert b"tenant" not in line


def ended(prompt: Prompt | str | None, **fields: Any) -> Any:
    sent = TextPrompt(prompt) if isinstance(prompt, str) else prompt
    assert not isinstance(sent, TokenPrompt)
    return record_of(sent, TOKENS, REPORT, ended_at=12.0, finish_reason="stop", **fields)


@pytest.mark.parametrize("prompt", ["the secret", chat("the secret", "u"), None])
def test_a_redacted_prompt_is_not_in_the_line(prompt: ChatPrompt | str | None) -> None:
    line = ended_line(ended(prompt), redact_prompts=True)
    assert line.messages is None
    assert line.prompt is None
    assert b"secret" not in msgspec.json.encode(line)
    assert line.divergence is not None


def test_token_ids_leave_neither_messages_nor_a_prompt() -> None:
    line = ended_line(ended(None), redact_prompts=False)
    assert (line.messages, line.prompt, line.is_prompt_cut) == (None, None, False)


def test_a_long_prompt_is_cut_and_the_line_says_so() -> None:
    whole = ended_line(ended("x" * MAX_PROMPT_CHARACTERS), redact_prompts=False)
    assert (len(whole.prompt or ""), whole.is_prompt_cut) == (MAX_PROMPT_CHARACTERS, False)
    cut = ended_line(ended("x" * (MAX_PROMPT_CHARACTERS + 1)), redact_prompts=False)
    assert (len(cut.prompt or ""), cut.is_prompt_cut) == (MAX_PROMPT_CHARACTERS, True)
    messages = ended_line(ended(chat("a" * 10, "b" * MAX_PROMPT_CHARACTERS, "c")), redact_prompts=False)
    assert messages.is_prompt_cut
    assert messages.messages == (
        ChatMessage("system", "a" * 10),
        ChatMessage("user", "b" * (MAX_PROMPT_CHARACTERS - 10)),
        ChatMessage("assistant", ""),
    )


def calling(arguments: str, *contents: str) -> ChatMessage:
    return ChatMessage(
        "assistant", "".join(contents), tool_calls=(ToolCall(call_id="1", name="mail", arguments=arguments),)
    )


def test_tools_and_calls_are_written_in_the_order_in_which_they_were_sent() -> None:
    prompt = ChatPrompt(
        messages=(ChatMessage("user", "u"), calling("{}")), tools=(Tool(name="search"), Tool(name="mail"))
    )
    line = ended_line(ended(prompt), redact_prompts=False)
    assert [tool["function"]["name"] for tool in line.tools or ()] == ["search", "mail"]
    assert (line.messages, line.is_prompt_cut) == (prompt.messages, False)
    assert b"mail" not in msgspec.json.encode(ended_line(ended(prompt), redact_prompts=True))


def test_tools_and_calls_for_which_there_is_no_room_are_left_out_and_the_line_says_so() -> None:
    long = "x" * MAX_PROMPT_CHARACTERS
    line = ended_line(ended(ChatPrompt(messages=(calling(long, "content"),))), redact_prompts=False)
    assert (line.messages, line.is_prompt_cut) == ((ChatMessage("assistant", "content"),), True)
    user = (ChatMessage("user", "u"),)
    line = ended_line(ended(ChatPrompt(messages=user, tools=(Tool(name=long),))), redact_prompts=False)
    assert (line.tools, line.messages, line.is_prompt_cut) == (None, user, True)


def test_an_abort_before_the_prompt_was_settled_is_a_line_too() -> None:
    record = record_of(None, TOKENS, None, ended_at=11.0, finish_reason="abort", abort_reason="client_gone")
    line = ended_line(record, redact_prompts=False)
    assert (line.finish_reason, line.abort_reason, line.total_seconds) == ("abort", "client_gone", 1.0)
    assert (line.ttft_seconds, line.mean_itl_seconds, line.queue_seconds, line.divergence) == (None, None, None, None)


def test_refusals_are_lines_and_lost_lines_are_said(tmp_path: Path) -> None:
    begun, gate = threading.Event(), threading.Event()

    def write(fd: int, data: memoryview) -> int:
        begun.set()
        assert gate.wait(10)
        return os.write(fd, data)

    log = RequestLog(str(tmp_path / "log"), redact_prompts=False, unix_clock=lambda: 5.0, capacity=1, write=write)
    log.refused("queue_full")
    assert begun.wait(10)
    log.refused("too_long")
    log.refused("bad_prompt")
    gate.set()
    assert log.close()
    assert lines(tmp_path / "log") == [
        RefusedLine(time=5.0, reason="queue_full"),
        LostLine(time=5.0, num_lines=1),
        RefusedLine(time=5.0, reason="too_long"),
    ]


def test_the_thread_has_a_name_and_ends_with_the_log(tmp_path: Path) -> None:
    def is_running() -> bool:
        return any(thread.name == "request-log" for thread in threading.enumerate())

    with request_log(InsightConfig(request_log=str(tmp_path / "log"))) as observers:
        [observer] = observers
        assert is_running()
        observer.ended(ended("hello"))
    assert not is_running()
    [line] = lines(tmp_path / "log")
    assert isinstance(line, EndedLine)
    assert line.prompt == "hello"


def test_without_the_flag_nobody_listens() -> None:
    with request_log(InsightConfig()) as observers:
        assert observers == ()


def test_a_log_that_cannot_be_opened_is_a_configuration_error(tmp_path: Path) -> None:
    config = InsightConfig(request_log=str(tmp_path / "missing" / "log"))
    with pytest.raises(ConfigError, match=r"--request-log: .*make the folder"), request_log(config):
        pass
