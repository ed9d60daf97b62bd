"""An answer on its way through: where its events end, and what it says of itself."""

from __future__ import annotations

import json
import re
from typing import Any, Final

_BLANK_LINES: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")

_MAX_HELD: Final = 256 * 1024
"""Bytes of one event that are held back at most."""

_TAIL_BYTES: Final = 64
"""What has to be looked for is shorter, however it was cut."""

_HEAD_BYTES: Final = 2048
"""An answer's id stands in it, and what Anthropic's streams say of the prompt."""

_USAGE_BYTES: Final = 2048
_ID: Final = re.compile(rb'"id"\s*:\s*"([^"\\]{1,128})"')
_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')

_LAST_EVENT: Final = re.compile(
    rb"[\r\n]event: ?(?:message_stop|response\.completed|response\.incomplete|response\.failed|error)[\r\n]"
)
"""The events that end streams of /v1/messages and /v1/responses, by their names. No text in an event has line ends."""


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
        self._tail = b"\n"
        self._usage = b""
        """The last one's, from its brace on."""
        self._has_last_event = False

    def saw(self, chunk: bytes) -> None:
        if len(self._head) < _HEAD_BYTES:
            self._head += chunk[: _HEAD_BYTES - len(self._head)]
        self.num_events += chunk.count(b"data:")
        seen = self._tail + chunk
        self._tail = seen[-_TAIL_BYTES:]
        self._has_last_event = self._has_last_event or _LAST_EVENT.search(seen) is not None
        usages = [found.end() - 1 for found in _USAGE.finditer(seen)]
        if usages:
            self._usage = seen[usages[-1] :][:_USAGE_BYTES]
        elif self._usage and len(self._usage) < _USAGE_BYTES:
            self._usage += chunk[: _USAGE_BYTES - len(self._usage)]

    @property
    def is_done(self) -> bool:
        """Whether a stream has said that nothing follows, in the way of its endpoint."""
        return b"data: [DONE]" in self._tail or (self._has_last_event and self._tail.endswith(_BLANK_LINES))

    @property
    def answer_id(self) -> str | None:
        found = _ID.search(self._head)
        return None if found is None else found[1].decode("utf-8", "replace")

    def usage(self) -> AnswerUsage | None:
        """What the answer says of its tokens, if it does."""
        usage = _object(self._usage)
        if usage is None:
            return None
        if usage.keys().isdisjoint(("prompt_tokens", "input_tokens")) and (first := _USAGE.search(self._head)):
            usage = {**(_object(self._head[first.end() - 1 :]) or {}), **usage}  # Anthropic's: the prompt's came first
        return AnswerUsage(usage)


class AnswerUsage:
    """`usage` of any endpoint; each number is None where it is not there. Cached tokens are part of the prompt's."""

    def __init__(self, usage: dict[str, Any]) -> None:
        is_chat = "prompt_tokens" in usage
        details = usage.get("prompt_tokens_details" if is_chat else "input_tokens_details")
        self.num_prompt_tokens = _count(usage.get("prompt_tokens" if is_chat else "input_tokens"))
        self.num_generated_tokens = _count(usage.get("completion_tokens" if is_chat else "output_tokens"))
        self.num_cached_tokens = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
        if "cache_read_input_tokens" in usage:  # Anthropic's: three parts that add up to the prompt
            self.num_cached_tokens = _count(usage["cache_read_input_tokens"])
            written = _count(usage.get("cache_creation_input_tokens"))
            if self.num_prompt_tokens is not None:
                self.num_prompt_tokens += (self.num_cached_tokens or 0) + (written or 0)


def _object(text: bytes) -> dict[str, Any] | None:
    """The JSON object that `text` begins with."""
    try:
        found, _ = json.JSONDecoder().raw_decode(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
