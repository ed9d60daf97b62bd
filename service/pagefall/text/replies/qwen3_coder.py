"""Calls in the form of Qwen3-Coder:

<tool_call>
<function=f>
<parameter=a>
text
</parameter>
</function>
</tool_call>

Values are bare text, so the tool's schema says which of them are strings; arguments are written anew as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from pagefall.text.replies.call_object import Calls
from pagefall.text.replies.json_scan import JsonScan, Verdict
from pagefall.text.replies.marked_calls import CallBlock, MarkedCalls
from pagefall.text.replies.parts import ReplyPart, ToolCallArguments, ToolCallStart

BEGIN: Final = "<tool_call>"
END: Final = "</tool_call>"
FUNCTION: Final = "<function="

_FUNCTION: Final = re.compile(r"\s*<function=([^>\s]+)>")
_PARAMETER: Final = re.compile(r"\s*<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_FUNCTION_END: Final = re.compile(r"\s*</function>")
_CALL_END: Final = re.compile(r"\s*</tool_call>")

Schemas = Mapping[str, Mapping[str, Any]]
"""The schema of each tool's arguments."""


class Qwen3CoderParser(MarkedCalls):
    """An argument comes whole, as soon as it ends. `<tool_call>` may be missing: the model forgets it."""

    def __init__(self, calls: Calls, schemas: Schemas) -> None:
        super().__init__(calls, (BEGIN, FUNCTION))
        self._schemas = schemas

    def block(self, marker: str) -> CallBlock:
        return _Block(self._calls, self._schemas, begun="" if marker == BEGIN else FUNCTION)


class _Block:
    def __init__(self, calls: Calls, schemas: Schemas, begun: str) -> None:
        self.verdict: Verdict = "more"
        self._calls = calls
        self._schemas = schemas
        self._text = begun
        self._has_tag = not begun
        self._name: str | None = None
        self._start: ToolCallStart | None = None
        self._num_arguments = 0
        self._is_whole = False

    @property
    def is_told(self) -> bool:
        return self._start is not None

    def push(self, text: str, start: int, parts: list[ReplyPart]) -> int:
        for at in range(start, len(text)):
            self._text += text[at]
            if text[at] == ">":  # every step of it ends with a tag
                self._read(parts)
            elif self._is_whole and not _may_end(self._text):
                self.verdict = "done"
                return at
            if self.verdict != "more":
                return at + 1
        return len(text)

    def finish(self, parts: list[ReplyPart]) -> None:
        """A call that was announced stays as it is."""

    def _read(self, parts: list[ReplyPart]) -> None:
        if self._name is None:
            found = _FUNCTION.fullmatch(self._text)
            if found is None or not self._calls.may(found[1]):
                self.verdict = "bad"
                return
            self._name, self._text = found[1], ""
        elif self._is_whole:
            if _CALL_END.fullmatch(self._text):
                self.verdict = "done"
        elif self._text.endswith("</parameter>") and (found := _PARAMETER.fullmatch(self._text)):
            self._tell(f"{', ' if self._num_arguments else '{'}{self._argument(found[1], found[2])}", parts)
            self._num_arguments += 1
            self._text = ""
        elif _FUNCTION_END.fullmatch(self._text):
            self._tell("}" if self._num_arguments else "{}", parts)
            self._text, self._is_whole = "", True
            self.verdict = "more" if self._has_tag else "done"

    def _tell(self, text: str, parts: list[ReplyPart]) -> None:
        if self._start is None:
            assert self._name is not None
            self._start = self._calls.begin(self._name)
            parts.append(self._start)
        parts.append(ToolCallArguments(index=self._start.index, text=text))

    def _argument(self, name: str, value: str) -> str:
        assert self._name is not None
        properties = self._schemas.get(self._name, {}).get("properties")
        schema = properties.get(name) if isinstance(properties, Mapping) else None
        return f"{json.dumps(name, ensure_ascii=False)}: {_as_json(value, schema)}"


def _may_end(text: str) -> bool:
    tail = text.lstrip()
    return END.startswith(tail)


def _as_json(value: str, schema: object) -> str:
    """The text itself where it is JSON and no string was asked for, else a string of it."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind != "string":
        scan = JsonScan()
        scan.push(value + " ")  # a number is only done where something follows it
        if scan.verdict == "done" and _is_json(value):
            return value.strip()
        if value in ("True", "False", "None"):
            return {"True": "true", "False": "false", "None": "null"}[value]
    return json.dumps(value, ensure_ascii=False)


def _is_json(value: str) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True
