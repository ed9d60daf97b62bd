"""An answer as a response: its output items, whole or in events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence

import msgspec

from pagefall.api import wire_response_events as wire
from pagefall.api.chat import LOWEST_LOGPROB
from pagefall.api.errors import given_up
from pagefall.api.event_stream import NamedEvent, named
from pagefall.api.responses_output import Output
from pagefall.api.serve import Answer
from pagefall.api.wire_response_events import ResponseEvent
from pagefall.api.wire_responses import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    Response,
    ResponseFailure,
    ResponseLogprob,
    ResponsesUsage,
    ResponseTopLogprob,
)
from pagefall.errors import RequestError
from pagefall.messages import FinishReason
from pagefall.text.replies.parts import Reasoning, ReplyParser, ReplyPart, ToolCallStart
from pagefall.text.requests import CandidateToken, TextDelta, TextLogprob, Usage


class ResponsesFormat:
    """Writes the response to one request."""

    def __init__(
        self,
        begun: Response,
        *,
        parser: Callable[..., ReplyParser],
        keep: Callable[[Response], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        """`parser` makes one, given the end of the prompt (`prompt_tail`). `keep` is given the response that is over,
        before the client is.
        """
        self._response = begun
        self._make_parser = parser
        self._keep = keep
        self._now = now
        self._parser: ReplyParser | None = None
        self._output = Output(lambda prefix: f"{prefix}_{secrets.token_hex(16)}")
        self._thought = _ThoughtTokens()
        self._num_events = 0

    def opening(self) -> Sequence[NamedEvent]:
        return self._numbered([wire.Created(response=self._response), wire.InProgress(response=self._response)])

    def chunks(self, index: int, delta: TextDelta) -> Sequence[NamedEvent]:
        """Raises `RequestError` for an answer that the server gave up."""
        return self._numbered(self._push(delta))

    def usage_chunk(self, usages: Sequence[Usage]) -> None:
        """None: it has come with the last event."""

    def failure(self, error: RequestError) -> Sequence[NamedEvent]:
        failed = msgspec.structs.replace(
            self._response,
            status="failed",
            error=ResponseFailure(code="server_error", message=error.message),
            output=tuple(self._output.done),
        )
        return self._numbered([wire.Failed(response=failed)])

    def complete(self, answers: Sequence[Answer]) -> Response:
        """Raises `RequestError` for an answer that the server gave up."""
        [answer] = answers
        for delta in answer.deltas:
            self._push(delta)
        return self._response

    def _push(self, delta: TextDelta) -> list[ResponseEvent]:
        if self._parser is None:
            self._parser = self._make_parser(prompt_tail=delta.prompt_tail)
        parts = self._parser.push(delta.text)
        if delta.finish_reason is not None:
            parts += self._parser.finish()
        self._thought.count(len(delta.token_ids), parts)
        self._output.note_logprobs(_logprob(logprob) for logprob in delta.logprobs if not logprob.special)
        events = [event for part in parts for event in self._output.push(part)]
        if delta.finish_reason is not None:
            events += self._finish(delta, delta.finish_reason)
        return events

    def _finish(self, delta: TextDelta, reason: FinishReason) -> list[ResponseEvent]:
        if reason == "abort":
            raise given_up()
        is_cut = reason == "length"
        events = self._output.finish("incomplete" if is_cut else "completed")
        assert delta.usage is not None
        self._response = msgspec.structs.replace(
            self._response,
            status="incomplete" if is_cut else "completed",
            completed_at=None if is_cut else int(self._now()),
            incomplete_details=IncompleteDetails() if is_cut else None,
            output=tuple(self._output.done),
            usage=responses_usage(delta.usage, reasoning_tokens=self._thought.num_tokens),
        )
        self._keep(self._response)
        last = wire.Incomplete(response=self._response) if is_cut else wire.Completed(response=self._response)
        return [*events, last]

    def _numbered(self, events: Sequence[ResponseEvent]) -> list[NamedEvent]:
        for event in events:
            event.sequence_number = self._num_events
            self._num_events += 1
        return [named(event) for event in events]


class _ThoughtTokens:
    """How many tokens of an answer are thoughts, the marks around them included.

    Exact where each delta is of one token; of a delta in which a thought ends, the share of its characters.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self._num_waiting = 0

    def count(self, num_tokens: int, parts: Sequence[ReplyPart]) -> None:
        """`parts` are what `num_tokens` more tokens completed."""
        self._num_waiting += num_tokens
        if not parts:
            return
        thought = sum(len(part.text) for part in parts if isinstance(part, Reasoning))
        other = sum(_num_characters(part) for part in parts if not isinstance(part, Reasoning))
        self.num_tokens += round(self._num_waiting * thought / max(thought + other, 1))
        self._num_waiting = 0


def _num_characters(part: ReplyPart) -> int:
    return len(part.name if isinstance(part, ToolCallStart) else part.text)


def responses_usage(usage: Usage, *, reasoning_tokens: int) -> ResponsesUsage:
    return ResponsesUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=min(reasoning_tokens, usage.completion_tokens)),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )


def _logprob(logprob: TextLogprob) -> ResponseLogprob:
    return ResponseLogprob(
        token=logprob.chosen.text,
        logprob=max(logprob.chosen.logprob, LOWEST_LOGPROB),
        bytes=list(logprob.chosen.bytes),
        top_logprobs=[_top(token) for token in logprob.top],
    )


def _top(token: CandidateToken) -> ResponseTopLogprob:
    return ResponseTopLogprob(token=token.text, logprob=max(token.logprob, LOWEST_LOGPROB), bytes=list(token.bytes))
