"""Calls in the form of Mistral: `[TOOL_CALLS][{"name": "f", "arguments": {...}}]`, and since tokenizer version 11
`[TOOL_CALLS]f[ARGS]{...}`, once for each call.
"""

from __future__ import annotations

import random
import string
from typing import Final, Literal

from pagefall.text.replies.call_list import CallList
from pagefall.text.replies.call_object import Calls
from pagefall.text.replies.json_scan import JsonScan, Verdict
from pagefall.text.replies.marked_calls import CallBlock, MarkedCalls
from pagefall.text.replies.parts import ReplyPart, ToolCallArguments, ToolCallStart

BEGIN: Final = "[TOOL_CALLS]"
ARGUMENTS: Final = "[ARGS]"
CALL_ID: Final = "[CALL_ID]"

ID_LENGTH: Final = 9
_ID_ALPHABET: Final = string.ascii_letters + string.digits
_MAX_NAME: Final = 300

_random = random.SystemRandom()


def new_mistral_id() -> str:
    """Mistral's templates take no other ids than nine letters and digits."""
    return "".join(_random.choices(_ID_ALPHABET, k=ID_LENGTH))


class MistralParser(MarkedCalls):
    def __init__(self, calls: Calls) -> None:
        super().__init__(calls, (BEGIN,))

    def block(self, marker: str) -> CallBlock:
        return _Block(self._calls)


class _Block:
    """The first character tells which of the two forms it is."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._inner: CallList | _NamedCall | None = None
        self.verdict: Verdict = "more"

    @property
    def is_told(self) -> bool:
        return self._inner is not None and self._inner.is_told

    def push(self, text: str, start: int, parts: list[ReplyPart]) -> int:
        at = start
        while self._inner is None and at < len(text):
            if text[at].isspace():
                at += 1
            else:
                is_json = text[at] in "[{"
                self._inner = CallList(self._calls, separators=",") if is_json else _NamedCall(self._calls)
        if self._inner is not None:
            at = self._inner.push(text, at, parts)
            self.verdict = self._inner.verdict
        return at

    def finish(self, parts: list[ReplyPart]) -> None:
        if self._inner is not None:
            self._inner.finish(parts)


class _NamedCall:
    """`f[ARGS]{...}`, or `f[CALL_ID]id[ARGS]{...}`, or `f{...}`."""

    def __init__(self, calls: Calls) -> None:
        self.verdict: Verdict = "more"
        self._calls = calls
        self._state: Literal["name", "arguments"] = "name"
        self._name = ""
        self._scan = JsonScan()
        self._start: ToolCallStart | None = None

    @property
    def is_told(self) -> bool:
        return self._start is not None

    def push(self, text: str, start: int, parts: list[ReplyPart]) -> int:
        at = start
        while at < len(text) and self._state == "name" and self.verdict == "more":
            if text[at] == "{":
                self._begin(parts)
            else:
                self._name += text[at]
                at += 1
                if len(self._name) > _MAX_NAME:
                    self.verdict = "bad"
        if self._start is not None and at < len(text):
            end = self._scan.push(text, at)
            if end > at:
                parts.append(ToolCallArguments(index=self._start.index, text=text[at:end]))
            self.verdict = self._scan.verdict
            at = end
        return at

    def finish(self, parts: list[ReplyPart]) -> None:
        """A call that was announced stays as it is."""

    def _begin(self, parts: list[ReplyPart]) -> None:
        name = self._name.strip().removesuffix(ARGUMENTS).split(CALL_ID)[0].strip()
        if not self._calls.may(name) or "[" in name:
            self.verdict = "bad"
            return
        self._state = "arguments"
        self._start = self._calls.begin(name)
        parts.append(self._start)
