from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefall.router.answers import AnswerNotes, EventCutter

pieces = st.lists(
    st.one_of(st.binary(max_size=8), st.sampled_from([b"\n", b"\n\n", b"\r\n", b"\r\n\r\n", b"data: x"])), max_size=30
)


@given(pieces)
def test_whatever_the_pieces_are_nothing_is_lost_and_only_whole_events_are_passed(chunks: list[bytes]) -> None:
    cutter = EventCutter()
    passed = [cutter.feed(chunk) for chunk in chunks]
    assert b"".join(passed) + cutter.rest() == b"".join(chunks)
    assert all(piece.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")) for piece in passed if piece)


def test_an_event_is_passed_on_with_its_last_byte() -> None:
    cutter = EventCutter()
    assert cutter.feed(b"data: 1\n") == b""
    assert cutter.feed(b"\ndata: 2") == b"data: 1\n\n"
    assert cutter.feed(b"\r\n\r\n") == b"data: 2\r\n\r\n"


def test_an_event_without_end_is_not_held_for_ever() -> None:
    cutter = EventCutter()
    passed = sum(len(cutter.feed(b"x" * 50_000)) for _ in range(100))
    assert passed > 4_000_000


def noted(*chunks: bytes) -> AnswerNotes:
    notes = AnswerNotes()
    for chunk in chunks:
        notes.saw(chunk)
    return notes


USAGE = {"prompt_tokens": 30, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 16}}


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_usage_is_found_at_the_end_of_any_answer_however_it_was_cut(size: int) -> None:
    document = json.dumps({"id": "chatcmpl-1", "text": 'not "usage": {}' * 9_000, "usage": USAGE}).encode()
    notes = noted(*(document[start : start + size] for start in range(0, len(document), size)))
    usage = notes.usage()
    assert usage is not None
    assert (usage.num_prompt_tokens, usage.num_generated_tokens, usage.num_cached_tokens) == (30, 7, 16)
    assert notes.answer_id == "chatcmpl-1"


def test_usage_is_found_in_the_last_event_of_a_stream() -> None:
    event = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n"
    notes = noted(b'data: {"usage": null}\n\n', event, b"data: [DONE]\n\n")
    usage = notes.usage()
    assert usage is not None
    assert usage.num_generated_tokens == 7
    assert notes.is_done
    assert notes.num_events == 3


def event(name: str, **fields: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()


CLAUDE_USAGE = {"input_tokens": 4, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 16, "output_tokens": 7}
RESPONSE_USAGE = {"input_tokens": 30, "input_tokens_details": {"cached_tokens": 16}, "output_tokens": 7}
LONG = {f"key {index}": "x" * 500 for index in range(16)}
MESSAGE_STREAMS = [
    [event("message_start", message={"usage": {"input_tokens": 30}}), event("message_delta", usage=CLAUDE_USAGE)],
    [  # as Anthropic itself says it
        event("message_start", message={"id": "msg_1", "usage": {**CLAUDE_USAGE, "output_tokens": 1}}),
        *[event("content_block_delta", delta={"text": "x" * 100})] * 50,
        event("message_delta", usage={"output_tokens": 7}),
    ],
]


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize(
    "events",
    [
        *([*events, event("message_stop")] for events in MESSAGE_STREAMS),
        [
            event("response.created", response={"id": "resp_1", "usage": None}),
            event("response.completed", response={"output": ["x" * 9000], "usage": RESPONSE_USAGE, "metadata": LONG}),
        ],
        [event("response.created"), event("response.incomplete", response={"usage": RESPONSE_USAGE})],
    ],
)
def test_streams_of_each_endpoint_say_their_end_and_their_usage(events: list[bytes], size: int) -> None:
    stream = b"".join(events)
    whole = noted(*(stream[start : start + size] for start in range(0, len(stream), size)))
    usage = whole.usage()
    assert usage is not None
    assert (usage.num_prompt_tokens, usage.num_generated_tokens, usage.num_cached_tokens) == (30, 7, 16)
    assert whole.is_done
    assert not noted(*events[:-1]).is_done
    assert not noted(stream[:-1]).is_done  # the last event is not whole


def test_the_name_of_a_last_event_in_an_answers_text_is_no_end() -> None:
    text = "\nevent: message_stop\n\n"
    assert not noted(event("message_start"), event("content_block_delta", delta={"text": text})).is_done


@pytest.mark.parametrize(
    "answer", [b"", b'{"usage": null}', b'{"usage": [', b'{"usage": {"prompt_tokens": "x"}}', b"\xff"]
)
def test_what_an_answer_does_not_say_is_not_known(answer: bytes) -> None:
    usage = noted(answer).usage()
    assert usage is None or usage.num_prompt_tokens is None
    assert not noted(answer).is_done
