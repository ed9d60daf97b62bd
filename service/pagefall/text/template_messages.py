"""A conversation in the form that a chat template takes. Templates disagree about calls; their text tells how."""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from msgspec.structs import replace

from pagefall.text.requests import ChatMessage, ToolCall

Conversation = list[dict[str, Any]]

_ID_LENGTH: Final = 9
_ID_ALPHABET: Final = string.digits + string.ascii_letters
_SHORT_ID: Final = re.compile(r"[A-Za-z0-9]{9}")


class TemplateTraits:
    """What a template's text says about it."""

    def __init__(self, template: str) -> None:
        self.knows_tools = re.search(r"\btools\b", template) is not None
        """Others are told of tools in plain messages."""
        self._prints_strings = re.search(r"arguments\s+is\s+(not\s+)?(string|mapping)", template) is not None
        self._wants_short_ids = re.search(r"(length\s*!=\s*9|length\s+9)\b", template) is not None

    def forms(self, messages: Sequence[ChatMessage]) -> Iterator[Conversation]:
        """The conversation, the likeliest form first; another one is for a template that refuses those before it."""
        kinds: tuple[Literal["text", "object"], ...] = (
            ("text", "object") if self._prints_strings else ("object", "text")
        )
        if not any(message.tool_calls for message in messages):
            yield [self._as_dict(message, "text") for message in messages]
            return
        for kind in kinds:
            yield [self._as_dict(message, kind) for message in messages]
        if any(len(message.tool_calls) > 1 for message in messages):
            for kind in kinds:
                yield [self._as_dict(message, kind) for message in _one_call_each(messages)]

    def _as_dict(self, message: ChatMessage, kind: Literal["text", "object"]) -> dict[str, Any]:
        result: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.name is not None:
            result["name"] = message.name
        if message.tool_calls:
            result["tool_calls"] = [self._call(call, kind) for call in message.tool_calls]
        if message.tool_call_id is not None:
            result["tool_call_id"] = self._call_id(message.tool_call_id)
        if message.reasoning_content is not None:
            result["reasoning_content"] = message.reasoning_content
        return result

    def _call(self, call: ToolCall, kind: Literal["text", "object"]) -> dict[str, Any]:
        arguments = call.arguments if kind == "text" else _object(call.arguments)
        return {
            "id": self._call_id(call.call_id),
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        }

    def _call_id(self, call_id: str) -> str:
        """The same for the same id. Where a template takes only short ones, those of other servers are shortened."""
        if not self._wants_short_ids or _SHORT_ID.fullmatch(call_id):
            return call_id
        digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).digest()
        return "".join(_ID_ALPHABET[byte % len(_ID_ALPHABET)] for byte in digest[:_ID_LENGTH])


def _object(arguments: str) -> Any:
    """The object that the text is. Text that is none, as of a call that was cut off, stays text."""
    if not arguments.strip():
        return {}
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _one_call_each(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Parallel calls one after the other, each with its answer, for models that know no parallel calls."""
    result: list[ChatMessage] = []
    answers: dict[str, list[ChatMessage]] = {}
    for index, message in enumerate(messages):
        if message.role == "tool" and message.tool_call_id in answers:
            continue
        answers = {}
        if len(message.tool_calls) < 2:
            result.append(message)
            continue
        answers = {call.call_id: [] for call in message.tool_calls}
        for answer in messages[index + 1 :]:
            if answer.role != "tool" or answer.tool_call_id not in answers:
                break
            answers[answer.tool_call_id].append(answer)
        for number, call in enumerate(message.tool_calls):
            content = message.content if number == 0 else ""
            result += [replace(message, content=content, tool_calls=(call,)), *answers[call.call_id]]
    return result
