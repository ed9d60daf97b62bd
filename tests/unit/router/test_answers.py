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


@pytest.mark.parametrize(
    "answer", [b"", b'{"usage": null}', b'{"usage": [', b'{"usage": {"prompt_tokens": "x"}}', b"\xff"]
)
def test_what_an_answer_does_not_say_is_not_known(answer: bytes) -> None:
    usage = noted(answer).usage()
    assert usage is None or usage.num_prompt_tokens is None
    assert not noted(answer).is_done
