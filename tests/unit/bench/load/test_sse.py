from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from pagefall.bench.load.sse import EventParser

STREAM = b': hello\n\nevent: x\ndata: {"a": 1}\n\ndata:{"b": "\xc3\xa9"}\r\n\r\nid: 3\ndata: [DONE]\n\n'
PAYLOADS = [b'{"a": 1}', b'{"b": "\xc3\xa9"}', b"[DONE]"]


@settings(deadline=None)
@given(st.lists(st.integers(0, len(STREAM))))
def test_events_are_the_same_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    parser = EventParser()
    edges = [0, *sorted(cuts), len(STREAM)]
    found = [p for start, end in itertools.pairwise(edges) for p in parser.feed(STREAM[start:end])]
    assert found == PAYLOADS
    assert parser.close() == []


def test_a_last_line_without_an_end_is_an_event_when_the_stream_is_over() -> None:
    parser = EventParser()
    assert parser.feed(b"data: 1") == []
    assert parser.close() == [b"1"]
