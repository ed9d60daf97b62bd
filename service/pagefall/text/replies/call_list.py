"""Calls as JSON objects one behind the other, `{...}; {...}`, or in an array, `[{...}, {...}]`."""

from __future__ import annotations

from typing import Final

from pagefall.text.replies.call_object import CallObject, Calls
from pagefall.text.replies.json_scan import Verdict
from pagefall.text.replies.parts import Content, ReplyPart

_SPACE: Final = " \t\r\n"


class CallList:
    """A `CallBlock`. It ends with the array, or where neither a separator nor an object follows."""

    def __init__(self, calls: Calls, *, separators: str) -> None:
        """`separators`: of objects that are in no array."""
        self.verdict: Verdict = "more"
        self.is_told = False
        self._calls = calls
        self._separators = separators
        self._in_array = False
        self._call: CallObject | None = None
        self._expects_object = True
        self._raw: list[str] = []
        """What came since the last call was complete."""

    def push(self, text: str, start: int, parts: list[ReplyPart]) -> int:
        at = start
        while at < len(text) and self.verdict == "more":
            end = self._read(text, at, parts)
            self._raw.append(text[at:end])
            at = end
            if self._call is not None and self._call.verdict != "more":
                self._end_call(parts)
        return at

    def finish(self, parts: list[ReplyPart]) -> None:
        if self.is_told and self._call is not None and self._call.start is None:
            parts.append(Content("".join(self._raw)))

    def _read(self, text: str, at: int, parts: list[ReplyPart]) -> int:
        if self._call is not None:
            end = self._call.push(text, at, parts)
            self.is_told = self.is_told or self._call.start is not None
            return end
        character = text[at]
        if character in _SPACE:
            return at + 1
        if self._expects_object and character == "{":
            self._call = CallObject(self._calls)
            return at
        if self._expects_object and character == "[" and not self._in_array and not self.is_told:
            self._in_array = True
            return at + 1
        if not self._expects_object and character in ("," if self._in_array else self._separators):
            self._expects_object = True
            return at + 1
        if self._in_array and character == "]" and self.is_told:
            self.verdict = "done"
            return at + 1
        self._end(parts)
        return at

    def _end_call(self, parts: list[ReplyPart]) -> None:
        assert self._call is not None
        if self._call.verdict == "bad":
            announced = self._call.start is not None
            self._call = None
            if announced:
                self._raw = []
            self._end(parts)
        else:
            self._call, self._expects_object, self._raw = None, False, []

    def _end(self, parts: list[ReplyPart]) -> None:
        """What follows is no call. Before the first one the whole block is content, behind it the rest is."""
        self.verdict = "done" if self.is_told else "bad"
        if self.is_told and (rest := "".join(self._raw)).strip():
            parts.append(Content(rest))
