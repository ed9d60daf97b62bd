from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pagefall.bench.load.receiver import AnswerReceiver
from pagefall.bench.load.samples import Answer, RequestFailedError


def event(**fields: Any) -> bytes:
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"


def text(said: str, finish_reason: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "text": said, "finish_reason": finish_reason}])


def delta(finish_reason: str | None = None, **fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": finish_reason}], usage=None)


USAGE = event(
    choices=[],
    usage={
        "prompt_tokens": 50,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 48, "cached_tokens_by_tier": {"host": 48}},
    },
)
DONE = b"data: [DONE]\n\n"


def receive(*data: bytes) -> Answer:
    """Sent at 10; the first of `data` arrives at 11, the next one at 12, and so on."""
    receiver = AnswerReceiver(sent_at=10.0)
    for now, chunk in enumerate(data, start=11):
        receiver.receive(chunk, float(now))
    return receiver.answer()


def test_every_token_has_the_time_of_its_arrival() -> None:
    answer = receive(text("a"), text("b") + text("c"), text("", "length"), USAGE + DONE)
    assert answer.arrivals == (11.0, 12.0, 12.0)
    assert (answer.sent_at, answer.ended_at, answer.text) == (10.0, 14.0, "abc")
    assert (answer.num_prompt_tokens, answer.num_output_tokens, answer.cached_tokens) == (50, 4, 48)
    assert answer.cached_tokens_by_tier == {"host": 48}


def test_an_event_that_says_only_who_speaks_or_that_it_is_over_is_no_token() -> None:
    answer = receive(delta(role="assistant", content=""), delta(content="Hi"), delta("stop"), DONE)
    assert answer.arrivals == (12.0,)
    assert answer.text == "Hi"


def test_tokens_that_are_held_back_or_thought_are_tokens() -> None:
    answer = receive(text("a"), text(""), text("b", "length"))
    assert answer.arrivals == (11.0, 12.0, 13.0)
    assert receive(delta(reasoning_content="Hm"), delta("stop", content="Hi")).arrivals == (11.0, 12.0)


def test_what_a_server_does_not_tell_is_unknown() -> None:
    answer = receive(text("a"), DONE)
    assert (answer.num_prompt_tokens, answer.num_output_tokens, answer.cached_tokens) == (None, None, None)
    silent = receive(text("a"), event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 1}), DONE)
    assert (silent.num_prompt_tokens, silent.cached_tokens) == (3, None)


def test_an_answer_of_nothing_but_its_end_came_with_its_end() -> None:
    answer = receive(text("", "stop"), USAGE, DONE)
    assert answer.arrivals == (13.0,)


def test_the_first_token_is_announced_once() -> None:
    heard: list[str] = []
    receiver = AnswerReceiver(sent_at=0.0, on_token=lambda: heard.append("token"))
    receiver.receive(text("a") + text("b"), 1.0)
    receiver.receive(text("c"), 2.0)
    assert heard == ["token"]


@pytest.mark.parametrize(
    ("data", "name", "message"),
    [
        ((), "closed early", "after 0 events"),
        ((text("a"), text("b")), "closed early", "after 2 events"),
        ((text("", "stop"), DONE), "no output", "empty"),
        ((text("a"), event(error={"message": "out of memory", "code": 500})), "error event", "out of memory"),
        ((event(error="no"),), "error event", "no"),
        ((b"data: <html>\n\n",), "not understood", "<html>"),
        ((b'data: {"choices": 3}\n\n',), "not understood", "choices"),
    ],
)
def test_a_stream_that_is_no_answer_says_why(data: tuple[bytes, ...], name: str, message: str) -> None:
    with pytest.raises(RequestFailedError, match=message) as error:
        receive(*data)
    assert error.value.fault.name == name
