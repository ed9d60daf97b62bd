"""A conversation in Anthropic's blocks as one for the chat template, and what of it is to be kept in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pagefall.api.wire_messages import CacheControl, CountTokensRequest, WireBlock, WireTurn
from pagefall.api.wire_tools import arguments_text
from pagefall.errors import RequestError
from pagefall.text.requests import ChatMessage, ChatPrompt, PinRequest, Tool, ToolCall

_SEPARATOR: Final = "\n"
"""Between the text blocks of one message, which templates expect as one string."""

_SECONDS: Final = {"5m": 300.0, "1h": 3600.0, None: 300.0}

_MAX_BREAKPOINTS: Final = 4
"""Anthropic's limit."""

_BILLING_HEADER: Final = "x-anthropic-billing-header:"
"""A coding agent's first system block begins so. It is meant for the biller, not for the model, and is another with
every request: left in, it would part each prompt from all that is cached.
"""


def messages_prompt(
    body: CountTokensRequest, tools: tuple[Tool, ...], template_kwargs: dict[str, Any]
) -> tuple[ChatPrompt, tuple[PinRequest, ...]]:
    """Raises `RequestError` naming the first block that cannot be had here or stands where it may not."""
    if not body.messages:
        raise RequestError("'messages' must have at least one message.", param="messages", code="empty_array")
    conversation = _Conversation()
    conversation.add_system(body)
    for index, turn in enumerate(body.messages):
        conversation.add(turn, f"messages[{index}]")
    if body.cache_control is not None:
        conversation.mark(body.cache_control)
    last = conversation.turns[-1]
    is_prefill = last.role == "assistant"
    if is_prefill and (last.tool_calls or not last.content):
        raise RequestError(
            "The last message is the assistant's: it needs text that is to be continued, and no 'tool_use'. Send the "
            "'tool_result' of its calls, or a message of the user.",
            param=f"messages[{len(body.messages) - 1}]",
            code="invalid_value",
        )
    prompt = ChatPrompt(
        messages=tuple(conversation.turns),
        tools=tools,
        add_generation_prompt=not is_prefill,
        continue_final_message=is_prefill,
        template_kwargs=template_kwargs,
    )
    return prompt, conversation.pins()


class _Conversation:
    """Turns as they are read, and after how many of them there is a breakpoint, with its seconds."""

    def __init__(self) -> None:
        self.turns: list[ChatMessage] = []
        self._seconds: dict[int, float] = {}
        self._num_breakpoints = 0
        self._called: frozenset[str] = frozenset()

    def pins(self) -> tuple[PinRequest, ...]:
        if self._num_breakpoints > _MAX_BREAKPOINTS:
            raise RequestError(
                f"A maximum of {_MAX_BREAKPOINTS} blocks with 'cache_control' may be provided. Found "
                f"{self._num_breakpoints}.",
                param="cache_control",
                code="invalid_value",
            )
        return tuple(
            PinRequest(num_messages=count, ttl_seconds=seconds) for count, seconds in sorted(self._seconds.items())
        )

    def mark(self, *controls: CacheControl | None) -> None:
        """Breakpoints after what was read so far."""
        for control in controls:
            if control is not None:
                self._num_breakpoints += 1
                count = len(self.turns)
                self._seconds[count] = max(self._seconds.get(count, 0.0), _SECONDS[control.ttl])

    def add_system(self, body: CountTokensRequest) -> None:
        """Tools are written into the same turn by most templates, so their breakpoints come after it."""
        blocks = _blocks(body.system or [])
        texts = [_text(block, f"system[{index}]") for index, block in enumerate(blocks)]
        text = _SEPARATOR.join(text for text in texts if not text.startswith(_BILLING_HEADER))
        if text:
            self.turns.append(ChatMessage("system", text))
        self.mark(*(tool.cache_control for tool in body.tools or []), *(block.cache_control for block in blocks))

    def add(self, turn: WireTurn, path: str) -> None:
        blocks = _blocks(turn.content)
        match turn.role:
            case "assistant":
                self._add_answer(blocks, f"{path}.content")
            case role:
                self._add_asked(role, blocks, f"{path}.content")

    def _add_answer(self, blocks: Sequence[WireBlock], path: str) -> None:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        for index, block in enumerate(blocks):
            match block.type:
                case "thinking":
                    thoughts.append(block.thinking or "")
                case "redacted_thinking":
                    pass  # another's, which only it can read
                case "tool_use":
                    calls.append(_call(block, f"{path}[{index}]"))
                case _:
                    texts.append(_text(block, f"{path}[{index}]"))
        self._called = frozenset(call.call_id for call in calls)
        self.turns.append(
            ChatMessage(
                "assistant",
                _SEPARATOR.join(texts),
                tool_calls=tuple(calls),
                reasoning_content=_SEPARATOR.join(thoughts) or None,
            )
        )
        self.mark(*(block.cache_control for block in blocks))

    def _add_asked(self, role: str, blocks: Sequence[WireBlock], path: str) -> None:
        texts: list[str] = []
        waiting: list[CacheControl | None] = []
        for index, block in enumerate(blocks):
            if block.type == "tool_result" and role == "user":
                self._say(role, texts)
                self._add_result(block, f"{path}[{index}]")
                self.mark(*waiting, block.cache_control)
                texts, waiting = [], []
            else:
                texts.append(_text(block, f"{path}[{index}]"))
                waiting.append(block.cache_control)
        if texts or not blocks:
            self._say(role, texts or [""])
        self.mark(*waiting)

    def _add_result(self, block: WireBlock, path: str) -> None:
        if block.tool_use_id not in self._called:
            raise RequestError(
                f"Invalid value for '{path}.tool_use_id': a 'tool_result' must answer a 'tool_use' of the message "
                "before it.",
                param=f"{path}.tool_use_id",
                code="invalid_value",
            )
        content = block.content
        if isinstance(content, list):
            try:
                blocks = msgspec.convert(content, list[WireBlock])
            except msgspec.ValidationError as error:
                raise RequestError(f"Invalid value for '{path}.content': {error}.", param=f"{path}.content") from error
            content = _SEPARATOR.join(_text(part, f"{path}.content[{i}]") for i, part in enumerate(blocks))
        if not isinstance(content, str | None):
            raise RequestError(
                f"Invalid value for '{path}.content': it is a string or a list of blocks.", param=f"{path}.content"
            )
        self.turns.append(ChatMessage("tool", content or "", tool_call_id=block.tool_use_id))

    def _say(self, role: str, texts: Sequence[str]) -> None:
        """Neighbours of one role are one turn, as at Anthropic's: templates want them to take turns."""
        if not texts:
            return
        text = _SEPARATOR.join(texts)
        if self.turns and self.turns[-1].role == role and role == "user":
            text = f"{self.turns.pop().content}{_SEPARATOR}{text}"
        self.turns.append(ChatMessage(role, text))


def _blocks(content: str | Sequence[WireBlock]) -> Sequence[WireBlock]:
    return [WireBlock(type="text", text=content)] if isinstance(content, str) else content


def _text(block: WireBlock, path: str) -> str:
    if block.type != "text":
        raise RequestError(
            f"Unsupported value: '{path}.type' must be 'text' here, this server has no '{block.type[:100]}' blocks in "
            "this place.",
            param=f"{path}.type",
            code="unsupported_value",
        )
    if block.text is None:
        raise _missing(f"{path}.text")
    return block.text


def _call(block: WireBlock, path: str) -> ToolCall:
    if block.id is None:
        raise _missing(f"{path}.id")
    if block.name is None:
        raise _missing(f"{path}.name")
    return ToolCall(call_id=block.id, name=block.name, arguments=arguments_text(block.input or {}))


def _missing(path: str) -> RequestError:
    return RequestError(f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter")
