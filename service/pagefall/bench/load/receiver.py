"""The events of one streamed answer, of either endpoint, as they arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from pagefall.bench.load.samples import Answer, Fault, RequestFailedError
from pagefall.bench.load.sse import DONE, EventParser
from pagefall.messages import Tier

_MESSAGE_CHARS: Final = 300


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    """Of either endpoint."""

    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def output(self) -> str:
        if self.delta is not None:
            return self.delta.content or self.delta.reasoning_content or ""
        return self.text or ""

    @property
    def is_token(self) -> bool:
        """Whether it tells of output. One that says only who speaks, or that it is over, does not."""
        is_greeting = self.delta is not None and self.delta.role is not None
        return bool(self.output) or not (is_greeting or self.finish_reason)


class _PromptTokensDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cached_tokens_by_tier: dict[Tier, int] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _PromptTokensDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_CHUNKS: Final = msgspec.json.Decoder(_Chunk)


class AnswerReceiver:
    """Is given bytes with the time of their arrival, and has the answer when the stream has ended."""

    def __init__(self, *, sent_at: float, on_token: Callable[[], object] = lambda: None) -> None:
        """`on_token` is called once, with the first output."""
        self._sent_at = sent_at
        self._on_token = on_token
        self._parser = EventParser()
        self._arrivals: list[float] = []
        self._said: list[str] = []
        self._usage: _Usage | None = None
        self._is_complete = False
        self._last_at = sent_at

    def receive(self, data: bytes, now: float) -> None:
        """Raises `RequestFailedError` for an event that is an error, or none that a server of this API sends."""
        self._last_at = now
        for payload in self._parser.feed(data):
            self._take(payload, now)

    def answer(self) -> Answer:
        """The answer, once the stream has ended. Raises `RequestFailedError` for one that is not whole."""
        for payload in self._parser.close():
            self._take(payload, self._last_at)
        if not self._is_complete:
            message = f"the stream ended after {len(self._arrivals)} events, and none of them was the last"
            raise RequestFailedError(Fault(kind="closed early", message=message))
        usage = self._usage
        if not self._arrivals and not (usage and usage.completion_tokens):
            raise RequestFailedError(Fault(kind="no output", message="the answer is empty"))
        details = (usage and usage.prompt_tokens_details) or _PromptTokensDetails()
        return Answer(
            sent_at=self._sent_at,
            # Tokens that are no text, an end of sequence alone, say, have come when the answer is over.
            arrivals=tuple(self._arrivals) or (self._last_at,),
            ended_at=self._last_at,
            text="".join(self._said),
            num_prompt_tokens=usage.prompt_tokens if usage else None,
            num_output_tokens=usage.completion_tokens if usage else None,
            cached_tokens=details.cached_tokens,
            cached_tokens_by_tier=details.cached_tokens_by_tier,
        )

    def _take(self, payload: bytes, now: float) -> None:
        if payload == DONE:
            self._is_complete = True
            return
        chunk = _chunk(payload)
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices:
            self._is_complete = self._is_complete or choice.finish_reason is not None
            if choice.is_token:
                if not self._arrivals:
                    self._on_token()
                self._arrivals.append(now)
                self._said.append(choice.output)


def _chunk(payload: bytes) -> _Chunk:
    try:
        chunk = _CHUNKS.decode(payload)
    except msgspec.DecodeError as error:
        message = f"{error}: {payload[:_MESSAGE_CHARS].decode(errors='replace')}"
        raise RequestFailedError(Fault(kind="not understood", message=message)) from error
    if chunk.error is not None:
        raise RequestFailedError(Fault(kind="error event", message=error_text(chunk.error)))
    return chunk


def error_text(error: Any) -> str:
    """The message in an error of OpenAI's shape, else the error as it is."""
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else msgspec.json.encode(error)[:_MESSAGE_CHARS].decode(errors="replace")
