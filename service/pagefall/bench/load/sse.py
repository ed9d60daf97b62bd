"""Server-sent events, as little of them as OpenAI-compatible servers send, cheaply."""

from __future__ import annotations

from typing import Final

DONE: Final = b"[DONE]"


class EventParser:
    """Bytes in, payloads of `data:` lines out. Comments, other fields and blank lines are passed over.

    An event over several `data:` lines, which no such server sends, comes as several payloads.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads whose lines `data` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]

    def close(self) -> list[bytes]:
        """The payload of a last line that has no end."""
        return self.feed(b"\n")
