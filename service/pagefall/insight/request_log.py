"""`--request-log`: a line of JSON for each request when it ends, and for each that was refused."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from pagefall.config import InsightConfig
from pagefall.insight.line_writer import LineWriter, refuse_unwritable
from pagefall.insight.records import AbortReason, RefusalReason, RequestRecord, TrafficObserver
from pagefall.messages import FinishReason, MissReason, RequestId, TokenSource
from pagefall.text.requests import ChatMessage, ChatPrompt, TextPrompt
from pagefall.text.tool_schema import as_function

MAX_PROMPT_CHARACTERS: Final = 200_000
"""Of a prompt's text, all messages together, with their calls and thoughts and the tools; the rest is cut off, and the
line says so.
"""

_CAPACITY: Final = 4096
"""Lines that may wait for the disk."""

_NUM_HASH_DIGITS: Final = 12


class LoggedDivergence(msgspec.Struct, frozen=True, kw_only=True):
    """As in `messages.Divergence`."""

    token_index: int
    has_other: bool
    is_cached: bool
    other_request_id: RequestId | None


class EndedLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="ended"):
    """One request. `time` is when it arrived, in Unix seconds; what is not known, or is nothing, is left out.

    `num_tokens_by_source` adds up to `num_prompt_tokens`, `num_missed_tokens` to its `computed` and `unreached`.
    `messages` or `prompt` is the prompt as it was sent: neither where token ids were, and where prompts are redacted.
    `tools` came with the messages, in the order in which they were sent, and in the form that templates expect.
    """

    time: float
    request_id: RequestId
    num_prompt_tokens: int
    num_cached_tokens: int
    num_known_tokens: int
    num_generated_tokens: int
    num_tokens_by_source: dict[TokenSource, int]
    num_missed_tokens: dict[MissReason, int]
    finish_reason: FinishReason | None
    http_request_id: str | None = None
    abort_reason: AbortReason | None = None
    divergence: LoggedDivergence | None = None
    ttft_seconds: float | None = None
    mean_itl_seconds: float | None = None
    total_seconds: float | None = None
    queue_seconds: float | None = None
    saved_seconds: float = 0.0
    cache_salt_hash: str | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    messages: tuple[ChatMessage, ...] | None = None
    prompt: str | None = None
    is_prompt_cut: bool = False


class RefusedLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="refused"):
    """A request that was turned away, of which no more is known."""

    time: float
    reason: RefusalReason


class LostLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="lost"):
    """So many lines are not there: too many waited, or the disk failed."""

    time: float
    num_lines: int


LogLine = EndedLine | RefusedLine | LostLine


class RequestLog:
    """A `TrafficObserver`. What it hears is turned into lines on the thread that writes them."""

    def __init__(
        self,
        path: str,
        *,
        redact_prompts: bool,
        unix_clock: Callable[[], float] = time.time,
        capacity: int = _CAPACITY,
        write: Callable[[int, memoryview], int] | None = None,
    ) -> None:
        """`path` "-" is standard output. Raises `OSError` where the file cannot be opened."""
        self._redact_prompts = redact_prompts
        self._unix_clock = unix_clock
        others = {} if write is None else {"write": write}
        self._lines = LineWriter[RequestRecord | RefusedLine](
            path, self._encode, self._lost, thread_name="request-log", capacity=capacity, **others
        )

    def refused(self, reason: RefusalReason) -> None:
        self._lines.put(RefusedLine(time=round(self._unix_clock(), 3), reason=reason))

    def accepted(self, record: RequestRecord) -> None: ...

    def settled(self, record: RequestRecord) -> None: ...

    def progressed(self, record: RequestRecord, num_tokens: int, gap_seconds: float | None) -> None: ...

    def ended(self, record: RequestRecord) -> None:
        self._lines.put(record)  # nobody changes it any more

    def close(self) -> bool:
        """Whether all lines were written in time."""
        return self._lines.close()

    def _encode(self, item: RequestRecord | RefusedLine) -> bytes:
        line = ended_line(item, redact_prompts=self._redact_prompts) if isinstance(item, RequestRecord) else item
        return msgspec.json.encode(line)

    def _lost(self, num_lines: int) -> bytes:
        return msgspec.json.encode(LostLine(time=round(self._unix_clock(), 3), num_lines=num_lines))


@contextmanager
def request_log(config: InsightConfig) -> Iterator[Sequence[TrafficObserver]]:
    """The log that `config` asks for, if it does. What waits is written at the end. Raises `ConfigError` for a file
    that cannot be opened.
    """
    if config.request_log is None:
        yield ()
        return
    try:
        log = RequestLog(config.request_log, redact_prompts=config.redact_prompts)
    except OSError as error:
        raise refuse_unwritable(config.request_log, error, "--request-log") from error
    try:
        yield (log,)
    finally:
        log.close()


def ended_line(record: RequestRecord, *, redact_prompts: bool) -> EndedLine:
    """What is said of a request that has ended."""
    report = record.report
    sources = {} if report is None else report.num_tokens_by_source
    missed: dict[MissReason, int] = {}
    for miss in () if report is None else report.misses:
        missed[miss.reason] = missed.get(miss.reason, 0) + miss.num_tokens
    sent = _Sent() if redact_prompts else _sent(record.prompt)
    return EndedLine(
        time=round(record.arrived_at, 3),
        request_id=record.request_id,
        http_request_id=record.http_request_id,
        num_prompt_tokens=record.num_prompt_tokens,
        num_cached_tokens=sum(sources.get(tier, 0) for tier in ("device", "host", "storage")),
        num_known_tokens=0 if report is None else report.num_known_tokens,
        num_generated_tokens=record.num_generated_tokens,
        num_tokens_by_source=sources,
        num_missed_tokens=missed,
        divergence=None
        if report is None or report.divergence is None
        else LoggedDivergence(
            token_index=report.divergence.token_index,
            has_other=report.divergence.has_other,
            is_cached=report.divergence.is_cached,
            other_request_id=report.divergence.other_request_id,
        ),
        finish_reason=record.finish_reason,
        abort_reason=record.abort_reason,
        ttft_seconds=_rounded(record.ttft_seconds),
        mean_itl_seconds=_rounded(_mean_itl(record)),
        total_seconds=_rounded(record.total_seconds),
        queue_seconds=None if report is None else _rounded(report.queue_seconds),
        saved_seconds=0.0 if report is None else round(float(report.saved_seconds), 6),
        cache_salt_hash=salt_hash(record.cache_salt),
        tools=sent.tools,
        messages=sent.messages,
        prompt=sent.prompt,
        is_prompt_cut=sent.is_cut,
    )


def salt_hash(cache_salt: str) -> str | None:
    """The same for the same salt, which it does not tell; None where there is none."""
    return hashlib.sha256(cache_salt.encode()).hexdigest()[:_NUM_HASH_DIGITS] if cache_salt else None


def _mean_itl(record: RequestRecord) -> float | None:
    """Seconds from one token to the next; None where there are not two."""
    if record.first_token_at is None or record.last_token_at is None or record.num_generated_tokens < 2:
        return None
    return (record.last_token_at - record.first_token_at) / (record.num_generated_tokens - 1)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


class _Sent(NamedTuple):
    """A prompt as a line has it; `is_cut`: some of it was cut off."""

    tools: tuple[dict[str, Any], ...] | None = None
    messages: tuple[ChatMessage, ...] | None = None
    prompt: str | None = None
    is_cut: bool = False


def _sent(prompt: ChatPrompt | TextPrompt | None) -> _Sent:
    match prompt:
        case None:
            return _Sent()
        case TextPrompt():
            return _Sent(prompt=prompt.text[:MAX_PROMPT_CHARACTERS], is_cut=len(prompt.text) > MAX_PROMPT_CHARACTERS)
        case ChatPrompt():
            room = MAX_PROMPT_CHARACTERS
            tools = tuple(as_function(tool) for tool in prompt.tools)
            num_tool_characters = len(msgspec.json.encode(tools)) if tools else 0
            is_cut = num_tool_characters > room
            if is_cut:  # a part of them would be other tools
                tools, num_tool_characters = (), 0
            room -= num_tool_characters
            kept: list[ChatMessage] = []
            for message in prompt.messages:
                whole = _num_characters(message)
                is_cut = is_cut or whole > room
                kept.append(message if whole <= room else _cut(message, room))
                room = max(0, room - whole)
            return _Sent(tools=tools or None, messages=tuple(kept), is_cut=is_cut)


def _num_characters(message: ChatMessage) -> int:
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.content) + len(message.reasoning_content or "") + calls


def _cut(message: ChatMessage, room: int) -> ChatMessage:
    """Its content, as far as there is room. A part of a call would be no call."""
    return replace(message, content=message.content[:room], tool_calls=(), reasoning_content=None)
