"""What a Redis server answers, put where it belongs as it arrives. Pure: bytes come in, whoever brings them.

An answer is a place for the replies to one batch of commands. It lends the memory that the next bytes are to be put
into, so that a value goes from the socket straight to the buffer it was asked for, and is told how many have come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import hiredis

_CRLF: Final = b"\r\n"
_CRLF_BYTES: Final = 2
_VALUE_SCRATCH_BYTES: Final = 16 * 2**10
"""Where the line before a value is received, and with it the value's beginning, which is then copied: not too large.
Small values arrive several at once: not too small.
"""
_REPLY_SCRATCH_BYTES: Final = 64 * 2**10
_NOT_ENOUGH: Final = object()


class ProtocolError(Exception):
    """The server does not speak as a Redis server does."""


class ReplyError(Exception):
    """A reply that refuses its command, as a value. Its text begins with a code in capitals: ERR, OOM, WRONGTYPE..."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]


class Answer(Protocol):
    @property
    def is_complete(self) -> bool:
        """Whether all replies are there. Then no more bytes are to be brought."""

    def get_buffer(self) -> memoryview:
        """Where the next bytes are to be put, at least one."""

    def buffer_updated(self, num_bytes: int) -> None:
        """So many have been put there. Raises `ProtocolError`."""


class Replies:
    """`num_replies` replies of any kind: numbers, bytes, None, lists, and `ReplyError`."""

    def __init__(self, num_replies: int) -> None:
        self.replies: list[object] = []
        self._num_replies = num_replies
        self._scratch = memoryview(bytearray(_REPLY_SCRATCH_BYTES))
        self._reader = hiredis.Reader(replyError=ReplyError, notEnoughData=_NOT_ENOUGH)

    @property
    def is_complete(self) -> bool:
        return len(self.replies) == self._num_replies

    def get_buffer(self) -> memoryview:
        return self._scratch

    def buffer_updated(self, num_bytes: int) -> None:
        try:
            self._reader.feed(self._scratch[:num_bytes].tobytes())
            while not self.is_complete and (reply := self._reader.gets()) is not _NOT_ENOUGH:
                self.replies.append(reply)
        except hiredis.HiredisError as error:
            raise ProtocolError(str(error)) from error
        if self.is_complete and self._reader.has_data():
            raise ProtocolError("more replies than commands")


class Values:
    """The replies to a `GET` or `GETRANGE` for each of `buffers`.

    `values`: for each that has arrived its length, None if there is none, or the error. Its buffer has been filled if
    that is as long as the buffer; else it is as it was.
    """

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self.values: list[int | ReplyError | None] = []
        self._buffers = buffers
        self._scratch = bytearray(_VALUE_SCRATCH_BYTES)
        self._scratch_view = memoryview(self._scratch)
        self._num_scratch = 0  # bytes in it, not yet looked at
        self._length = 0  # of the value that is arriving
        self._rest = memoryview(b"")  # of its buffer
        self._num_to_skip = 0  # after that: the end of its reply, and before that a value that fits no buffer

    @property
    def is_complete(self) -> bool:
        return len(self.values) == len(self._buffers)

    def get_buffer(self) -> memoryview:
        return self._rest or self._scratch_view[self._num_scratch :]

    def buffer_updated(self, num_bytes: int) -> None:
        if self._rest:
            self._rest = self._rest[num_bytes:]
            return
        end = self._num_scratch + num_bytes
        at = 0
        while at < end and not self.is_complete:
            if self._rest:
                num_bytes = min(len(self._rest), end - at)
                self._rest[:num_bytes] = self._scratch_view[at : at + num_bytes]
                self._rest = self._rest[num_bytes:]
                at += num_bytes
            elif self._num_to_skip:
                num_bytes = min(self._num_to_skip, end - at)
                self._num_to_skip -= num_bytes
                at += num_bytes
                if not self._num_to_skip:
                    self.values.append(self._length)
            else:
                line_end = self._scratch.find(_CRLF, at, end)
                if line_end < 0:
                    break
                self._begin_reply(self._scratch[at:line_end])
                at = line_end + _CRLF_BYTES
        if self.is_complete and at < end:
            raise ProtocolError("more replies than commands")
        if at == 0 and end == len(self._scratch):
            raise ProtocolError("a line without an end")
        self._num_scratch = end - at
        self._scratch_view[: self._num_scratch] = self._scratch_view[at:end]

    def _begin_reply(self, line: bytes | bytearray) -> None:
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            self.values.append(ReplyError(rest.decode(errors="replace")))
        elif line in (b"$-1", b"_"):
            self.values.append(None)
        elif kind == b"$" and rest.isdigit():
            self._length = int(rest)
            buffer = self._buffers[len(self.values)]
            fits = self._length == len(buffer)
            self._rest = buffer if fits else memoryview(b"")
            self._num_to_skip = _CRLF_BYTES if fits else self._length + _CRLF_BYTES
        else:
            raise ProtocolError(f"a value begins with {bytes(line[:40])!r}")
