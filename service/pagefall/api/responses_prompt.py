"""A conversation in the items of the Responses API as one for the chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pagefall.api.wire_responses import (
    FunctionCallItem,
    MessageItem,
    OutputItem,
    ReasoningItem,
    WireItem,
    WirePart,
)
from pagefall.errors import RequestError
from pagefall.text.requests import ChatMessage, ToolCall

_PART_SEPARATOR: Final = "\n"
"""Between the text parts of one message, which templates expect as one string."""

_SYSTEM_SEPARATOR: Final = "\n\n"
"""Between instructions and the first system messages: most templates know one only, at the beginning."""

_TEXT_PARTS: Final = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})


def input_items(wire: str | Sequence[WireItem]) -> tuple[WireItem, ...]:
    """A text is a message of the user's."""
    if isinstance(wire, str):
        return (WireItem(role="user", content=[WirePart(type="input_text", text=wire)]),)
    return tuple(wire)


def output_items(output: Sequence[OutputItem]) -> tuple[WireItem, ...]:
    """What was answered, as a client would send it back."""
    return tuple(_as_input(item) for item in output)


def turns(instructions: str | None, items: Sequence[WireItem], *, num_known: int = 0) -> tuple[ChatMessage, ...]:
    """Raises `RequestError` naming the first item that cannot be had here or answers nothing.

    The first `num_known` items are of an earlier response: errors count from behind them.
    """
    reader = _Reader()
    if instructions:
        reader.add_text("system", instructions)
    for index, item in enumerate(items):
        reader.add(item, f"input[{index - num_known}]")
    reader.end_answer()
    return tuple(reader.turns)


class _Reader:
    """Thoughts, text and calls that follow each other are one turn of the assistant's, as they were written."""

    def __init__(self) -> None:
        self.turns: list[ChatMessage] = []
        self._thoughts: list[str] = []
        self._text: str | None = None
        self._calls: list[ToolCall] = []
        self._called: set[str] = set()

    def add(self, item: WireItem, path: str) -> None:
        match item.type:
            case "message":
                self._add_message(item, path)
            case "reasoning":
                if self._text is not None or self._calls:
                    self.end_answer()
                # Others' thoughts come as summaries, or encrypted, which only they can read.
                parts = item.content if isinstance(item.content, list) and item.content else item.summary or []
                self._thoughts.append(_joined(parts, f"{path}.content"))
            case "function_call":
                call_id = _given(item.call_id, f"{path}.call_id")
                self._called.add(call_id)
                call = ToolCall(
                    call_id=call_id, name=_given(item.name, f"{path}.name"), arguments=item.arguments or "{}"
                )
                self._calls.append(call)
            case "function_call_output":
                self._add_output(item, path)
            case _:
                raise RequestError(
                    f"Unsupported value: '{path}.type' must be 'message', 'reasoning', 'function_call' or "
                    f"'function_call_output', this server has no items of the type '{item.type[:100]}'.",
                    param=f"{path}.type",
                    code="unsupported_value",
                )

    def add_text(self, role: str, text: str) -> None:
        """System messages at the beginning are one."""
        self.end_answer()
        if role == "system" and len(self.turns) == 1 and self.turns[0].role == "system":
            text = f"{self.turns.pop().content}{_SYSTEM_SEPARATOR}{text}"
        self.turns.append(ChatMessage(role, text))

    def end_answer(self) -> None:
        """Ends the assistant's turn, if there is one."""
        reasoning = _PART_SEPARATOR.join(thought for thought in self._thoughts if thought)
        if self._text is not None or self._calls:
            self.turns.append(
                ChatMessage(
                    "assistant",
                    self._text or "",
                    tool_calls=tuple(self._calls),
                    reasoning_content=reasoning or None,
                )
            )
        self._thoughts, self._text, self._calls = [], None, []

    def _add_message(self, item: WireItem, path: str) -> None:
        match item.content:
            case None:
                raise _missing(f"{path}.content")
            case str(content):
                text = content
            case parts:
                text = _joined(parts, f"{path}.content")
        match item.role:
            case "assistant":
                if self._text is not None or self._calls:
                    self.end_answer()
                self._text = text
            case "user" | "system":
                self.add_text(item.role, text)
            case "developer":
                self.add_text("system", text)  # the newer name of the same instructions
            case _:
                raise RequestError(
                    f"Unsupported value: '{path}.role' must be 'user', 'assistant', 'system' or 'developer'.",
                    param=f"{path}.role",
                    code="unsupported_value",
                )

    def _add_output(self, item: WireItem, path: str) -> None:
        call_id = _given(item.call_id, f"{path}.call_id")
        if call_id not in self._called:
            raise RequestError(
                f"No tool call found for function call output with call_id '{call_id[:200]}'.",
                param=f"{path}.call_id",
                code="invalid_value",
            )
        self.end_answer()
        match item.output:
            case None:
                raise _missing(f"{path}.output")
            case str(output):
                text = output
            case parts:
                text = _joined(parts, f"{path}.output")
        self.turns.append(ChatMessage("tool", text, tool_call_id=call_id))


def _joined(parts: Sequence[WirePart], path: str) -> str:
    return _PART_SEPARATOR.join(_text(part, f"{path}[{index}]") for index, part in enumerate(parts))


def _text(part: WirePart, path: str) -> str:
    if part.type == "refusal":
        return part.refusal or ""
    if part.type not in _TEXT_PARTS:
        raise RequestError(
            f"Unsupported value: '{path}.type' must be 'input_text' or 'output_text', this server has no other kind of "
            "content.",
            param=f"{path}.type",
            code="unsupported_value",
        )
    return _given(part.text, f"{path}.text")


def _as_input(item: OutputItem) -> WireItem:
    match item:
        case MessageItem(id=item_id, content=content):
            texts = [WirePart(type="output_text", text=part.text) for part in content]
            return WireItem(id=item_id, role="assistant", content=texts)
        case ReasoningItem(id=item_id, content=thoughts):
            return WireItem(
                type="reasoning",
                id=item_id,
                content=[WirePart(type="reasoning_text", text=part.text) for part in thoughts],
                summary=[],
            )
        case FunctionCallItem(id=item_id, call_id=call_id, name=name, arguments=arguments):
            return WireItem(type="function_call", id=item_id, call_id=call_id, name=name, arguments=arguments)


def _given(value: str | None, path: str) -> str:
    if value is None:
        raise _missing(path)
    return value


def _missing(path: str) -> RequestError:
    return RequestError(f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter")
