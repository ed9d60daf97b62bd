"""An answer's parts in the shapes of the chat API: content, reasoning and calls, whole or in deltas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import UNSET

from pagefall.api.wire_chat import (
    AssistantMessage,
    CalledFunction,
    CalledFunctionDelta,
    ChatToolCall,
    Delta,
    ToolCallDelta,
)
from pagefall.messages import FinishReason
from pagefall.text.replies.parts import Content, Reasoning, ReplyParser, ReplyPart, ToolCallArguments, ToolCallStart

CallShape = Literal["tool_calls", "function_call"]
"""`function_call` is the older one, of clients that sent `functions`: one call at most, without an id."""


class ChatReply:
    """One answer of a stream, from its text to its deltas."""

    def __init__(self, parser: ReplyParser, shape: CallShape) -> None:
        self._parser = parser
        self._shape = shape
        self._calls = False

    def push(self, text: str, finish_reason: FinishReason | None) -> list[Delta]:
        """`finish_reason`: this is the last text."""
        parts = self._parser.push(text)
        if finish_reason is not None:
            parts += self._parser.finish()
        self._calls = self._calls or any(isinstance(part, ToolCallStart) for part in parts)
        return [self._delta(part) for part in parts]

    def finish_reason(self, reason: FinishReason | None) -> str | None:
        """As the client is told it: an answer that calls and was not cut off ended for its calls."""
        return self._shape if reason == "stop" and self._calls else reason

    def _delta(self, part: ReplyPart) -> Delta:
        match part:
            case Content(text):
                return Delta(content=text)
            case Reasoning(text):
                return Delta(reasoning_content=text)
            case ToolCallStart(name=name) if self._shape == "function_call":
                return Delta(function_call=CalledFunctionDelta(name=name, arguments=""))
            case ToolCallStart(index=index, call_id=call_id, name=name):
                function = CalledFunctionDelta(name=name, arguments="")
                return Delta(tool_calls=(ToolCallDelta(index=index, id=call_id, type="function", function=function),))
            case ToolCallArguments(text=text) if self._shape == "function_call":
                return Delta(function_call=CalledFunctionDelta(arguments=text))
            case ToolCallArguments(index=index, text=text):
                return Delta(tool_calls=(ToolCallDelta(index=index, function=CalledFunctionDelta(arguments=text)),))


def assistant_message(parts: Iterable[ReplyPart], shape: CallShape) -> AssistantMessage:
    """The whole answer. Its content is null where it calls and says nothing."""
    content, reasoning = "", ""
    heads: list[ToolCallStart] = []
    arguments: list[str] = []
    for part in parts:
        match part:
            case Content(text):
                content += text
            case Reasoning(text):
                reasoning += text
            case ToolCallStart():
                heads.append(part)
                arguments.append("")
            case ToolCallArguments(index=index, text=text):
                arguments[index] += text
    functions = [CalledFunction(name=head.name, arguments=text) for head, text in zip(heads, arguments, strict=True)]
    calls = [ChatToolCall(id=head.call_id, function=function) for head, function in zip(heads, functions, strict=True)]
    is_old = shape == "function_call"
    return AssistantMessage(
        content=content if content or not calls else None,
        reasoning_content=reasoning or UNSET,
        tool_calls=tuple(calls) if calls and not is_old else UNSET,
        function_call=functions[0] if functions and is_old else UNSET,
    )


def whole_parts(parser: ReplyParser, text: str) -> list[ReplyPart]:
    """A complete answer taken apart."""
    return [*parser.push(text), *parser.finish()]
