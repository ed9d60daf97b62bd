"""Replies, put where they belong whatever the pieces that they come in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefall_storage.redis_replies import Answer, ProtocolError, Replies, ReplyError, Values

Reply = bytes | None | str  # a value, nothing, or an error


def encode(reply: Reply) -> bytes:
    match reply:
        case None:
            return b"$-1\r\n"
        case str():
            return f"-{reply}\r\n".encode()
        case _:
            return b"$%d\r\n%b\r\n" % (len(reply), reply)


def bring(answer: Answer, data: bytes, pieces: Iterator[int]) -> None:
    """As a socket does: as much as there is room for and has come, again and again."""
    while data:
        assert not answer.is_complete
        buffer = answer.get_buffer()
        num_bytes = min(next(pieces), len(buffer), len(data))
        buffer[:num_bytes] = data[:num_bytes]
        answer.buffer_updated(num_bytes)
        data = data[num_bytes:]


def endless(pieces: list[int]) -> Iterator[int]:
    while True:
        yield from pieces


# A length stands for a value: at the edge of what is received at once, and much shorter.
replies = st.lists(
    st.integers(0, 40)
    | st.integers(16_300, 16_500)
    | st.none()
    | st.sampled_from(["OOM no room", "WRONGTYPE no string"]),
    min_size=1,
    max_size=12,
)
pieces = st.lists(st.integers(1, 40), max_size=5).map(lambda sizes: [*sizes, 5000])


def reply_of(what: int | str | None) -> Reply:
    return (b"\r\n$7" * what)[:what] if isinstance(what, int) else what


@settings(deadline=None)
@given(replies, pieces, st.lists(st.sampled_from([-1, 0, 0, 1]), min_size=12, max_size=12))
def test_values_land_in_their_buffers_and_nowhere_else(
    whats: list[int | str | None], pieces: list[int], differences: list[int]
) -> None:
    """Some buffers are longer or shorter than what comes, which leaves them untouched."""
    sent = [reply_of(what) for what in whats]
    buffers = [
        bytearray(b"\xee" * max(0, len(reply or b"") + difference))
        for reply, difference in zip(sent, differences, strict=False)
    ]
    answer = Values([memoryview(buffer) for buffer in buffers])
    bring(answer, b"".join(map(encode, sent)), endless(pieces))
    assert answer.is_complete
    for reply, buffer, value in zip(sent, buffers, answer.values, strict=True):
        match reply:
            case None:
                assert value is None
            case str():
                assert isinstance(value, ReplyError)
                assert (str(value), value.code) == (reply, reply.split()[0])
            case _:
                assert value == len(reply)
        fits = isinstance(reply, bytes) and len(reply) == len(buffer)
        assert bytes(buffer) == (reply if fits else b"\xee" * len(buffer))


@settings(deadline=None)
@given(replies, pieces)
def test_any_replies_come_out_as_they_were_sent(whats: list[int | str | None], pieces: list[int]) -> None:
    sent = [reply_of(what) for what in whats]
    answer = Replies(len(sent))
    bring(answer, b"".join(map(encode, sent)), endless(pieces))
    assert answer.is_complete
    assert [str(reply) if isinstance(reply, ReplyError) else reply for reply in answer.replies] == sent


def test_a_value_goes_straight_to_its_buffer_once_its_length_is_known() -> None:
    buffer = bytearray(100_000)
    answer = Values([memoryview(buffer)])
    head = b"$100000\r\nabc"
    answer.get_buffer()[: len(head)] = head
    answer.buffer_updated(len(head))
    rest = answer.get_buffer()
    assert rest.obj is buffer
    assert len(rest) == 100_000 - 3
    assert buffer.startswith(b"abc\x00")


@pytest.mark.parametrize(
    "data", [b"+OK\r\n", b":3\r\n", b"$x\r\n", b"HTTP/1.1 200 OK\r\n", b"$1\r\na\r\n$1\r\nb\r\n", b"x" * 20_000]
)
def test_what_is_no_value_is_a_fault_of_the_protocol(data: bytes) -> None:
    answer = Values([memoryview(bytearray(1))])
    with pytest.raises(ProtocolError):
        bring(answer, data, endless([100_000]))


@pytest.mark.parametrize("data", [b"HTTP/1.1 200 OK\r\n", b"+OK\r\n+OK\r\n"])
def test_what_is_no_reply_is_a_fault_of_the_protocol(data: bytes) -> None:
    answer = Replies(1)
    with pytest.raises(ProtocolError):
        bring(answer, data, endless([100_000]))
