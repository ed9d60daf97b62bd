"""An answer in Anthropic's blocks, whole or in events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from pagefall.api.errors import given_up
from pagefall.api.event_stream import NamedEvent, named
from pagefall.api.messages_errors import anthropic_error_body
from pagefall.api.serve import Answer
from pagefall.api.wire_messages import (
    AnswerBlock,
    BlockDelta,
    BlockStart,
    BlockStop,
    InputPiece,
    MessageAnswer,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessagesUsage,
    Ping,
    StopDelta,
    StopReason,
    TextBlock,
    TextPiece,
    ThinkingBlock,
    ThinkingPiece,
    ToolUseBlock,
)
from pagefall.errors import RequestError
from pagefall.messages import FinishReason
from pagefall.text.replies.parts import (
    Content,
    Reasoning,
    ReplyParser,
    ReplyPart,
    ToolCallArguments,
    ToolCallStart,
)
from pagefall.text.requests import TextDelta, Usage


class Blocks:
    """The blocks of one answer, as its parts come; at most the last one is open."""

    def __init__(self) -> None:
        self.done: list[AnswerBlock] = []
        self._open: AnswerBlock | None = None
        self._text = ""

    @property
    def calls(self) -> bool:
        return any(isinstance(block, ToolUseBlock) for block in self.done)

    def push(self, part: ReplyPart) -> list[NamedEvent]:
        match part:
            case Content(text):
                return [*self._begin(TextBlock(text="")), self._delta(text, TextPiece(text=text))]
            case Reasoning(text):
                begun = self._begin(ThinkingBlock(thinking=""))
                return [*begun, self._delta(text, ThinkingPiece(thinking=text))]
            case ToolCallStart(call_id=call_id, name=name):
                return self._begin(ToolUseBlock(id=call_id, name=name, input={}))
            case ToolCallArguments(text=text):
                return [self._delta(text, InputPiece(partial_json=text))]

    def close(self) -> list[NamedEvent]:
        """Ends the block that is open, if there is one."""
        if self._open is None:
            return []
        self.done.append(_filled(self._open, self._text))
        self._open, self._text = None, ""
        return [named(BlockStop(index=len(self.done) - 1))]

    def _begin(self, block: AnswerBlock) -> list[NamedEvent]:
        """Text and thoughts go on where one of their kind is open; every call is a block of its own."""
        if type(block) is type(self._open) and not isinstance(block, ToolUseBlock):
            return []
        closed = self.close()
        self._open = block
        return [*closed, named(BlockStart(index=len(self.done), content_block=block))]

    def _delta(self, text: str, piece: TextPiece | ThinkingPiece | InputPiece) -> NamedEvent:
        self._text += text
        return named(BlockDelta(index=len(self.done), delta=piece))


class MessagesFormat:
    """Writes the answer to one request."""

    def __init__(self, answer_id: str, *, model: str, parser: Callable[..., ReplyParser], at_context_end: bool) -> None:
        """`parser` makes one, given the end of the prompt (`prompt_tail`). `at_context_end`: the answer has no limit
        but the context's end.
        """
        self._id = answer_id
        self._model = model
        self._make_parser = parser
        self._at_context_end = at_context_end
        self._parser: ReplyParser | None = None
        self._blocks = Blocks()
        self._num_pinned_tokens = 0
        self._stop: StopDelta | None = None
        self._usage: MessagesUsage | None = None

    def end_at_context(self) -> None:
        """The limit of the answer was given up."""
        self._at_context_end = True

    def opening(self) -> Sequence[NamedEvent]:
        """None: the first event tells of the prompt's tokens, which are known with the first of the answer."""
        return ()

    def chunks(self, index: int, delta: TextDelta) -> Sequence[NamedEvent]:
        """Raises `RequestError` for an answer that the server gave up."""
        events: list[NamedEvent] = []
        if self._parser is None:
            self._parser = self._make_parser(prompt_tail=delta.prompt_tail)
            self._num_pinned_tokens = _kept_tokens(delta)
            start = self._message((), None, _prompt_usage(delta))
            events += [named(MessageStart(message=start)), named(Ping())]
        parts = self._parser.push(delta.text)
        if delta.finish_reason is not None:
            parts += self._parser.finish()
        for part in parts:
            events += self._blocks.push(part)
        if delta.finish_reason is not None:
            events += self._finish(delta, delta.finish_reason)
        return events

    def usage_chunk(self, usages: Sequence[Usage]) -> None:
        """None: it has come with the stop reason."""

    def failure(self, error: RequestError) -> Sequence[NamedEvent]:
        return (named(anthropic_error_body(error)),)

    def complete(self, answers: Sequence[Answer]) -> MessageAnswer:
        """Raises `RequestError` for an answer that the server gave up."""
        [answer] = answers
        for delta in answer.deltas:
            self.chunks(0, delta)
        assert self._usage is not None
        return self._message(tuple(self._blocks.done), self._stop, self._usage)

    def _finish(self, delta: TextDelta, reason: FinishReason) -> list[NamedEvent]:
        if reason == "abort":
            raise given_up()
        closed = self._blocks.close()
        assert delta.usage is not None
        self._stop = StopDelta(stop_reason=self._stop_reason(delta, reason), stop_sequence=delta.stop_string)
        self._usage = messages_usage(delta.usage, self._num_pinned_tokens)
        return [*closed, named(MessageDelta(delta=self._stop, usage=self._usage)), named(MessageStop())]

    def _stop_reason(self, delta: TextDelta, reason: FinishReason) -> StopReason:
        if reason == "length":
            return "model_context_window_exceeded" if self._at_context_end else "max_tokens"
        if delta.stop_string is not None:
            return "stop_sequence"
        return "tool_use" if self._blocks.calls else "end_turn"

    def _message(self, content: tuple[AnswerBlock, ...], stop: StopDelta | None, usage: MessagesUsage) -> MessageAnswer:
        return MessageAnswer(
            id=self._id,
            model=self._model,
            content=content,
            stop_reason=None if stop is None else stop.stop_reason,
            stop_sequence=None if stop is None else stop.stop_sequence,
            usage=usage,
        )


def messages_usage(usage: Usage, num_pinned_tokens: int) -> MessagesUsage:
    return _usage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, num_pinned_tokens)


def _prompt_usage(delta: TextDelta) -> MessagesUsage:
    """What the first delta knows of the prompt; all zeros where it knows nothing."""
    if delta.prefix is None:
        return _usage(0, 0, 0, 0)
    sources = delta.prefix.num_tokens_by_source
    cached = sum(sources.get(source, 0) for source in ("device", "host", "storage"))
    return _usage(delta.prefix.num_prompt_tokens, cached, 0, _kept_tokens(delta))


def _kept_tokens(delta: TextDelta) -> int:
    """Only whole pages are kept. `delta` is the first one."""
    page_size = 1 if delta.prefix is None else delta.prefix.page_size
    return delta.num_pinned_tokens // page_size * page_size


def _usage(num_prompt: int, num_cached: int, num_answer: int, num_pinned: int) -> MessagesUsage:
    created = max(num_pinned - num_cached, 0)
    return MessagesUsage(
        input_tokens=num_prompt - num_cached - created,
        cache_creation_input_tokens=created,
        cache_read_input_tokens=num_cached,
        output_tokens=num_answer,
    )


def _filled(block: AnswerBlock, text: str) -> AnswerBlock:
    match block:
        case TextBlock():
            return TextBlock(text=text)
        case ThinkingBlock():
            return ThinkingBlock(thinking=text)
        case ToolUseBlock(id=call_id, name=name):
            return ToolUseBlock(id=call_id, name=name, input=_input(text))


def _input(text: str) -> dict[str, object]:
    """The arguments; none where they were cut off, since Anthropic's clients are promised an object."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, object])
    except msgspec.DecodeError:
        return {}
