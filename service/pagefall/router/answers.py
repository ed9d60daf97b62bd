"""An answer on its way through: where its events end, and what it says of itself."""

from __future__ import annotations

import json
import re
from typing import Any, Final

_BLANK_LINES: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")

_MAX_HELD: Final = 256 * 1024
"""Bytes of one event that are held back at most."""

_TAIL_BYTES: Final = 4096
"""Usage stands at the end of an answer, or of a stream."""

_HEAD_BYTES: Final = 512
_ID: Final = re.compile(rb'"id"\s*:\s*"([^"\\]{1,128})"')
_USAGE: Final = b'"usage"'


class EventCutter:
    """Passes events on as soon as they are whole, so that a stream that breaks off never ends within one."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """What can be sent now, perhaps nothing."""
        data = self._held + chunk
        end = 0
        for blank_line in _BLANK_LINES:
            at = data.rfind(blank_line, end)
            end = end if at < 0 else at + len(blank_line)
        if end == 0 and len(data) > _MAX_HELD:
            end = len(data)
        self._held = data[end:]
        return data[:end]

    def rest(self) -> bytes:
        """What the stream ended with."""
        held, self._held = self._held, b""
        return held


class AnswerNotes:
    """Reads along, in constant memory. `num_events` is of a stream."""

    def __init__(self) -> None:
        self.num_events = 0
        self._head = b""
        self._tail = b""

    def saw(self, chunk: bytes) -> None:
        if len(self._head) < _HEAD_BYTES:
            self._head += chunk[: _HEAD_BYTES - len(self._head)]
        self._tail = (self._tail + chunk)[-_TAIL_BYTES:] if len(chunk) < _TAIL_BYTES else chunk[-_TAIL_BYTES:]
        self.num_events += chunk.count(b"data:")

    @property
    def is_done(self) -> bool:
        """Whether a stream has said that nothing follows."""
        return b"data: [DONE]" in self._tail[-64:]

    @property
    def answer_id(self) -> str | None:
        found = _ID.search(self._head)
        return None if found is None else found[1].decode("utf-8", "replace")

    def usage(self) -> AnswerUsage | None:
        """What the answer says of its tokens, if it does."""
        at = self._tail.rfind(_USAGE)
        if at < 0:
            return None
        text = self._tail[at + len(_USAGE) :].decode("utf-8", "replace").lstrip().removeprefix(":").lstrip()
        try:
            usage, _ = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            return None
        return AnswerUsage(usage) if isinstance(usage, dict) else None


class AnswerUsage:
    """OpenAI's `usage`; each number is None where it is not there."""

    def __init__(self, usage: dict[str, Any]) -> None:
        details = usage.get("prompt_tokens_details")
        self.num_prompt_tokens = _count(usage.get("prompt_tokens"))
        self.num_generated_tokens = _count(usage.get("completion_tokens"))
        self.num_cached_tokens = _count(details.get("cached_tokens")) if isinstance(details, dict) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
